/** Parts of rules that only network policy has; `nft/rule.ts` has the others. */
import { u32 } from '../../netlink/core/host.ts';
import { number } from '../../netlink/core/network.ts';
import { protocolNumbers } from '../../netlink/core/protocol.ts';
import {
  bitwise,
  CONNTRACK,
  compare,
  conntrack,
  constant,
  log,
  META,
  meta,
  PAYLOAD,
  payload,
  within,
} from '../../netlink/nftables/rule.ts';
import { type KeyField, type Part, verdict } from '../../nft/rule.ts';
import type { ListNumber } from '../model/terms.ts';

/** IP_CT_ESTABLISHED, IP_CT_RELATED as bits: linux/netfilter/nf_conntrack_common.h. */
const STATE_KNOWN = 2 | 4;
/** linux/in6.h */
const IPPROTO_ICMPV6 = 58;
/** Byte of the hop limit in an IPv6 header. */
const HOP_LIMIT = 7;
/** Router solicitation to redirect (RFC 4861). */
const DISCOVERY = { first: 133, last: 137 };

/** A number of the rule's own, the first part of keys in sets that lists share. */
export function listNumber(list: ListNumber): KeyField {
  return { text: String(list), registers: 1, load: (to) => constant(to, number(list, 4)) };
}

/** Of a connection that was let through, or an ICMP error about one. */
export const IS_KNOWN: Part = {
  text: 'ct state established,related',
  expressions: [
    conntrack(0, CONNTRACK.state),
    bitwise(0, u32(STATE_KNOWN), Buffer.alloc(4)),
    compare(0, Buffer.alloc(4), true),
  ],
};

/**
 * Neighbour discovery. With a hop limit of 255 it comes from the link itself (RFC 4861); one that is
 * routed has less here, and whoever gets it does not heed it.
 */
export const IS_NEIGHBOUR_DISCOVERY: Part = {
  text: `meta l4proto ipv6-icmp ip6 hoplimit 255 icmpv6 type ${DISCOVERY.first}-${DISCOVERY.last}`,
  expressions: [
    meta(0, META.protocol),
    compare(0, Buffer.from([IPPROTO_ICMPV6])),
    payload(0, PAYLOAD.network, HOP_LIMIT, 1),
    compare(0, Buffer.from([255])),
    payload(0, PAYLOAD.transport, 0, 1),
    within(0, Buffer.from([DISCOVERY.first]), Buffer.from([DISCOVERY.last])),
  ],
};

/** A protocol of which no rule names ports. */
export const HAS_NO_PORTS: Part = {
  text: 'meta l4proto != tcp meta l4proto != udp meta l4proto != sctp',
  expressions: [
    meta(0, META.protocol),
    ...Object.values(protocolNumbers).map((each) => compare(0, Buffer.from([each]), true)),
  ],
};

/** To load what is not there ends a rule. */
export const HAS_PORTS: Part = {
  text: 'th dport 0-65535',
  expressions: [
    payload(0, PAYLOAD.transport, 2, 2),
    within(0, Buffer.alloc(2), Buffer.from([0xff, 0xff])),
  ],
};

export const RETURN: Part = verdict({ kind: 'return' });

export function jumpTo(chain: string): Part {
  return verdict({ kind: 'jump', chain });
}

/** Hands the packet to whoever listens to a group (0 to 65535) of nflog. */
export function logTo(group: number, prefix: string): Part {
  return { text: `log prefix "${prefix}" group ${group}`, expressions: [log(group, prefix)] };
}
