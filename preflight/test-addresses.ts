/** Chooses addresses for test packets from the objects of the cluster. */
import ipaddr from 'ipaddr.js';
import { cidrContains, familyOf } from '../api/addresses.ts';
import { IP_FAMILIES, type IpFamily } from '../api/objects.ts';
import type { NodeOptions } from '../config/settings.ts';
import type { ClusterObjects } from './cluster.ts';
import type { TestAddresses } from './foreign-rules.ts';

/**
 * Addresses of each family in use. Endpoints outside of the pod CIDRs are not chosen: they may be on the host network,
 * and CNIs masquerade connections from pods to hosts.
 */
export function testAddresses(
  nodeName: string,
  { clusterCidr }: Pick<NodeOptions, 'clusterCidr'>,
  { node, slices }: ClusterObjects,
): TestAddresses[] {
  const endpoints = slices.flatMap((slice) => slice.endpoints);
  return IP_FAMILIES.map((family) => {
    const local = ofFamily(node?.podCIDRs ?? [], family);
    const cluster = ofFamily(clusterCidr, family);
    const pods = [...local, ...cluster];
    const isPod = (address: string) => pods.some((cidr) => cidrContains(cidr, address));
    const isLocal = (address: string) => local.some((cidr) => cidrContains(cidr, address));
    const ofPods = endpoints.filter(({ address }) => isPod(address));
    const here = ofPods.find((each) => each.nodeName === nodeName)?.address;
    const elsewhere = ofPods.find((each) => each.nodeName !== nodeName)?.address;
    const pod = here ?? addressesIn(local[0] ?? cluster[0])[0];
    const candidates = [elsewhere, ...addressesIn(cluster[0]), ...addressesIn(local[0])].filter(
      (address) => address !== undefined && address !== pod,
    );
    const endpoint = candidates.find((address) => address && !isLocal(address)) ?? candidates[0];
    return { pod, endpoint, node: ofFamily(node?.addresses ?? [], family)[0] };
  });
}

function ofFamily(list: readonly string[], family: IpFamily): string[] {
  return list.filter((each) => familyOf(each) === family);
}

/** Two addresses of a network: one at its beginning and one at its end. */
function addressesIn(cidr: string | undefined): string[] {
  if (cidr === undefined) return [];
  const [network = '', length = ''] = cidr.split('/');
  const bytes = ipaddr.parse(network).toByteArray();
  const bits = Number(length);
  if (bits > 8 * bytes.length - 3) return [];
  const last = bytes.map(
    (byte, index) => byte | (0xff >> Math.min(Math.max(bits - 8 * index, 0), 8)),
  );
  const shift = (from: readonly number[], by: number) => {
    const shifted = [...from];
    shifted[shifted.length - 1] = (shifted.at(-1) ?? 0) + by;
    return ipaddr.fromByteArray(shifted).toString();
  };
  return [shift(bytes, 2), shift(last, -2)];
}
