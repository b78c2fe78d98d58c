/** IP protocol numbers (netinet/in.h). */
import { type IpFamily, PROTOCOLS, type Protocol } from '../../api/objects.ts';

export const protocolNumbers: Readonly<Record<Protocol, number>> = { TCP: 6, UDP: 17, SCTP: 132 };

/** The number of ICMP or ICMPv6. */
export const icmpNumbers: Readonly<Record<IpFamily, number>> = { IPv4: 1, IPv6: 58 };

const protocols = new Map(PROTOCOLS.map((protocol) => [protocolNumbers[protocol], protocol]));

/** @returns undefined for a protocol that a Service cannot have. */
export function protocolOf(number: number): Protocol | undefined {
  return protocols.get(number);
}
