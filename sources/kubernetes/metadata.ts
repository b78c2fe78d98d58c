/** Metadata of raw API objects, and the order of resource versions. */
import { isRecord } from '../../api/read-field.ts';

/** The `metadata` of a raw object; empty when missing. */
export function metadataOf(object: unknown): Record<string, unknown> {
  return isRecord(object) && isRecord(object.metadata) ? object.metadata : {};
}

/** The object's resource version; empty when missing. */
export function resourceVersionOf(object: unknown): string {
  const { resourceVersion } = metadataOf(object);
  return typeof resourceVersion === 'string' ? resourceVersion : '';
}

/**
 * Whether one resource version is older than another. Versions of Kubernetes' own resources are
 * decimal numbers and can be compared (KEP-5504). The order of other versions is unknown; the
 * result is then false.
 */
export function isOlder(version: string, other: string): boolean {
  if (!DECIMAL.test(version) || !DECIMAL.test(other)) return false;
  return version.length === other.length ? version < other : version.length < other.length;
}

const DECIMAL = /^(0|[1-9]\d*)$/;
