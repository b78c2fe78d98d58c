/**
 * A program with SCTP sockets of the kernel, which Node.js lacks.
 * `sctp-peer.ts serve NAME PORT ADDRESS...` answers each message with NAME.
 * `sctp-peer.ts ask` reads lines. `open ADDRESS VIP PORT` opens an association from ADDRESS, and `ask` sends a message
 * through each open association. Each line is answered with one line, the answers to its messages.
 * Every system call of `ask` blocks, for at most TIMEOUT_SECONDS.
 */
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
const POLLIN = 1;
const TIMEOUT_SECONDS = 20;

const libc = koffi.load('libc.so.6');
const socket = libc.func('int socket(int domain, int type, int protocol)');
const bind = libc.func('int bind(int fd, void *address, uint32_t length)');
const listen = libc.func('int listen(int fd, int backlog)');
const connect = libc.func('int connect(int fd, void *address, uint32_t length)');
const poll = libc.func('int poll(void *fds, unsigned long count, int timeout)');
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

function serve(name: string, port: number, addresses: readonly string[]): never {
  const fds = addresses.map((address) => {
    const fd = open(SOCK_SEQPACKET, address, port);
    check('listen', listen(fd, 16));
    return fd;
  });
  // struct pollfd: fd, events, revents.
  const polled = Buffer.alloc(8 * fds.length);
  for (const [index, fd] of fds.entries()) {
    polled.writeInt32LE(fd, 8 * index);
    polled.writeInt16LE(POLLIN, 8 * index + 4);
  }
  console.log('listens');
  for (;;) {
    check('poll', poll(polled, fds.length, -1));
    for (const [index, fd] of fds.entries())
      if (polled.readInt16LE(8 * index + 6)) answer(fd, name);
  }
}

function answer(fd: number, name: string): void {
  const from = Buffer.alloc(28);
  const size = Buffer.alloc(4);
  const data = Buffer.alloc(1024);
  size.writeUInt32LE(from.length);
  // An association that its client has aborted is an error of the next call only.
  if (recvfrom(fd, data, data.length, 0, from, size) <= 0) return;
  sendto(fd, Buffer.from(name), name.length, 0, from, size.readUInt32LE());
}

function associate(address: string, vip: string, port: number): number {
  const fd = open(SOCK_STREAM, address, 0);
  const limit = Buffer.alloc(16);
  limit.writeBigInt64LE(BigInt(TIMEOUT_SECONDS));
  for (const option of [SO_RCVTIMEO, SO_SNDTIMEO])
    check('setsockopt', setsockopt(fd, SOL_SOCKET, option, limit, limit.length));
  const to = socketAddress(vip, port);
  check('connect', connect(fd, to, to.length));
  return fd;
}

function exchange(fd: number): string {
  const data = Buffer.alloc(1024);
  check('send', send(fd, Buffer.from('who'), 3, 0));
  return data.toString('utf8', 0, check('recv', recv(fd, data, data.length, 0)));
}

/** A failed call is the answer of its association. */
function attempt(call: () => string): string {
  try {
    return call();
  } catch (error) {
    return String(error);
  }
}

function ask(): void {
  const fds: number[] = [];
  const openAndAsk = (address: string, vip: string, port: number) => {
    const fd = associate(address, vip, port);
    fds.push(fd);
    return exchange(fd);
  };
  createInterface({ input: process.stdin }).on('line', (line) => {
    const [action = '', address = '', vip = '', port = ''] = line.split(' ');
    const answers =
      action === 'open'
        ? [attempt(() => openAndAsk(address, vip, Number(port)))]
        : fds.map((fd) => attempt(() => exchange(fd)));
    console.log(answers.join());
  });
}

const [action = '', name = '', port = '', ...addresses] = process.argv.slice(2);
if (action === 'serve') serve(name, Number(port), addresses);
else if (action === 'ask') ask();
else throw new Error(`unknown action ${action}`);
