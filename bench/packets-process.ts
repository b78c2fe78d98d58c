/**
 * Runs in the namespace of clients or endpoints: times new connections, packets of a connection that conntrack tracks, and
 * UDP packets.
 */
import koffi from 'koffi';
import { serve } from './jobs.ts';
import type { ConnectTarget, LatenciesByRound } from './packets.ts';

export type PacketJobs = typeof jobs;

const AF_INET = 2;
const SOCK_STREAM = 1;
const SOCK_DGRAM = 2;
const SOCK_RAW = 3;
const IPPROTO_ICMP = 1;
const ECHO_REQUEST = 8;
const IDENTIFIER = 4711;

const libc = koffi.load(null);
const socket = libc.func('int socket(int domain, int type, int protocol)');
const connect = libc.func('int connect(int fd, const void *address, uint32_t length)');
const send = libc.func('int64_t send(int fd, const void *bytes, size_t length, int flags)');
const recv = libc.func('int64_t recv(int fd, _Out_ void *bytes, size_t length, int flags)');
const bind = libc.func('int bind(int fd, const void *address, uint32_t length)');
const sendto = libc.func(
  'int64_t sendto(int fd, const void *bytes, size_t length, int flags, const void *to, uint32_t to_length)',
);
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
    const echo = openEcho(address);
    return measureRounds([() => timed(echo)], count)[0] ?? [];
  },
  stream,
};

/** An address and the first of several ports. */
export interface Peer {
  readonly address: string;
  readonly port: number;
  /** Ports that packets come from or go to, in turn. */
  readonly ports: number;
}

/** Packets in a batch; the average takes the cost of the clock away. */
const BATCH = 200;
/** Length of an RTP packet of 20 ms of G.711. */
const packet = Buffer.alloc(172);

/**
 * Microseconds of one packet from each source to its target, by batch. The kernel carries the packet through node and
 * veth links to the other end within the call of sendto(), on one core: the time is CPU time.
 * @param last an address behind the node: a batch ends with an echo from there. A slow processor queues packets, and the
 * echo takes the same queues.
 */
async function stream({
  from,
  to,
  batches,
  packets = BATCH,
  last,
}: {
  readonly from: readonly Peer[];
  readonly to: readonly Peer[];
  /** Besides two that are discarded. */
  readonly batches: number;
  /** In each batch, at least. */
  readonly packets?: number;
  readonly last?: string;
}) {
  const drain = last === undefined ? () => {} : openEcho(last);
  const streams = from.map((source, at) => {
    const target = to[at] ?? source;
    const sockets = Array.from({ length: source.ports }, (_, index) => openUdp(source, index));
    const addresses = Array.from({ length: target.ports }, (_, index) =>
      peerAddress(target, index),
    );
    return { sockets, addresses, count: Math.max(packets, source.ports, target.ports) };
  });
  const times: number[][] = streams.map(() => []);
  for (let batch = -2; batch < batches; batch++) {
    for (const [at, { sockets, addresses, count }] of streams.entries()) {
      const started = performance.now();
      for (let sent = 0; sent < count; sent++) {
        const address = addresses[sent % addresses.length];
        sendto(sockets[sent % sockets.length], packet, packet.length, 0, address, 16);
      }
      drain();
      const each = ((performance.now() - started) * 1000) / count;
      if (batch >= 0) times[at]?.push(each);
    }
  }
  return times;
}

function openUdp(source: Peer, index: number): number {
  const descriptor = Number(socket(AF_INET, SOCK_DGRAM, 0));
  if (bind(descriptor, peerAddress(source, index), 16) !== 0)
    throw new Error(`cannot bind port ${source.port + index} of ${source.address}`);
  return descriptor;
}

function peerAddress({ address, port }: Peer, index: number): Buffer {
  return socketAddress({ address, port: port + index });
}

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

function timed(run: () => void): number {
  const started = performance.now();
  run();
  return (performance.now() - started) * 1000;
}

/**
 * Opens a socket for ICMP echo requests.
 * @returns a function that sends a request and waits for the reply. The kernel processes both within the send call.
 */
function openEcho(address: string): () => void {
  const fd = Number(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
  const sockaddr = socketAddress({ address, port: 0 });
  if (Number(connect(fd, sockaddr, sockaddr.length)) !== 0) throw new Error('connect failed');
  const request = Buffer.alloc(16);
  request.writeUInt8(ECHO_REQUEST, 0);
  request.writeUInt16BE(IDENTIFIER, 4);
  request.writeUInt16BE(checksum(request), 2);
  return () => {
    const sent = Number(send(fd, request, request.length, 0));
    const received = Number(recv(fd, reply, reply.length, 0));
    if (sent !== request.length || received <= 0) throw new Error('no echo');
  };
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
