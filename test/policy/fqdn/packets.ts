/** Builds packets as an NFQUEUE delivers them, without checksums. */
import { addressBytes } from '../../../netlink/core/address.ts';
import type { SocketAddress } from '../../../policy/fqdn/packet.ts';

export interface Flow {
  readonly from: string;
  readonly fromPort: number;
  readonly to: string;
  readonly toPort: number;
}

/** The flow in the reply direction. */
export function reversed({ from, fromPort, to, toPort }: Flow): Flow {
  return { from: to, fromPort: toPort, to: from, toPort: fromPort };
}

export function endpoint(address: string, port: number): SocketAddress {
  return addressBytes(address).toString('latin1') + String.fromCharCode(port >> 8, port & 0xff);
}

export function udpPacket(flow: Flow, data: Buffer): Buffer {
  const header = Buffer.alloc(8);
  header.writeUInt16BE(flow.fromPort, 0);
  header.writeUInt16BE(flow.toPort, 2);
  header.writeUInt16BE(8 + data.length, 4);
  return ipPacket(flow, 17, Buffer.concat([header, data]));
}

export function tcpPacket(
  flow: Flow,
  sequence: number,
  data: Buffer,
  flags: { readonly syn?: boolean; readonly rst?: boolean } = {},
): Buffer {
  // With 12 bytes of options.
  const header = Buffer.alloc(32, 1);
  header.writeUInt16BE(flow.fromPort, 0);
  header.writeUInt16BE(flow.toPort, 2);
  header.writeUInt32BE(sequence >>> 0, 4);
  header.writeUInt8(8 << 4, 12);
  header.writeUInt8(0x10 | (flags.syn ? 0x02 : 0) | (flags.rst ? 0x04 : 0), 13);
  return ipPacket(flow, 6, Buffer.concat([header, data]));
}

export function ipPacket({ from, to }: Flow, protocol: number, data: Buffer): Buffer {
  const addresses = [addressBytes(from), addressBytes(to)];
  if (from.includes(':')) {
    const header = Buffer.alloc(8);
    header.writeUInt8(0x60, 0);
    header.writeUInt16BE(data.length, 4);
    header.writeUInt8(protocol, 6);
    return Buffer.concat([header, ...addresses, data]);
  }
  const header = Buffer.alloc(12);
  header.writeUInt8(0x45, 0);
  header.writeUInt16BE(20 + data.length, 2);
  header.writeUInt8(protocol, 9);
  return Buffer.concat([header, ...addresses, data]);
}

/** A message with its length prefix, as in a TCP stream. */
export function framed(message: Buffer): Buffer {
  const length = Buffer.alloc(2);
  length.writeUInt16BE(message.length);
  return Buffer.concat([length, message]);
}
