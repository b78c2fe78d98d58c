/** Keys and values as nf_tables has them: fields one after the other, each a multiple of four bytes. */
import ipaddr from 'ipaddr.js';
import { familyOf } from '../api/addresses.ts';
import type { Protocol } from '../api/objects.ts';
import type { Endpoint } from '../endpoints/select.ts';
import { addressBytes, writeAddress } from '../netlink/core/address.ts';
import { writeU32 } from '../netlink/core/host.ts';
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

/** An endpoint, as packets are translated to it. */
export function endpointBytes({ address, port }: Endpoint): Buffer {
  const bytes = addressBytes(address);
  return port === undefined ? bytes : Buffer.concat([bytes, portField(port)]);
}

/**
 * What maps a key and a number to each of these endpoints, counted from `first`. All are in one piece
 * of memory, for loads make 100,000 of them.
 */
export function numberedEndpoints(
  key: Buffer,
  first: number,
  endpoints: readonly Endpoint[],
): { readonly key: Buffer; readonly data: Buffer }[] {
  const [some] = endpoints;
  if (some === undefined) return [];
  const keyLength = key.length + 4;
  const size = keyLength + endpointBytes(some).length;
  const bytes = Buffer.allocUnsafe(size * endpoints.length).fill(0);
  return endpoints.map(({ address, port }, index) => {
    const start = index * size;
    bytes.set(key, start);
    // What `numgen` draws has the byte order of the host.
    writeU32(bytes, first + index, start + key.length);
    const end = writeAddress(bytes, address, start + keyLength);
    if (port !== undefined) bytes.writeUInt16BE(port, end);
    return {
      key: bytes.subarray(start, start + keyLength),
      data: bytes.subarray(start + keyLength, start + size),
    };
  });
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
