/**
 * A program with SCTP sockets of the kernel, which Node.js lacks.
 * `sctp-peer.ts serve NAME ADDRESS PORT` answers each message with NAME.
 * `sctp-peer.ts ask ADDRESS VIP PORT` opens an association from ADDRESS. For each line of stdin it sends a message and
 * prints the answer as a line. Every system call blocks, for at most TIMEOUT_SECONDS in `ask`.
 */
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { getSystemErrorName } from 'node:util';
import koffi from 'koffi';
import { socketAddress } from '../../lab/libc.ts';

const SOCK_STREAM = 1;
const SOCK_SEQPACKET = 5;
const IPPROTO_SCTP = 132;
const SOL_SOCKET = 1;
const SO_RCVTIMEO = 20;
const SO_SNDTIMEO = 21;
const TIMEOUT_SECONDS = 20;

const libc = koffi.load('libc.so.6');
const socket = libc.func('int socket(int domain, int type, int protocol)');
const bind = libc.func('int bind(int fd, void *address, uint32_t length)');
const listen = libc.func('int listen(int fd, int backlog)');
const connect = libc.func('int connect(int fd, void *address, uint32_t length)');
const setsockopt = libc.func(
  'int setsockopt(int fd, int level, int name, void *value, uint32_t length)',
);
const send = libc.func('int64_t send(int fd, void *data, size_t length, int flags)');
const recv = libc.func('int64_t recv(int fd, void *data, size_t length, int flags)');
const sendto = libc.func(
  'int64_t sendto(int fd, void *data, size_t length, int flags, void *to, uint32_t size)',
);
const recvfrom = libc.func(
  'int64_t recvfrom(int fd, void *data, size_t length, int flags, void *from, void *size)',
);

function check(call: string, result: number | bigint): number {
  if (result >= 0) return Number(result);
  throw new Error(`${call}: ${getSystemErrorName(-koffi.errno())}`);
}

/** A socket of the address, which is the only one that the association has. */
function open(type: number, address: string, port: number): number {
  const own = socketAddress(address, port);
  const fd = check('socket', socket(own.readUInt16LE(0), type, IPPROTO_SCTP));
  check('bind', bind(fd, own, own.length));
  return fd;
}

function serve(name: string, address: string, port: number): never {
  const fd = open(SOCK_SEQPACKET, address, port);
  check('listen', listen(fd, 16));
  console.log('listens');
  const from = Buffer.alloc(28);
  const size = Buffer.alloc(4);
  const data = Buffer.alloc(1024);
  for (;;) {
    size.writeUInt32LE(from.length);
    // An association that its client has aborted is an error of the next call only.
    if (recvfrom(fd, data, data.length, 0, from, size) <= 0) continue;
    sendto(fd, Buffer.from(name), name.length, 0, from, size.readUInt32LE());
  }
}

async function ask(address: string, vip: string, port: number): Promise<void> {
  const fd = open(SOCK_STREAM, address, 0);
  const limit = Buffer.alloc(16);
  limit.writeBigInt64LE(BigInt(TIMEOUT_SECONDS));
  for (const option of [SO_RCVTIMEO, SO_SNDTIMEO])
    check('setsockopt', setsockopt(fd, SOL_SOCKET, option, limit, limit.length));
  const to = socketAddress(vip, port);
  check('connect', connect(fd, to, to.length));
  const data = Buffer.alloc(1024);
  const lines = createInterface({ input: process.stdin });
  lines.on('line', () => {
    check('send', send(fd, Buffer.from('who'), 3, 0));
    console.log(data.toString('utf8', 0, check('recv', recv(fd, data, data.length, 0))));
  });
  await once(lines, 'close');
}

const [action = '', first = '', second = '', third = ''] = process.argv.slice(2);
if (action === 'serve') serve(first, second, Number(third));
else if (action === 'ask') await ask(first, second, Number(third));
else throw new Error(`unknown action ${action}`);
