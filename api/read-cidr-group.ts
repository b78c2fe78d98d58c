import { kept } from './collections.ts';
import type { CidrGroup } from './policy-objects.ts';
import { child, fail, isMissing, members, someItems } from './read-field.ts';
import { readMetadata } from './read-metadata.ts';
import { network } from './read-networks.ts';
import { readLabels } from './read-selector.ts';

const MAX_CIDRS = 25;

/**
 * A CIDRGroup of `policy.networking.k8s.io/v1alpha1` (NPEP-182). Its CIDRs are under `spec`, as in
 * the document's example, or at the top, as in its Go type. There has to be one.
 * @throws InvalidObject for the first field that cannot be read. A group of which a part is left out
 * would allow less, but also deny less: it stays as it was.
 */
export function readCidrGroup(raw: unknown): CidrGroup {
  const { root, metadata, key, name } = readMetadata('CIDRGroup', raw);
  const spec = child(root, 'spec');
  members(spec, ['cidrs']);
  const own = child(spec, 'cidrs');
  const flat = child(root, 'cidrs');
  if (!isMissing(own) && !isMissing(flat)) fail(flat, 'must not be set beside spec.cidrs');
  const cidrs = someItems(isMissing(flat) ? own : flat, MAX_CIDRS);
  return {
    kind: 'CIDRGroup',
    key,
    name,
    labels: readLabels(metadata),
    cidrs: kept([...new Set(cidrs.map(network))]),
  };
}
