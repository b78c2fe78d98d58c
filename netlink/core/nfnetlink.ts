/** Messages of the nfnetlink subsystems (linux/netfilter/nfnetlink.h). */
import { type Attribute, encodeAttributes } from './attribute.ts';
import type { NetlinkRequest } from './message.ts';

/** Subsystem IDs: the upper byte of the message type. */
export const NFNL_SUBSYS_CTNETLINK = 1 << 8;
export const NFNL_SUBSYS_QUEUE = 3 << 8;
export const NFNL_SUBSYS_ULOG = 4 << 8;
export const NFNL_SUBSYS_IPSET = 6 << 8;
export const NFNL_SUBSYS_NFTABLES = 10 << 8;

/** Length of struct nfgenmsg: u8 family, u8 version, u16 resource ID in network order. */
export const NFGENMSG_LENGTH = 4;
export const NFPROTO_UNSPEC = 0;

/** struct nfgenmsg, the header at the start of every payload. */
export function nfgenmsg(family: number, resource = 0): Buffer {
  return Buffer.from([family, 0, resource >> 8, resource & 0xff]);
}

/** @param type Subsystem ID | message number. @throws RangeError as `encodeAttributes`. */
export function nfnetlinkRequest(
  type: number,
  family: number,
  attributes: readonly Attribute[],
  flags = 0,
): NetlinkRequest {
  return { type, flags, payload: encodeAttributes(attributes, nfgenmsg(family)) };
}
