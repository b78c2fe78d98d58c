/** Rule parts that only network policy uses; `nft/rule.ts` contains the common rule parts. */
import { u32 } from '../../netlink/core/host-order.ts';
import { encodeNumber } from '../../netlink/core/network-order.ts';
import { protocolNumbers } from '../../netlink/core/protocol.ts';
import {
  bitwise,
  CT_DIRECTION,
  CT_KEY,
  cmp,
  ct,
  fibWayBack,
  immediate,
  log,
  META_KEY,
  meta,
  PAYLOAD_BASE,
  payload,
  queueTarget,
  range,
} from '../../netlink/nftables/rule.ts';
import { type KeyField, type RulePart, verdict } from '../../nft/rule.ts';
import type { ListId } from '../model/terms.ts';

/** IP_CT_ESTABLISHED, IP_CT_RELATED as bits: linux/netfilter/nf_conntrack_common.h. */
const ESTABLISHED_OR_RELATED = 2 | 4;
/** linux/in6.h */
const IPPROTO_ICMPV6 = 58;
/** Offset of the hop limit in an IPv6 header. */
const HOP_LIMIT = 7;
/** ICMPv6 types from router solicitation to redirect (RFC 4861). */
const DISCOVERY = { first: 133, last: 137 };

/** A list id as a constant: the first field of keys in sets that all lists share. */
export function listId(list: ListId): KeyField {
  return { text: String(list), registers: 1, load: (to) => [immediate(to, encodeNumber(list, 4))] };
}

/** Packets of an accepted connection, and packets related to it, such as ICMP errors. */
export const IS_ESTABLISHED: RulePart = {
  text: 'ct state established,related',
  expressions: [
    ct(0, CT_KEY.state),
    bitwise(0, u32(ESTABLISHED_OR_RELATED), Buffer.alloc(4)),
    cmp(0, Buffer.alloc(4), true),
  ],
};

/**
 * Neighbour discovery. A hop limit of 255 proves that the packet was sent on the same link (RFC
 * 4861). A forwarded packet has a lower hop limit, and receivers ignore it.
 */
export const IS_NEIGHBOUR_DISCOVERY: RulePart = {
  text: `meta l4proto ipv6-icmp ip6 hoplimit 255 icmpv6 type ${DISCOVERY.first}-${DISCOVERY.last}`,
  expressions: [
    meta(0, META_KEY.protocol),
    cmp(0, Buffer.from([IPPROTO_ICMPV6])),
    payload(0, PAYLOAD_BASE.network, HOP_LIMIT, 1),
    cmp(0, Buffer.from([255])),
    payload(0, PAYLOAD_BASE.transport, 0, 1),
    range(0, Buffer.from([DISCOVERY.first]), Buffer.from([DISCOVERY.last])),
  ],
};

/** Protocols that policy rules cannot select by port. */
export const HAS_NO_PORTS: RulePart = {
  text: 'meta l4proto != tcp meta l4proto != udp meta l4proto != sctp',
  expressions: [
    meta(0, META_KEY.protocol),
    ...Object.values(protocolNumbers).map((each) => cmp(0, Buffer.from([each]), true)),
  ],
};

/** Matches if the packet has a destination port: nf_tables ends a rule whose payload load fails. */
export const HAS_PORTS: RulePart = {
  text: 'th dport 0-65535',
  expressions: [
    payload(0, PAYLOAD_BASE.transport, 2, 2),
    range(0, Buffer.alloc(2), Buffer.from([0xff, 0xff])),
  ],
};

/** Matches packets in one direction of their connection. */
export function isDirection(direction: keyof typeof CT_DIRECTION): RulePart {
  return {
    text: `ct direction ${direction}`,
    expressions: [ct(0, CT_KEY.direction), cmp(0, Buffer.from([CT_DIRECTION[direction]]))],
  };
}

/** Matches a port in a key field. */
export function portIs(field: KeyField, port: number): RulePart {
  return {
    text: `${field.text} ${port}`,
    expressions: [...field.load(0), cmp(0, encodeNumber(port, 2))],
  };
}

/** Matches packets that arrive on the interface of the route back to their source; see `fibWayBack`. */
export const IS_ON_WAY_BACK: RulePart = {
  text: 'fib saddr . mark . iif oif != 0',
  expressions: [fibWayBack(0), cmp(0, Buffer.alloc(4), true)],
};

/** @param queue NFQUEUE number, 0 to 65535. */
export function sendToQueue(queue: number): RulePart {
  return { text: `queue flags bypass to ${queue}`, expressions: [queueTarget(queue)] };
}

export function jumpTo(chain: string): RulePart {
  return verdict({ kind: 'jump', chain });
}

/** @param group NFLOG group, 0 to 65535. */
export function logToGroup(group: number, prefix: string): RulePart {
  return { text: `log prefix "${prefix}" group ${group}`, expressions: [log(group, prefix)] };
}
