/** Encodes keys and data for nf_tables: concatenated fields, each padded to a multiple of four bytes. */
import ipaddr from 'ipaddr.js';
import { familyOf } from '../api/addresses.ts';
import type { Protocol } from '../api/objects.ts';
import { addressBytes } from '../netlink/core/address.ts';
import { protocolNumbers } from '../netlink/core/protocol.ts';

/** Fields protocol and port: the protocol in the first byte of its field, the port in network order. */
export function portKey(protocol: Protocol, port: number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeUInt8(protocolNumbers[protocol], 0);
  bytes.writeUInt16BE(port, 4);
  return bytes;
}

/** Field port, in network order. */
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

/** A CIDR that contains only the address: /32 or /128. */
export function hostCidr(address: string): string {
  return `${address}/${addressBytes(address).length * 8}`;
}
