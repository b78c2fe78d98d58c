/** Messages of the subsystems of netfilter: linux/netfilter/nfnetlink.h. */
import { type Attribute, encodeAttributes } from './attribute.ts';
import type { NetlinkRequest } from './message.ts';

/** Upper byte of the type of a message. */
export const NFNL_SUBSYS_CTNETLINK = 1 << 8;
export const NFNL_SUBSYS_QUEUE = 3 << 8;
export const NFNL_SUBSYS_IPSET = 6 << 8;
export const NFNL_SUBSYS_NFTABLES = 10 << 8;

/** Length of struct nfgenmsg: u8 family, u8 version, u16 resource in network order. */
export const NFGENMSG_LENGTH = 4;
export const NFPROTO_UNSPEC = 0;

/** The header that the payload of every message starts with. */
export function nfgenmsg(family: number, resource = 0): Buffer {
  return Buffer.from([family, 0, resource >> 8, resource & 0xff]);
}

/** @param type Subsystem | message. @throws RangeError as `encodeAttributes`. */
export function nfnetlinkRequest(
  type: number,
  family: number,
  attributes: readonly Attribute[],
  flags = 0,
): NetlinkRequest {
  return { type, flags, payload: encodeAttributes(attributes, nfgenmsg(family)) };
}
