/** Namespaces of the API group `v1`. */
import type { Namespace } from './policy-objects.ts';
import { readMetadata } from './read-metadata.ts';
import { readLabels } from './read-selector.ts';

/** The label that the API server gives each namespace. */
export const NAME_LABEL = 'kubernetes.io/metadata.name';

/**
 * A Namespace of the API group `v1`. It has the label with its own name that the API server gives
 * each, also where a manifest leaves it out.
 * @throws InvalidObject for the first field that cannot be read.
 */
export function readNamespace(raw: unknown): Namespace {
  const { metadata, key, name } = readMetadata('Namespace', raw);
  const labels = { ...readLabels(metadata), [NAME_LABEL]: name };
  return { kind: 'Namespace', key, name, labels };
}
