/** Any object that is read: its kind, its apiVersion, and what reads it. */
import type { ApiObject, Kind, ObjectKey } from './objects.ts';
import {
  readAdminNetworkPolicy,
  readBaselineAdminNetworkPolicy,
  readClusterNetworkPolicy,
} from './read-cluster-policy.ts';
import { readEndpointSlice } from './read-endpointslice.ts';
import { child, describeValue, fail, isRecord, rootField } from './read-field.ts';
import { objectLabel, readMetadata } from './read-metadata.ts';
import { readNamespace } from './read-namespace.ts';
import { readNetworkPolicy } from './read-network-policy.ts';
import { readCidrGroup } from './read-networks.ts';
import { readNode } from './read-node.ts';
import { readPod } from './read-pod.ts';
import { readService } from './read-service.ts';

/** The apiVersions that each kind is read in, because the same fields mean the same in them; the newest first. */
export const API_VERSIONS: Readonly<Record<Kind, readonly [string, ...string[]]>> = {
  Service: ['v1'],
  EndpointSlice: ['discovery.k8s.io/v1'],
  Node: ['v1'],
  Pod: ['v1'],
  Namespace: ['v1'],
  CIDRGroup: ['policy.networking.k8s.io/v1alpha1'],
  NetworkPolicy: ['networking.k8s.io/v1'],
  AdminNetworkPolicy: ['policy.networking.k8s.io/v1alpha1'],
  BaselineAdminNetworkPolicy: ['policy.networking.k8s.io/v1alpha1'],
  ClusterNetworkPolicy: ['policy.networking.k8s.io/v1beta1', 'policy.networking.k8s.io/v1alpha2'],
};

const READERS: Readonly<Record<Kind, (raw: unknown) => ApiObject | undefined>> = {
  Service: readService,
  EndpointSlice: readEndpointSlice,
  Node: readNode,
  Pod: readPod,
  Namespace: readNamespace,
  CIDRGroup: readCidrGroup,
  NetworkPolicy: readNetworkPolicy,
  AdminNetworkPolicy: readAdminNetworkPolicy,
  BaselineAdminNetworkPolicy: readBaselineAdminNetworkPolicy,
  ClusterNetworkPolicy: readClusterNetworkPolicy,
};

/**
 * A parsed JSON or YAML object as a slim, checked value that shares nothing with it.
 * @returns undefined for what is not asked for: other kinds, and slices that say nothing here (see
 * `readEndpointSlice`).
 * @throws InvalidObject for the first field that cannot be read; also when a kind that is read
 * comes in an apiVersion that is not.
 */
export function readObject(raw: unknown, kinds: readonly Kind[]): ApiObject | undefined {
  const kind = kindOf(raw, kinds);
  if (kind === undefined) return undefined;
  checkApiVersion(kind, raw);
  return READERS[kind](raw);
}

/**
 * Which object this is, also when the rest of it cannot be read or is to be ignored.
 * @returns undefined for other kinds.
 * @throws InvalidObject when name, namespace or apiVersion cannot be read.
 */
export function readIdentity(
  raw: unknown,
  kinds: readonly Kind[],
): { readonly kind: Kind; readonly key: ObjectKey } | undefined {
  const kind = kindOf(raw, kinds);
  if (kind === undefined) return undefined;
  checkApiVersion(kind, raw);
  return { kind, key: readMetadata(kind, raw).key };
}

/** Writes into an item of a list what it is: items do not say that, the list does. */
export function withListKind(kind: Kind, item: Record<string, unknown>): Record<string, unknown> {
  return Object.assign(item, { kind, apiVersion: API_VERSIONS[kind][0] });
}

function kindOf(raw: unknown, kinds: readonly Kind[]): Kind | undefined {
  if (!isRecord(raw) || !Object.hasOwn(raw, 'kind')) return undefined;
  const { kind } = raw;
  return kinds.find((each) => each === kind);
}

function checkApiVersion(kind: Kind, raw: unknown): void {
  const field = child(rootField(objectLabel(kind, raw), raw), 'apiVersion');
  const expected = API_VERSIONS[kind];
  if (!expected.some((version) => version === field.value)) {
    const given = field.value === undefined ? 'missing' : describeValue(field.value);
    fail(field, `must be ${expected.join(' or ')} for this kind, not ${given}`);
  }
}
