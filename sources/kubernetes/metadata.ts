import { isRecord } from '../../api/read-field.ts';

/** The `metadata` of an object as the API server sent it; empty where there is none. */
export function metadataOf(object: unknown): Record<string, unknown> {
  return isRecord(object) && isRecord(object.metadata) ? object.metadata : {};
}

/** The object's resource version; empty where there is none. */
export function versionOf(object: unknown): string {
  const { resourceVersion } = metadataOf(object);
  return typeof resourceVersion === 'string' ? resourceVersion : '';
}
