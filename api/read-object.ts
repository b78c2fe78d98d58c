import type { ApiObject, Kind, ObjectKey } from './objects.ts';
import { readEndpointSlice } from './read-endpointslice.ts';
import { child, fail, isRecord, rootField, shown } from './read-field.ts';
import { objectLabel, readMetadata } from './read-metadata.ts';
import { readNode } from './read-node.ts';
import { readService } from './read-service.ts';

/** The apiVersion that each kind is read in. */
export const API_VERSIONS: Readonly<Record<Kind, string>> = {
  Service: 'v1',
  EndpointSlice: 'discovery.k8s.io/v1',
  Node: 'v1',
};

const READERS: Readonly<Record<Kind, (raw: unknown) => ApiObject | undefined>> = {
  Service: readService,
  EndpointSlice: readEndpointSlice,
  Node: readNode,
};

export interface ObjectIdentity {
  readonly kind: Kind;
  readonly key: ObjectKey;
}

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
export function readIdentity(raw: unknown, kinds: readonly Kind[]): ObjectIdentity | undefined {
  const kind = kindOf(raw, kinds);
  if (kind === undefined) return undefined;
  checkApiVersion(kind, raw);
  return { kind, key: readMetadata(kind, raw).key };
}

function kindOf(raw: unknown, kinds: readonly Kind[]): Kind | undefined {
  if (!isRecord(raw) || !Object.hasOwn(raw, 'kind')) return undefined;
  const { kind } = raw;
  return kinds.find((each) => each === kind);
}

function checkApiVersion(kind: Kind, raw: unknown): void {
  const field = child(rootField(objectLabel(kind, raw), raw), 'apiVersion');
  const expected = API_VERSIONS[kind];
  if (field.value !== expected) {
    const given = field.value === undefined ? 'missing' : shown(field.value);
    fail(field, `must be ${expected} for this kind, not ${given}`);
  }
}
