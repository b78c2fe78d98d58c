/** Builds and sends IP packets that ordinary sockets cannot send. */
import { fileURLToPath } from 'node:url';
import ipaddr from 'ipaddr.js';
import type { Host } from '../lab/lab.ts';

const SENDER = fileURLToPath(new URL('raw-sender.ts', import.meta.url));

export interface RawPacket {
  readonly source: string;
  readonly destination: string;
  readonly protocol: number;
  readonly payload: Buffer;
  readonly hopLimit?: number;
}

/** A packet with its header. The kernel fills in the IPv4 checksum. */
function ipPacket(packet: RawPacket): Buffer {
  const { protocol, payload, hopLimit = 64 } = packet;
  const [source, destination] = [packet.source, packet.destination].map((address) =>
    Buffer.from(ipaddr.parse(address).toByteArray()),
  ) as [Buffer, Buffer];
  if (source.length === 16) {
    const header = Buffer.alloc(8);
    header[0] = 0x60;
    header.writeUInt16BE(payload.length, 4);
    header[6] = protocol;
    header[7] = hopLimit;
    return Buffer.concat([header, source, destination, payload]);
  }
  const header = Buffer.alloc(12);
  header[0] = 0x45;
  header.writeUInt16BE(20 + payload.length, 2);
  header[8] = hopLimit;
  header[9] = protocol;
  return Buffer.concat([header, source, destination, payload]);
}

export async function send(from: Host, ...packets: readonly RawPacket[]): Promise<void> {
  const destination = packets[0]?.destination ?? '';
  const bytes = packets.map((packet) => ipPacket(packet).toString('hex'));
  await from.exec(process.execPath, [SENDER, destination, ...bytes]);
}
