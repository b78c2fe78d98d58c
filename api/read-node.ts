/** Reads Nodes. */
import { canonicalAddress } from './addresses.ts';
import type { Node } from './objects.ts';
import { readTrimmedCidr, requireOnePerFamily } from './read-address.ts';
import {
  child,
  isMissing,
  type ObjectField,
  readList,
  readOptionalString,
  readString,
} from './read-field.ts';
import { readMetadata } from './read-metadata.ts';
import { readLabels } from './read-selector.ts';

/**
 * Reads a Node of `v1`.
 * @throws InvalidObject for the first field that cannot be read.
 */
export function readNode(raw: unknown): Node {
  const { root, metadata, key, name } = readMetadata('Node', raw);
  return {
    kind: 'Node',
    key,
    name,
    labels: readLabels(metadata),
    zone: readOptionalString(child(child(metadata, 'labels'), 'topology.kubernetes.io/zone')),
    podCIDRs: readPodCidrs(child(root, 'spec')),
    addresses: readAddresses(child(child(root, 'status'), 'addresses')),
    deleting: !isMissing(child(metadata, 'deletionTimestamp')),
    taints: readList(child(child(root, 'spec'), 'taints')).map((taint) =>
      readString(child(taint, 'key')),
    ),
  };
}

function readPodCidrs(spec: ObjectField): string[] {
  const list = child(spec, 'podCIDRs');
  const cidrs = readList(list).map(readTrimmedCidr);
  requireOnePerFamily(list, cidrs);
  const single = child(spec, 'podCIDR');
  return cidrs.length === 0 && readOptionalString(single) !== undefined
    ? [readTrimmedCidr(single)]
    : cidrs;
}

/**
 * Reads the node's addresses. The API server accepts any text as an address, so entries that are
 * not IP addresses are skipped, as in kube-proxy.
 */
function readAddresses(list: ObjectField): string[] {
  const addresses = readList(list).map((field) => ({
    type: readOptionalString(child(field, 'type')),
    ip: canonicalAddress(readString(child(field, 'address'))),
  }));
  const ofType = (type: string) =>
    addresses.flatMap((entry) => (entry.type === type && entry.ip !== undefined ? [entry.ip] : []));
  return [...new Set([...ofType('InternalIP'), ...ofType('ExternalIP')])];
}
