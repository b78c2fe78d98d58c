import { createSocket, type Socket } from 'node:dgram';
import { bindSocket, openSocket, replaceDescriptor, SOCK_DGRAM, SOCK_RAW } from './libc.ts';
import type { Family } from './outcomes.ts';

/**
 * A raw socket as a dgram socket. 'message' delivers one packet (IPv4 with, IPv6 without the IP
 * header) with its sender in `rinfo.address`; `sendRaw` sends.
 *
 * Node.js refuses raw descriptors, so it gets a UDP descriptor whose open file is then replaced.
 * This is safe because libuv registers a new descriptor with epoll at the next poll, after this
 * function has returned. With `address`, only packets to that address are received, and it is the
 * source address of sent packets.
 *
 * @throws LabError `SYSTEM_CALL_FAILED`
 */
export function openRaw(family: Family, protocol: number, address?: string): Socket {
  const raw = openSocket(family, SOCK_RAW, protocol);
  if (address !== undefined) bindSocket(raw, address);
  const fd = openSocket(family, SOCK_DGRAM, 0);
  const socket = createSocket(family === 4 ? 'udp4' : 'udp6');
  socket.bind({ fd });
  replaceDescriptor(raw, fd);
  // Raw sockets also report ICMP errors of other sockets' flows, which are not needed here.
  socket.on('error', () => undefined);
  return socket;
}

/** Sends a transport packet through a raw socket. A send failure is treated as packet loss. */
export function sendRaw(socket: Socket, packet: Buffer, protocol: number, address: string): void {
  // For raw IPv6 sockets the "port" of the destination must be the protocol; IPv4 ignores it.
  socket.send(packet, protocol, address, () => undefined);
}
