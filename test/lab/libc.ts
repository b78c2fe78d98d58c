import { closeSync, openSync } from 'node:fs';
import { getSystemErrorName } from 'node:util';
import ipaddr from 'ipaddr.js';
import koffi from 'koffi';
import { LabError } from './errors.ts';
import type { Family } from './outcomes.ts';

// System calls without a Node.js API. Only worker threads call them, never the main thread.
const libc = koffi.load('libc.so.6');
const libcSetns = libc.func('int setns(int fd, int type)');
const libcSocket = libc.func('int socket(int domain, int type, int protocol)');
const libcBind = libc.func('int bind(int fd, void *address, uint32_t length)');
const libcDup3 = libc.func('int dup3(int from, int to, int flags)');
const libcClose = libc.func('int close(int fd)');
const libcSetsockopt = libc.func(
  'int setsockopt(int fd, int level, int name, void *value, uint32_t length)',
);

const CLONE_NEWNET = 0x40000000;
const AF_INET = 2;
const AF_INET6 = 10;
const SOCK_NONBLOCK = 0o4000;
const CLOEXEC = 0o2000000;
const SOL_IP = 0;
const SOL_SOCKET = 1;
const SO_NO_CHECK = 11;
const SOL_IPV6 = 41;
const IP_TRANSPARENT = 19;
const IPV6_TRANSPARENT = 75;

export const SOCK_DGRAM = 2;
export const SOCK_RAW = 3;

function check(call: string, result: number): number {
  if (result >= 0) return result;
  const name = getSystemErrorName(-koffi.errno());
  throw new LabError('SYSTEM_CALL_FAILED', `${call}: ${name}`);
}

/**
 * Moves the calling thread, and no other, into a network namespace. Use only synchronous calls
 * afterwards: libuv's thread pool stays in the old namespace.
 *
 * @throws LabError `SYSTEM_CALL_FAILED`, or Node.js's error if the namespace does not exist
 */
export function enterNamespace(name: string): void {
  const fd = openSync(`/run/netns/${name}`, 'r');
  try {
    check(`setns to ${name}`, libcSetns(fd, CLONE_NEWNET));
  } finally {
    closeSync(fd);
  }
}

/**
 * Opens a non-blocking socket.
 * @returns its file descriptor
 */
export function openSocket(family: Family, type: number, protocol: number): number {
  const domain = family === 4 ? AF_INET : AF_INET6;
  return check('socket', libcSocket(domain, type | SOCK_NONBLOCK | CLOEXEC, protocol));
}

/** Binds a socket to an address and port. */
export function bindSocket(fd: number, address: string, port = 0): void {
  const sockaddr = socketAddress(address, port);
  check(`bind to ${address}`, libcBind(fd, sockaddr, sockaddr.length));
}

/** A `sockaddr_in` or `sockaddr_in6`. */
export function socketAddress(address: string, port: number): Buffer {
  const bytes = ipaddr.parse(address).toByteArray();
  const isIpv4 = bytes.length === 4;
  const sockaddr = Buffer.alloc(isIpv4 ? 16 : 28);
  sockaddr.writeUInt16LE(isIpv4 ? AF_INET : AF_INET6, 0);
  sockaddr.writeUInt16BE(port, 2);
  sockaddr.set(bytes, isIpv4 ? 4 : 8);
  return sockaddr;
}

/** Replaces the open file of descriptor `to` by that of `from`. */
export function replaceDescriptor(from: number, to: number): void {
  check('dup3', libcDup3(from, to, CLOEXEC));
  closeDescriptor(from);
}

/** Closes a descriptor that no Node.js object owns. */
function closeDescriptor(fd: number): void {
  check('close', libcClose(fd));
}

/**
 * Lets a listener accept connections to any port that a TPROXY rule assigns to it (IP_TRANSPARENT,
 * ip(7)).
 */
export function acceptAnyPort(fd: number, family: Family): void {
  const [level, option] = family === 4 ? [SOL_IP, IP_TRANSPARENT] : [SOL_IPV6, IPV6_TRANSPARENT];
  switchOn(fd, level, option);
}

/** Opens a UDP socket over IPv4 whose datagrams have checksum 0, which stands for none. @returns its file descriptor */
export function openWithoutChecksum(address: string, port: number): number {
  const fd = openSocket(4, SOCK_DGRAM, 0);
  switchOn(fd, SOL_SOCKET, SO_NO_CHECK);
  bindSocket(fd, address, port);
  return fd;
}

function switchOn(fd: number, level: number, option: number): void {
  const value = Buffer.alloc(4);
  value.writeUInt32LE(1);
  check('setsockopt', libcSetsockopt(fd, level, option, value, value.length));
}
