/** Reads the addresses and ports of a logged packet. Pure. */
import type { IpFamily } from '../../api/objects.ts';
import { addressFormatter } from '../../netlink/core/address.ts';

/** Addresses and ports of a packet. */
export interface PacketHeader {
  readonly family: IpFamily;
  /** IP protocol number. */
  readonly protocol: number;
  readonly source: string;
  readonly destination: string;
  /** 0 for protocols without ports, and for later fragments. */
  readonly sourcePort: number;
  readonly destinationPort: number;
}

/** TCP, UDP, DCCP, SCTP, UDP-Lite: source and destination port are the first four bytes. */
const WITH_PORTS = new Set([6, 17, 33, 132, 136]);
/** Hop-by-hop, routing, destination options; a length field counts units of 8 bytes after the first 8. */
const IPV6_EXTENSIONS = new Set([0, 43, 60]);
const IPV6_FRAGMENT = 44;

/** @returns undefined for bytes that are no IP packet or are cut before the end of the IP header. */
export function readPacketHeader(bytes: Buffer): PacketHeader | undefined {
  const version = (bytes[0] ?? 0) >> 4;
  if (version === 4 && bytes.length >= 20) return readIpv4(bytes);
  if (version === 6 && bytes.length >= 40) return readIpv6(bytes);
  return undefined;
}

function readIpv4(bytes: Buffer): PacketHeader {
  const protocol = bytes.readUInt8(9);
  const isLaterFragment = (bytes.readUInt16BE(6) & 0x1fff) !== 0;
  const format = addressFormatter();
  return {
    family: 'IPv4',
    protocol,
    source: format(bytes, 12, 16),
    destination: format(bytes, 16, 20),
    ...readPorts(bytes, isLaterFragment ? bytes.length : (bytes.readUInt8(0) & 15) * 4, protocol),
  };
}

function readIpv6(bytes: Buffer): PacketHeader {
  let protocol = bytes.readUInt8(6);
  let offset = 40;
  while (offset + 8 <= bytes.length) {
    if (IPV6_EXTENSIONS.has(protocol)) {
      protocol = bytes.readUInt8(offset);
      offset += 8 + bytes.readUInt8(offset + 1) * 8;
    } else if (protocol === IPV6_FRAGMENT) {
      protocol = bytes.readUInt8(offset);
      offset = bytes.readUInt16BE(offset + 2) >> 3 === 0 ? offset + 8 : bytes.length;
    } else break;
  }
  const format = addressFormatter();
  return {
    family: 'IPv6',
    protocol,
    source: format(bytes, 8, 24),
    destination: format(bytes, 24, 40),
    ...readPorts(bytes, offset, protocol),
  };
}

function readPorts(bytes: Buffer, offset: number, protocol: number) {
  if (!WITH_PORTS.has(protocol) || offset + 4 > bytes.length) {
    return { sourcePort: 0, destinationPort: 0 };
  }
  return {
    sourcePort: bytes.readUInt16BE(offset),
    destinationPort: bytes.readUInt16BE(offset + 2),
  };
}
