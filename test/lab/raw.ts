import { createSocket, type Socket } from 'node:dgram';
import { bindSocket, openSocket, replaceDescriptor, SOCK_DGRAM, SOCK_RAW } from './libc.ts';
import type { Family } from './outcomes.ts';

/**
 * A raw socket as a dgram socket: 'message' gives one packet (IPv4 with, IPv6 without the IP
 * header) and in `rinfo.address` its sender; `sendRaw` sends.
 *
 * Node refuses a raw descriptor, so it gets a UDP one, whose open file is then replaced. That is
 * sound because libuv tells epoll of a new descriptor only when the loop next polls, and this
 * function returns before. With `address`, only packets to that address are seen, and it is the
 * source of what is sent.
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
  // Raw sockets report ICMP errors of other sockets' flows too; nobody waits for them here.
  socket.on('error', () => undefined);
  return socket;
}

/** Sends a transport packet through a raw socket; losing it is the network's privilege. */
export function sendRaw(socket: Socket, packet: Buffer, protocol: number, address: string): void {
  // IPv6 wants the "port" of a raw destination to be the protocol; IPv4 ignores it.
  socket.send(packet, protocol, address, () => undefined);
}
