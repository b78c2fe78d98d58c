/** Runs in the client's namespace: times connect() of new TCP connections, and prints the times as JSON. */
import koffi from 'koffi';
import type { ConnectRequest } from './packets.ts';

const AF_INET = 2;
const SOCK_STREAM = 1;

const libc = koffi.load(null);
const socket = libc.func('int socket(int domain, int type, int protocol)');
const connect = libc.func('int connect(int fd, const void *address, uint32_t length)');
const close = libc.func('int close(int fd)');

/**
 * Microseconds of one connect(): the kernel takes the SYN through client, node and endpoint, and the
 * endpoint's refusal back, in the course of the call.
 */
function timeConnect(sockaddr: Buffer): number {
  const fd = Number(socket(AF_INET, SOCK_STREAM, 0));
  const started = performance.now();
  const result = Number(connect(fd, sockaddr, sockaddr.length));
  const ended = performance.now();
  close(fd);
  // That it was the endpoint that refused is seen by the resets it sent (packets.ts): errno may be
  // that of the collector by now.
  if (result !== -1) throw new Error('connect: somebody listens where nobody should');
  return (ended - started) * 1000;
}

function socketAddress(address: string, port: number): Buffer {
  const sockaddr = Buffer.alloc(16);
  sockaddr.writeUInt16LE(AF_INET, 0);
  sockaddr.writeUInt16BE(port, 2);
  sockaddr.set(address.split('.').map(Number), 4);
  return sockaddr;
}

const { targets, rounds, count } = JSON.parse(process.argv[2] ?? '') as ConnectRequest;
const sockaddrs = targets.map(({ address, port }) => socketAddress(address, port));
const rounded = (microseconds: number) => Math.round(microseconds * 100) / 100;
const timed: number[][][] = targets.map(() => []);
// The first round warms up.
for (let round = 0; round <= rounds; round++) {
  sockaddrs.forEach((sockaddr, index) => {
    const times = Array.from({ length: count }, () => timeConnect(sockaddr));
    if (round > 0) timed[index]?.push(times.map(rounded));
  });
}
process.stdout.write(JSON.stringify(timed));
