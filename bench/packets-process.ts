/**
 * Runs in the client's namespace: times new connections, and packets of a connection that conntrack
 * tracks.
 */
import koffi from 'koffi';
import { serve } from './jobs.ts';
import type { ConnectTarget, LatenciesByRound } from './packets.ts';

export type PacketJobs = typeof jobs;

const AF_INET = 2;
const SOCK_STREAM = 1;
const SOCK_RAW = 3;
const IPPROTO_ICMP = 1;
const ECHO_REQUEST = 8;
const IDENTIFIER = 4711;

const libc = koffi.load(null);
const socket = libc.func('int socket(int domain, int type, int protocol)');
const connect = libc.func('int connect(int fd, const void *address, uint32_t length)');
const send = libc.func('int64_t send(int fd, const void *bytes, size_t length, int flags)');
const recv = libc.func('int64_t recv(int fd, _Out_ void *bytes, size_t length, int flags)');
const close = libc.func('int close(int fd)');
const reply = Buffer.alloc(128);

interface ProbeCount {
  readonly rounds: number;
  /** Repetitions for each target in each round. */
  readonly count: number;
}

const jobs = {
  /** Microseconds of connect() to each target, by round. */
  async connect({
    targets,
    ...count
  }: ProbeCount & { readonly targets: readonly ConnectTarget[] }) {
    const each = targets.map(socketAddress).map((sockaddr) => () => timeConnect(sockaddr));
    return measureRounds(each, count);
  },
  /** Microseconds of an echo request and its reply within one conntrack entry, by round. */
  async echo({ address, ...count }: ProbeCount & { readonly address: string }) {
    const fd = Number(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
    const sockaddr = socketAddress({ address, port: 0 });
    if (Number(connect(fd, sockaddr, sockaddr.length)) !== 0) throw new Error('connect failed');
    const request = Buffer.alloc(16);
    request.writeUInt8(ECHO_REQUEST, 0);
    request.writeUInt16BE(IDENTIFIER, 4);
    request.writeUInt16BE(checksum(request), 2);
    return measureRounds([() => timeEcho(fd, request)], count)[0] ?? [];
  },
};

/** The first round warms up and is discarded. */
function measureRounds(
  each: readonly (() => number)[],
  { rounds, count }: ProbeCount,
): LatenciesByRound[] {
  const timed: number[][][] = each.map(() => []);
  for (let round = 0; round <= rounds; round++) {
    each.forEach((time, index) => {
      const times = Array.from({ length: count }, time);
      if (round > 0) timed[index]?.push(times.map((each) => Math.round(each * 100) / 100));
    });
  }
  return timed;
}

/**
 * Microseconds of one connect(). The kernel delivers the SYN through client, node and endpoint, and
 * the endpoint's reset back, within the call.
 */
function timeConnect(sockaddr: Buffer): number {
  const fd = Number(socket(AF_INET, SOCK_STREAM, 0));
  const started = performance.now();
  const result = Number(connect(fd, sockaddr, sockaddr.length));
  const ended = performance.now();
  close(fd);
  // The number of resets that the endpoints sent proves that the endpoint refused (packets.ts). errno is unreliable here: the
  // garbage collector may have changed it.
  if (result !== -1) throw new Error('connect() succeeded on a port that must be closed');
  return (ended - started) * 1000;
}

/** Microseconds. The kernel processes the packet and its reply within the send call. */
function timeEcho(fd: number, request: Buffer): number {
  const started = performance.now();
  const sent = Number(send(fd, request, request.length, 0));
  const received = Number(recv(fd, reply, reply.length, 0));
  const ended = performance.now();
  if (sent !== request.length || received <= 0) throw new Error('no echo');
  return (ended - started) * 1000;
}

function checksum(bytes: Buffer): number {
  let sum = 0;
  for (let at = 0; at < bytes.length; at += 2) sum += bytes.readUInt16BE(at);
  return ~((sum & 0xffff) + (sum >>> 16)) & 0xffff;
}

function socketAddress({ address, port }: ConnectTarget): Buffer {
  const sockaddr = Buffer.alloc(16);
  sockaddr.writeUInt16LE(AF_INET, 0);
  sockaddr.writeUInt16BE(port, 2);
  sockaddr.set(address.split('.').map(Number), 4);
  return sockaddr;
}

await serve(jobs);
