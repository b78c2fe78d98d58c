/**
 * Answers on every port without one socket per port.
 *
 * - TCP: a TPROXY rule in the host's mangle table gives each new connection to one listener. A
 * REDIRECT rule would lose connections on Linux 6.1. There the masquerading node may choose one
 * source port for connections to two ports of a host. The second then meets the socket of the first
 * and is never answered.
 * - UDP: a raw socket receives each datagram with its ports and answers from the same port. The
 * kernel has no UDP socket there and also sends a port unreachable, which the host's filter table
 * drops.
 * - SCTP: raw sockets as always, see sctp.ts.
 */
import type { Socket as UdpSocket } from 'node:dgram';
import { once } from 'node:events';
import { createServer, type Server } from 'node:net';
import { LabError } from './errors.ts';
import { acceptAnyPort } from './libc.ts';
import type { HostIdentity } from './messages.ts';
import type { Family, ServerReply } from './outcomes.ts';
import { IPPROTO, plainAddress, transportPart, udpDatagram } from './packets.ts';
import { openRaw, sendRaw } from './raw.ts';
import { serveSctp, stopServingSctp } from './sctp.ts';
import { greet, servesUdp, udpAnswer } from './servers.ts';

const FAMILIES = [4, 6] as const;
/** Offset of the checksum in a UDP header. Answers to a datagram without checksum have none either. */
const CHECKSUM = 6;
let servers: Server[] = [];
let sockets: UdpSocket[] = [];

/**
 * Opens the sockets.
 * @returns the ports of the TCP listeners, by family
 */
export async function serveEveryPort(host: HostIdentity): Promise<Record<Family, number>> {
  const [ipv4, ipv6] = await Promise.all(FAMILIES.map((family) => serveTcp(host.name, family)));
  sockets = FAMILIES.flatMap((family) =>
    host.addresses[family].map((address) => serveUdp(host.name, family, address)),
  );
  serveSctp(host, 'every');
  return { 4: ipv4 ?? 0, 6: ipv6 ?? 0 };
}

/** Stops answering. Accepted connections stay open. */
export function stopServingEveryPort(): void {
  for (const server of servers) server.close();
  for (const socket of sockets) socket.close();
  servers = [];
  sockets = [];
  stopServingSctp('every');
}

async function serveTcp(host: string, family: Family): Promise<number> {
  const server = createServer((socket) => {
    greet(socket, {
      host,
      protocol: 'TCP',
      localAddress: plainAddress(socket.localAddress),
      localPort: socket.localPort ?? 0,
      remoteAddress: plainAddress(socket.remoteAddress),
      remotePort: socket.remotePort ?? 0,
    });
  });
  servers.push(server);
  server.listen({ port: 0, host: family === 4 ? '0.0.0.0' : '::', ipv6Only: true, backlog: 512 });
  await once(server, 'listening');
  acceptAnyPort(descriptorOf(server), family);
  const bound = server.address();
  if (bound === null || typeof bound === 'string') {
    throw new LabError('SYSTEM_CALL_FAILED', 'the listener has no port');
  }
  return bound.port;
}

/**
 * Node.js has no public API for the file descriptor of a socket. This internal property has always
 * existed.
 */
function descriptorOf(server: Server): number {
  return (server as unknown as { readonly _handle: { readonly fd: number } })._handle.fd;
}

function serveUdp(host: string, family: Family, localAddress: string): UdpSocket {
  const socket = openRaw(family, IPPROTO.udp, localAddress);
  socket.on('message', (packet: Buffer, { address }) => {
    const datagram = transportPart(packet, family);
    if (datagram.length < 8) return;
    const remotePort = datagram.readUInt16BE(0);
    const localPort = datagram.readUInt16BE(2);
    if (servesUdp(localPort)) return;
    const remoteAddress = plainAddress(address);
    const reply: ServerReply = {
      host,
      protocol: 'UDP',
      localAddress,
      localPort,
      remoteAddress,
      remotePort,
    };
    const answer = udpAnswer(reply, datagram.subarray(8));
    if (!answer) return;
    const from = { address: localAddress, port: localPort };
    const to = { address: remoteAddress, port: remotePort };
    const answerPacket = udpDatagram(from, to, answer);
    if (datagram.readUInt16BE(CHECKSUM) === 0) answerPacket.writeUInt16BE(0, CHECKSUM);
    sendRaw(socket, answerPacket, IPPROTO.udp, remoteAddress);
  });
  return socket;
}
