/** Reads ServiceCIDRs. */
import { trimmedCopy } from './collections.ts';
import type { ServiceCidr } from './objects.ts';
import { readTrimmedCidr, requireOnePerFamily } from './read-address.ts';
import { child, readList, readOptionalString } from './read-field.ts';
import { readMetadata } from './read-metadata.ts';

/**
 * Reads a ServiceCIDR of `networking.k8s.io/v1`. As in kube-proxy, neither conditions nor a deletion that waits for
 * finalizers matter: its cluster IPs may still be in use.
 * @throws InvalidObject for the first field that cannot be read.
 */
export function readServiceCidr(raw: unknown): ServiceCidr {
  const { root, metadata, key, name } = readMetadata('ServiceCIDR', raw);
  const list = child(child(root, 'spec'), 'cidrs');
  const cidrs = readList(list).map(readTrimmedCidr);
  requireOnePerFamily(list, cidrs);
  const uid = readOptionalString(child(metadata, 'uid')) ?? '';
  return { kind: 'ServiceCIDR', key, name, uid, cidrs: trimmedCopy(cidrs) };
}
