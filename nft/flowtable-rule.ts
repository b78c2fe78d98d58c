/** The parts of rules that add connections to a flowtable. */

import { u32 } from '../netlink/core/host-order.ts';
import { encodeNumber } from '../netlink/core/network-order.ts';
import {
  bitwise,
  CT_DIRECTION,
  CT_KEY,
  cmp,
  cmpGreater,
  ct,
  flowOffload,
  META_KEY,
  meta,
  toNetworkOrder,
} from '../netlink/nftables/rule.ts';
import type { KeyField, RulePart } from './rule.ts';

/** Bit of IP_CT_ESTABLISHED and IP_CT_ESTABLISHED_REPLY: linux/netfilter/nf_conntrack_common.h. */
const STATE_ESTABLISHED = 2;
/** Registers of an interface name (IFNAMSIZ). */
const NAME_REGISTERS = 4;

/** The names of the interfaces through which the packet arrived and will leave. */
export const INPUT_INTERFACE: KeyField = {
  text: 'iifname',
  registers: NAME_REGISTERS,
  load: (to) => [meta(to, META_KEY.inputName)],
};
export const OUTPUT_INTERFACE: KeyField = {
  text: 'oifname',
  registers: NAME_REGISTERS,
  load: (to) => [meta(to, META_KEY.outputName)],
};

/** Matches packets of connections that have packets in both directions. */
export const IS_ESTABLISHED: RulePart = {
  text: 'ct state established',
  expressions: [
    ct(0, CT_KEY.state),
    bitwise(0, u32(STATE_ESTABLISHED), Buffer.alloc(4)),
    cmp(0, Buffer.alloc(4), true),
  ],
};

/**
 * Matches connections with more packets than this, of both directions. A rule with it enables
 * `net.netfilter.nf_conntrack_acct`. Packets of older connections are not counted.
 */
export function hasMorePacketsThan(packets: number): RulePart {
  return {
    text: `ct packets > ${packets}`,
    expressions: [
      ct(0, CT_KEY.packets),
      toNetworkOrder(0, 8),
      cmpGreater(0, encodeNumber(packets, 8)),
    ],
  };
}

/** Matches connections whose client connected to another port. Use it after a match on the protocol. */
export function originalPortIsNot(port: number): RulePart {
  return {
    text: `ct original proto-dst != ${port}`,
    expressions: [
      ct(0, CT_KEY.destinationPort, CT_DIRECTION.original),
      cmp(0, encodeNumber(port, 2), true),
    ],
  };
}

/** Adds the connection to a flowtable of the table. */
export function addToFlowtable(flowtable: string): RulePart {
  return { text: `flow add @${flowtable}`, expressions: [flowOffload(flowtable)] };
}
