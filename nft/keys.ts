/** Keys and values as nf_tables has them: fields one after the other, each a multiple of four bytes. */
import ipaddr from 'ipaddr.js';
import { familyOf } from '../api/addresses.ts';
import type { Protocol } from '../api/objects.ts';
import { addressBytes } from '../netlink/core/address.ts';
import { protocolNumbers } from '../netlink/core/protocol.ts';

/** @param port 0 to 65535; the port is in network order, the protocol in the first of its bytes. */
export function portKey(protocol: Protocol, port: number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeUInt8(protocolNumbers[protocol], 0);
  bytes.writeUInt16BE(port, 4);
  return bytes;
}

/** A port alone. */
export function portField(port: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt16BE(port, 0);
  return bytes;
}

/** First and last address of a canonical CIDR. */
export function cidrBounds(cidr: string): [first: Buffer, last: Buffer] {
  const kind = familyOf(cidr) === 'IPv4' ? ipaddr.IPv4 : ipaddr.IPv6;
  return [
    Buffer.from(kind.networkAddressFromCIDR(cidr).toByteArray()),
    Buffer.from(kind.broadcastAddressFromCIDR(cidr).toByteArray()),
  ];
}

/** An address as a CIDR of its own. */
export function hostCidr(address: string): string {
  return `${address}/${addressBytes(address).length * 8}`;
}
