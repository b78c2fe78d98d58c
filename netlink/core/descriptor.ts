/** Opens netlink sockets: socket options, buffer sizes and multicast groups. */
import { SOCKADDR_NL_LENGTH, SOCKADDR_NL_PORT_ID } from './datagram.ts';
import { NetlinkError } from './error.ts';
import { readU32, u32, writeU16 } from './host-order.ts';
import { libc } from './libc.ts';

/** Netlink protocols (linux/netlink.h). */
export const NETLINK_ROUTE = 0;
export const NETLINK_NETFILTER = 12;
export const NETLINK_GENERIC = 16;

export interface SocketOptions {
  /** Size of the receive buffer in bytes. Default: 4 MiB. */
  readonly receiveBuffer?: number;
  /** Size of the largest batch in bytes. Default: 4 MiB. */
  readonly sendBuffer?: number;
  /** Milliseconds to wait for each reply, or for each part of a dump. Default: 30,000. */
  readonly timeout?: number;
  /**
   * NETLINK_NO_ENOBUFS: drop messages without an error, for sockets where a lost message does no
   * harm.
   */
  readonly ignoreOverruns?: boolean;
}

const AF_NETLINK = 16;
const SOCK_RAW_NONBLOCK_CLOEXEC = 3 | 0x800 | 0x80000;

/** asm-generic/socket.h */
const SOL_SOCKET = 1;
const SO_SNDBUF = 7;
const SO_RCVBUF = 8;
const SO_SNDBUFFORCE = 32;
const SO_RCVBUFFORCE = 33;
/** linux/netlink.h */
const SOL_NETLINK = 270;
const NETLINK_ADD_MEMBERSHIP = 1;
const NETLINK_NO_ENOBUFS = 5;
const NETLINK_CAP_ACK = 10;
const NETLINK_EXT_ACK = 11;

/**
 * Opens a nonblocking netlink socket.
 * @throws NetlinkError
 */
export function openDescriptor(protocol: number, options: SocketOptions): number {
  const { receiveBuffer = 4 << 20, sendBuffer = 4 << 20 } = options;
  const fd = checkResult('socket', libc().socket(AF_NETLINK, SOCK_RAW_NONBLOCK_CLOEXEC, protocol));
  try {
    setBuffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, receiveBuffer);
    setBuffer(fd, SO_SNDBUFFORCE, SO_SNDBUF, sendBuffer);
    // Kernels before 4.12 (extended ack) and 4.3 (capped ack) lack these options. Errors then have
    // less detail.
    setOption(fd, SOL_NETLINK, NETLINK_EXT_ACK, 1);
    setOption(fd, SOL_NETLINK, NETLINK_CAP_ACK, 1);
    if (options.ignoreOverruns === true) {
      checkResult('NETLINK_NO_ENOBUFS', setOption(fd, SOL_NETLINK, NETLINK_NO_ENOBUFS, 1));
    }
    const address = Buffer.alloc(SOCKADDR_NL_LENGTH);
    writeU16(address, AF_NETLINK, 0);
    checkResult('bind', libc().bind(fd, address));
    return fd;
  } catch (error) {
    libc().close(fd);
    throw error;
  }
}

/**
 * The port ID that the kernel assigned: it identifies the socket among the sockets of the same
 * netlink protocol in the network namespace.
 * @throws NetlinkError
 */
export function portIdOf(fd: number): number {
  const address = Buffer.alloc(SOCKADDR_NL_LENGTH);
  checkResult('getsockname', libc().getsockname(fd, address));
  return readU32(address, SOCKADDR_NL_PORT_ID);
}

/**
 * Joins a multicast group. Unlike bind, this also supports group numbers above 32.
 * @throws NetlinkError
 */
export function joinGroup(fd: number, group: number): void {
  const result = setOption(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group);
  checkResult(`join netlink multicast group ${group}`, result);
}

/**
 * Sets the size of a socket buffer. The FORCE option may exceed net.core.rmem_max and wmem_max, but
 * needs CAP_NET_ADMIN; without it the kernel limits the size.
 */
function setBuffer(fd: number, force: number, plain: number, bytes: number): void {
  if (setOption(fd, SOL_SOCKET, force, bytes) < 0) setOption(fd, SOL_SOCKET, plain, bytes);
}

function setOption(fd: number, level: number, name: number, value: number): number {
  return libc().setsockopt(fd, level, name, u32(value));
}

/** @throws NetlinkError if the result of a libc call is an error. */
export function checkResult(operation: string, result: number): number {
  if (result < 0) throw new NetlinkError(operation, -result);
  return result;
}
