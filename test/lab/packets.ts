import ipaddr from 'ipaddr.js';
import type { Family } from './outcomes.ts';

/** IP protocol numbers. */
export const IPPROTO = { icmp: 1, tcp: 6, udp: 17, icmpv6: 58, sctp: 132 } as const;

/** Family of an address in text form. */
export function familyOf(address: string): Family {
  return address.includes(':') ? 6 : 4;
}

/** Canonical text of an address from Node.js: not IPv4-mapped, without a zone. */
export function plainAddress(address: string | undefined): string {
  return (address ?? '').replace(/^::ffff:(?=\d+\.)/i, '').replace(/%.*$/, '');
}

/** Text of the 4 or 16 address bytes in a packet. */
export function addressAt(packet: Buffer, offset: number, family: Family): string {
  const bytes = packet.subarray(offset, offset + (family === 4 ? 4 : 16));
  return ipaddr.fromByteArray([...bytes]).toString();
}

/**
 * The packet from a raw socket without its IP header. IPv4 raw sockets deliver the header, IPv6
 * ones do not.
 */
export function transportPart(packet: Buffer, family: Family): Buffer {
  return family === 4 ? packet.subarray(((packet[0] ?? 0) & 0x0f) * 4) : packet;
}

/** A UDP datagram with its checksum, which IPv6 requires and conntrack verifies. */
export function udpDatagram(
  from: { address: string; port: number },
  to: { address: string; port: number },
  payload: Buffer,
): Buffer {
  const datagram = Buffer.alloc(8 + payload.length);
  datagram.writeUInt16BE(from.port, 0);
  datagram.writeUInt16BE(to.port, 2);
  datagram.writeUInt16BE(datagram.length, 4);
  datagram.set(payload, 8);
  const pseudoHeader = Buffer.from([
    ...ipaddr.parse(from.address).toByteArray(),
    ...ipaddr.parse(to.address).toByteArray(),
    0,
    IPPROTO.udp,
    datagram.length >> 8,
    datagram.length & 0xff,
  ]);
  const sum = internetChecksum(Buffer.concat([pseudoHeader, datagram]));
  // 0 would mean "no checksum".
  datagram.writeUInt16BE(sum === 0 ? 0xffff : sum, 6);
  return datagram;
}

function internetChecksum(bytes: Buffer): number {
  let sum = 0;
  for (let at = 0; at < bytes.length; at += 2) {
    sum += ((bytes[at] ?? 0) << 8) | (bytes[at + 1] ?? 0);
  }
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16);
  return ~sum & 0xffff;
}

const CRC32C_TABLE = Uint32Array.from({ length: 256 }, (_, byte) => {
  let crc = byte;
  for (let bit = 0; bit < 8; bit += 1) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
  return crc >>> 0;
});

/** CRC32c (Castagnoli) as used by SCTP. zlib's crc32 uses another polynomial. */
export function crc32c(bytes: Buffer): number {
  let crc = 0xffffffff;
  for (const byte of bytes) crc = (CRC32C_TABLE[(crc ^ byte) & 0xff] ?? 0) ^ (crc >>> 8);
  return ~crc >>> 0;
}
