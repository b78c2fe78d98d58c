/**
 * Reads an object of any supported kind: checks its kind and apiVersion and calls the reader for
 * the kind.
 */
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
import { readServiceCidr } from './read-service-cidr.ts';

/**
 * Supported apiVersions of each kind, newest first. The fields have the same meaning in all
 * versions of a kind.
 */
export const API_VERSIONS: Readonly<Record<Kind, readonly [string, ...string[]]>> = {
  Service: ['v1'],
  EndpointSlice: ['discovery.k8s.io/v1'],
  Node: ['v1'],
  ServiceCIDR: ['networking.k8s.io/v1'],
  Pod: ['v1'],
  Namespace: ['v1'],
  CIDRGroup: ['policy.networking.k8s.io/v1alpha1'],
  NetworkPolicy: ['networking.k8s.io/v1'],
  AdminNetworkPolicy: ['policy.networking.k8s.io/v1alpha1'],
  BaselineAdminNetworkPolicy: ['policy.networking.k8s.io/v1alpha1'],
  // v1beta1 has the fields of v1alpha2 and is in no release of network-policy-api yet (v0.2.0).
  ClusterNetworkPolicy: ['policy.networking.k8s.io/v1beta1', 'policy.networking.k8s.io/v1alpha2'],
};

const READERS: Readonly<Record<Kind, (raw: unknown) => ApiObject | undefined>> = {
  Service: readService,
  EndpointSlice: readEndpointSlice,
  Node: readNode,
  ServiceCIDR: readServiceCidr,
  Pod: readPod,
  Namespace: readNamespace,
  CIDRGroup: readCidrGroup,
  NetworkPolicy: readNetworkPolicy,
  AdminNetworkPolicy: readAdminNetworkPolicy,
  BaselineAdminNetworkPolicy: readBaselineAdminNetworkPolicy,
  ClusterNetworkPolicy: readClusterNetworkPolicy,
};

/**
 * Converts a parsed JSON or YAML object into a small, validated value that does not reference the
 * input.
 * @returns undefined for kinds not in `kinds`, and for unused EndpointSlices (see
 * `readEndpointSlice`).
 * @throws InvalidObject for the first field that cannot be read, or for an unsupported apiVersion
 * of a supported kind.
 */
export function readObject(raw: unknown, kinds: readonly Kind[]): ApiObject | undefined {
  const kind = kindOf(raw, kinds);
  if (kind === undefined) return undefined;
  checkApiVersion(kind, raw);
  return READERS[kind](raw);
}

/**
 * Reads only the kind and key of an object. Other fields may be unreadable or the object unused.
 * @returns undefined for kinds not in `kinds`.
 * @throws InvalidObject when the name, namespace or apiVersion cannot be read.
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

/** Adds kind and apiVersion to a list item; in a list response only the list has them. */
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
