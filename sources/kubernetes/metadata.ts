/** Metadata of objects as the API server sends them, and the order of their versions. */
import { isRecord } from '../../api/read-field.ts';

/** The `metadata` of an object as the API server sent it; empty where there is none. */
export function metadataOf(object: unknown): Record<string, unknown> {
  return isRecord(object) && isRecord(object.metadata) ? object.metadata : {};
}

/** The object's resource version; empty where there is none. */
export function resourceVersionOf(object: unknown): string {
  const { resourceVersion } = metadataOf(object);
  return typeof resourceVersion === 'string' ? resourceVersion : '';
}

/**
 * Whether one resource version is older than another. Those of Kubernetes' own resources are decimal
 * numbers and may be compared (KEP-5504); of others nothing is known.
 */
export function isOlder(version: string, other: string): boolean {
  if (!DECIMAL.test(version) || !DECIMAL.test(other)) return false;
  return version.length === other.length ? version < other : version.length < other.length;
}

const DECIMAL = /^(0|[1-9]\d*)$/;
