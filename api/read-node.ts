/** Nodes of the API group `v1`. */
import { canonicalAddress } from './addresses.ts';
import type { Node } from './objects.ts';
import { onePerFamily, trimmedCidr } from './read-address.ts';
import { child, type Field, isMissing, items, optionalText, text } from './read-field.ts';
import { readMetadata } from './read-metadata.ts';
import { readLabels } from './read-selector.ts';

/**
 * A Node of the API group `v1`.
 * @throws InvalidObject for the first field that cannot be read.
 */
export function readNode(raw: unknown): Node {
  const { root, metadata, key, name } = readMetadata('Node', raw);
  return {
    kind: 'Node',
    key,
    name,
    labels: readLabels(metadata),
    zone: optionalText(child(child(metadata, 'labels'), 'topology.kubernetes.io/zone')),
    podCIDRs: readPodCidrs(child(root, 'spec')),
    addresses: readAddresses(child(child(root, 'status'), 'addresses')),
    deleting: !isMissing(child(metadata, 'deletionTimestamp')),
    taints: items(child(child(root, 'spec'), 'taints')).map((taint) => text(child(taint, 'key'))),
  };
}

function readPodCidrs(spec: Field): string[] {
  const list = child(spec, 'podCIDRs');
  const cidrs = items(list).map(trimmedCidr);
  onePerFamily(list, cidrs);
  const single = child(spec, 'podCIDR');
  return cidrs.length === 0 && optionalText(single) !== undefined ? [trimmedCidr(single)] : cidrs;
}

/** The API takes any text for an address; what is none is left out, as kube-proxy does. */
function readAddresses(list: Field): string[] {
  const addresses = items(list).map((field) => ({
    type: optionalText(child(field, 'type')),
    ip: canonicalAddress(text(child(field, 'address'))),
  }));
  const ofType = (type: string) =>
    addresses.flatMap((entry) => (entry.type === type && entry.ip !== undefined ? [entry.ip] : []));
  return [...new Set([...ofType('InternalIP'), ...ofType('ExternalIP')])];
}
