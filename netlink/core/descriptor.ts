/** Opening a netlink socket: its options, buffers and groups. */
import { SOCKADDR_NL_LENGTH, SOCKADDR_NL_PORT_ID } from './datagram.ts';
import { NetlinkError } from './error.ts';
import { readU32, u32, writeU16 } from './host-order.ts';
import { libc } from './libc.ts';

/** Protocols of linux/netlink.h. */
export const NETLINK_ROUTE = 0;
export const NETLINK_NETFILTER = 12;
export const NETLINK_GENERIC = 16;

export interface SocketOptions {
  /** Bytes the kernel may queue for this socket. */
  readonly receiveBuffer?: number;
  /** Bytes of the biggest batch. */
  readonly sendBuffer?: number;
  /** Milliseconds that one request, batch or part of a dump may take. */
  readonly timeout?: number;
  /** NETLINK_NO_ENOBUFS: lose messages silently; for those to whom a loss means nothing. */
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
 * Opens a socket that does not block.
 * @throws NetlinkError
 */
export function openDescriptor(protocol: number, options: SocketOptions): number {
  const { receiveBuffer = 4 << 20, sendBuffer = 4 << 20 } = options;
  const fd = checkResult('socket', libc().socket(AF_NETLINK, SOCK_RAW_NONBLOCK_CLOEXEC, protocol));
  try {
    setBuffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, receiveBuffer);
    setBuffer(fd, SO_SNDBUFFORCE, SO_SNDBUF, sendBuffer);
    // Kernels before 4.12 and 4.3 lack these; errors are then less telling.
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
 * The port that the kernel gave a socket: its address among the netlink sockets of its namespace.
 * @throws NetlinkError
 */
export function portIdOf(fd: number): number {
  const address = Buffer.alloc(SOCKADDR_NL_LENGTH);
  checkResult('getsockname', libc().getsockname(fd, address));
  return readU32(address, SOCKADDR_NL_PORT_ID);
}

/**
 * Joins a multicast group, which may have a number beyond the 32 that bind knows.
 * @throws NetlinkError
 */
export function joinGroup(fd: number, group: number): void {
  const result = setOption(fd, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group);
  checkResult(`netlink group ${group}`, result);
}

/** FORCE goes beyond net.core.rmem_max and wmem_max, but needs CAP_NET_ADMIN. */
function setBuffer(fd: number, force: number, plain: number, bytes: number): void {
  if (setOption(fd, SOL_SOCKET, force, bytes) < 0) setOption(fd, SOL_SOCKET, plain, bytes);
}

function setOption(fd: number, level: number, name: number, value: number): number {
  return libc().setsockopt(fd, level, name, u32(value));
}

/** @throws NetlinkError when a result of libc is an error. */
export function checkResult(operation: string, result: number): number {
  if (result < 0) throw new NetlinkError(operation, -result);
  return result;
}
