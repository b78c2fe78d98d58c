import type { Protocol } from '../../api/objects.ts';

/** Numbers of IP protocols (netinet/in.h). */
export const protocolNumbers: Readonly<Record<Protocol, number>> = { TCP: 6, UDP: 17, SCTP: 132 };

const protocols = new Map<number, Protocol>();
for (const protocol of ['TCP', 'UDP', 'SCTP'] as const) {
  protocols.set(protocolNumbers[protocol], protocol);
}

/** @returns undefined for a protocol that Services cannot have. */
export function protocolOf(number: number): Protocol | undefined {
  return protocols.get(number);
}
