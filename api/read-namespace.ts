/** Reads Namespaces. */
import type { Namespace } from './policy-objects.ts';
import { readMetadata } from './read-metadata.ts';
import { readLabels } from './read-selector.ts';

/** The API server sets this label on every namespace. */
export const NAME_LABEL = 'kubernetes.io/metadata.name';

/**
 * Reads a Namespace of `v1`. Adds the label `kubernetes.io/metadata.name`, which manifests leave to
 * the API server.
 * @throws InvalidObject for the first field that cannot be read.
 */
export function readNamespace(raw: unknown): Namespace {
  const { metadata, key, name } = readMetadata('Namespace', raw);
  const labels = { ...readLabels(metadata), [NAME_LABEL]: name };
  return { kind: 'Namespace', key, name, labels };
}
