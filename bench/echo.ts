/**
 * Runs in the client's namespace: times echo requests and their replies, all of one flow of conntrack,
 * and prints the times as JSON. The kernels in between do all of it in the course of the call that sends.
 */
import koffi from 'koffi';
import type { EchoRequest } from './policy-packets.ts';

const AF_INET = 2;
const SOCK_RAW = 3;
const IPPROTO_ICMP = 1;
const ECHO_REQUEST = 8;
const IDENTIFIER = 4711;

const libc = koffi.load(null);
const socket = libc.func('int socket(int domain, int type, int protocol)');
const connect = libc.func('int connect(int fd, const void *address, uint32_t length)');
const send = libc.func('int64_t send(int fd, const void *bytes, size_t length, int flags)');
const recv = libc.func('int64_t recv(int fd, _Out_ void *bytes, size_t length, int flags)');

const { address, rounds, count } = JSON.parse(process.argv[2] ?? '') as EchoRequest;
const sockaddr = Buffer.alloc(16);
sockaddr.writeUInt16LE(AF_INET, 0);
sockaddr.set(address.split('.').map(Number), 4);
const fd = Number(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
if (Number(connect(fd, sockaddr, sockaddr.length)) !== 0) throw new Error('connect failed');

const request = Buffer.alloc(16);
request.writeUInt8(ECHO_REQUEST, 0);
request.writeUInt16BE(IDENTIFIER, 4);
request.writeUInt16BE(checksum(request), 2);
const reply = Buffer.alloc(128);

/** Microseconds. */
function timeEcho(): number {
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

const rounded = (microseconds: number) => Math.round(microseconds * 100) / 100;
const timed: number[][] = [];
// The first round warms up.
for (let round = 0; round <= rounds; round++) {
  const times = Array.from({ length: count }, timeEcho);
  if (round > 0) timed.push(times.map(rounded));
}
process.stdout.write(JSON.stringify(timed));
