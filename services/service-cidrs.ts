/** Which CIDRs of cluster IPs can be used: packets to their addresses are dropped unless a Service has the address. */
import { cidrContains } from '../api/addresses.ts';

/** Addresses that are no cluster IPs. */
export interface OtherAddresses {
  readonly nodeAddresses: readonly string[];
  readonly podCidrs: readonly string[];
}

/** Addresses of nodes and pods in a CIDR of cluster IPs, such as `node address 192.0.2.1`; sorted as given. */
export function otherAddressesIn(
  cidr: string,
  { nodeAddresses, podCidrs }: OtherAddresses,
): string[] {
  return [
    ...nodeAddresses
      .filter((address) => cidrContains(cidr, address))
      .map((address) => `node address ${address}`),
    ...podCidrs.filter((other) => cidrsOverlap(cidr, other)).map((other) => `pod CIDR ${other}`),
  ];
}

function cidrsOverlap(a: string, b: string): boolean {
  const [first = '', second = ''] = [a, b].map((cidr) => cidr.split('/')[0]);
  return cidrContains(a, second) || cidrContains(b, first);
}
