/** The libc functions that netlink sockets need, called through koffi. */
import { createRequire } from 'node:module';
import type * as Koffi from 'koffi';
import { type ReceiveBuffer, SOCKADDR_NL_LENGTH } from './datagram.ts';
import { readU16, readU32, u32, writeU16, writeU32, writeU64 } from './host-order.ts';
import { INSTRUCTION_LENGTH } from './socket-filter.ts';

/**
 * The libc functions of netlink sockets. A negative result is a negated errno, as in the kernel's
 * system call ABI.
 */
export interface Libc {
  socket(domain: number, type: number, protocol: number): number;
  bind(fd: number, address: Buffer): number;
  /** Writes the address of the socket into the buffer. */
  getsockname(fd: number, address: Buffer): number;
  setsockopt(fd: number, level: number, name: number, value: Buffer): number;
  /** Runs in the libuv thread pool, because the kernel may copy a large table. The value must have its full length. */
  getsockopt(fd: number, level: number, name: number, value: Buffer): Promise<number>;
  /**
   * getsockopt SO_MEMINFO (Linux 4.12).
   * @returns the number of messages that the kernel dropped because the receive buffer was full, or a negated errno.
   */
  drops(fd: number): number;
  /** getsockopt SO_SNDBUF. @returns bytes, or a negated errno. */
  sendBuffer(fd: number): number;
  /** setsockopt SO_ATTACH_FILTER. @param program Classic BPF instructions. */
  attachFilter(fd: number, program: Buffer): number;
  close(fd: number): number;
  /** Runs in the libuv thread pool, because the kernel executes a request inside send. */
  send(fd: number, bytes: Buffer): Promise<number>;
  /** Runs synchronously, for requests that take the kernel little time. */
  sendNow(fd: number, bytes: Buffer): number;
  receive(fd: number, buffer: ReceiveBuffer): number;
  /**
   * Receives several datagrams with one system call (recvmmsg), at half the cost for each.
   * @returns the number of datagrams.
   */
  receiveMany(fd: number, buffers: ManyBuffers): number;
  /** Prepares buffers for `receiveMany`. */
  manyBuffers(count: number, size: number): ManyBuffers;
  /** Runs in the libuv thread pool, because the kernel executes a dump inside recv. */
  receivePooled(fd: number, buffer: ReceiveBuffer): Promise<number>;
  /**
   * Blocks the thread until the socket is readable (ppoll).
   * @returns whether it became readable, without an error, within these milliseconds, which may be a fraction.
   */
  waitReadable(fd: number, milliseconds: number): boolean;
  /** Whether the other end of a pipe, socket or terminal is closed (ppoll). Does not block. */
  hasHungUp(fd: number): boolean;
  /** Calls back in a separate event loop turn whenever the socket is readable or has failed. */
  watch(fd: number, onReadable: () => void): { close(): void };
}

/** Buffers of `receiveMany`. The kernel writes to all of them, so they live as long as each other. */
export interface ManyBuffers {
  /** Bytes for one datagram. */
  readonly size: number;
  /** `count` times `size` bytes, datagram after datagram. */
  readonly bytes: Buffer;
  /** A struct sockaddr_nl for each datagram. */
  readonly senders: Buffer;
  /** An array of struct mmsghdr, which refers to the other buffers. */
  readonly headers: Buffer;
  readonly vectors: Buffer;
}

/**
 * struct mmsghdr of 64-bit Linux, for glibc and musl: a struct msghdr of 56 bytes (sender, its length, vectors, their
 * number, control data), and the length of the datagram. struct iovec: address and length.
 */
const MMSGHDR_LENGTH = 64;
const MMSGHDR_SENDER_LENGTH = 8;
const MMSGHDR_VECTORS = 16;
const MMSGHDR_VECTOR_COUNT = 24;
const MMSGHDR_DATAGRAM_LENGTH = 56;
const IOVEC_LENGTH = 16;

/** The true length of a received datagram, which may exceed the size of its buffer. */
export function datagramLength({ headers }: ManyBuffers, index: number): number {
  return readU32(headers, index * MMSGHDR_LENGTH + MMSGHDR_DATAGRAM_LENGTH);
}

/** asm-generic/socket.h */
const SOL_SOCKET = 1;
const SO_SNDBUF = 7;
const SO_ATTACH_FILTER = 26;
const SO_MEMINFO = 55;
/** Numbers of 32 bits that SO_MEMINFO returns, and the place of the drops: SK_MEMINFO_ of linux/sock_diag.h. */
const SK_MEMINFO_VARS = 9;
const SK_MEMINFO_DROPS = 8;

/** struct pollfd: descriptor, requested events, returned events. */
const POLLFD_LENGTH = 8;
const POLLFD_EVENTS = 4;
const POLLFD_RETURNED = 6;
const POLLIN = 1;
/** The kernel returns these events also if they are not requested. */
const POLLERR = 8;
const POLLHUP = 16;

const MSG_TRUNC = 0x20;
const MSG_DONTWAIT = 0x40;

type Call = (...values: (number | Buffer | null)[]) => number;
type AsyncCall = (...values: (number | Buffer)[]) => Promise<number>;

let loaded: Libc | undefined;

/**
 * Loads koffi on first use, so that commands without sockets need neither its binary nor its load
 * time of 8 ms.
 */
export function libc(): Libc {
  loaded ??= load();
  return loaded;
}

function load(): Libc {
  const koffi = createRequire(import.meta.url)('koffi') as typeof Koffi;
  // Resolves symbols of the process itself: its own libc, glibc or musl, whatever the file is
  // called.
  const library = koffi.load(null);

  /**
   * Arguments of calls in the thread pool. koffi holds no references to them, so this set keeps
   * them from being garbage-collected during the call.
   */
  const inPool = new Set<(number | Buffer)[]>();

  function bind(definition: string): { now: Call; pooled: AsyncCall } {
    const native = library.func(definition);
    const checked = (result: number) => (result < 0 ? -koffi.errno() : result);
    return {
      now: (...values) => checked(native(...values)),
      pooled: (...values) => {
        inPool.add(values);
        const called = new Promise<number>((resolve, reject) => {
          native.async(...values, (error: Error | null, result: number) => {
            // errno of the pool thread, available only during this callback.
            if (error === null) resolve(checked(result));
            else reject(error);
          });
        });
        return called.finally(() => inPool.delete(values));
      },
    };
  }

  const socket = bind('int socket(int domain, int type, int protocol)');
  const bindAddress = bind('int bind(int fd, const void *address, uint32_t length)');
  const getsockname = bind('int getsockname(int fd, void *address, void *length)');
  const setsockopt = bind(
    'int setsockopt(int fd, int level, int name, const void *value, uint32_t length)',
  );
  const getsockopt = bind('int getsockopt(int fd, int level, int name, void *value, void *length)');
  const close = bind('int close(int fd)');
  const send = bind('intptr_t send(int fd, const void *bytes, size_t length, int flags)');
  const recvfrom = bind(
    'intptr_t recvfrom(int fd, void *bytes, size_t length, int flags, void *sender, void *senderLength)',
  );

  // Not poll, which takes whole milliseconds.
  const ppoll = bind(
    'int ppoll(void *descriptors, unsigned long count, const void *timeout, const void *signals)',
  );
  /** struct timespec */
  const timeout = Buffer.alloc(16);
  const polled = Buffer.alloc(POLLFD_LENGTH);
  /** @returns the events of a descriptor that came within these milliseconds; 0 for none and after an error. */
  const poll = (fd: number, events: number, milliseconds: number): number => {
    writeU32(polled, fd, 0);
    writeU16(polled, events, POLLFD_EVENTS);
    writeU16(polled, 0, POLLFD_RETURNED);
    writeU64(timeout, BigInt(Math.floor(milliseconds / 1000)), 0);
    writeU64(timeout, BigInt(Math.floor((milliseconds % 1000) * 1e6)), 8);
    const ready = ppoll.now(polled, 1, timeout, null);
    return ready > 0 ? readU16(polled, POLLFD_RETURNED) : 0;
  };
  const recvmmsg = bind(
    'int recvmmsg(int fd, void *headers, uint32_t count, int flags, void *timeout)',
  );

  function manyBuffers(count: number, size: number): ManyBuffers {
    const bytes = Buffer.allocUnsafeSlow(count * size);
    const senders = Buffer.alloc(count * SOCKADDR_NL_LENGTH);
    const vectors = Buffer.alloc(count * IOVEC_LENGTH);
    const headers = Buffer.alloc(count * MMSGHDR_LENGTH);
    for (let index = 0; index < count; index++) {
      const vector = index * IOVEC_LENGTH;
      writeU64(vectors, koffi.address(bytes) + BigInt(index * size), vector);
      writeU64(vectors, BigInt(size), vector + 8);
      const header = index * MMSGHDR_LENGTH;
      const sender = index * SOCKADDR_NL_LENGTH;
      writeU64(headers, koffi.address(senders) + BigInt(sender), header);
      writeU32(headers, SOCKADDR_NL_LENGTH, header + MMSGHDR_SENDER_LENGTH);
      writeU64(headers, koffi.address(vectors) + BigInt(vector), header + MMSGHDR_VECTORS);
      writeU64(headers, 1n, header + MMSGHDR_VECTOR_COUNT);
    }
    return { size, bytes, senders, headers, vectors };
  }

  /** struct sock_fprog of linux/filter.h. */
  const programType = koffi.struct({ length: 'uint16_t', instructions: 'void *' });
  const attachFilter = library.func('setsockopt', 'int', [
    'int',
    'int',
    'int',
    koffi.pointer(programType),
    'uint32_t',
  ]);

  function receiveArguments(fd: number, buffer: ReceiveBuffer): (number | Buffer)[] {
    writeU32(buffer.senderLength, buffer.sender.length, 0);
    const flags = MSG_DONTWAIT | MSG_TRUNC;
    return [fd, buffer.bytes, buffer.bytes.length, flags, buffer.sender, buffer.senderLength];
  }

  return {
    socket: socket.now,
    bind: (fd, address) => bindAddress.now(fd, address, address.length),
    getsockname: (fd, address) => getsockname.now(fd, address, u32(address.length)),
    setsockopt: (fd, level, name, value) => setsockopt.now(fd, level, name, value, value.length),
    getsockopt: (fd, level, name, value) =>
      getsockopt.pooled(fd, level, name, value, u32(value.length)),
    drops(fd) {
      const value = Buffer.alloc(4 * SK_MEMINFO_VARS);
      const result = getsockopt.now(fd, SOL_SOCKET, SO_MEMINFO, value, u32(value.length));
      return result < 0 ? result : readU32(value, 4 * SK_MEMINFO_DROPS);
    },
    sendBuffer(fd) {
      const value = Buffer.alloc(4);
      const result = getsockopt.now(fd, SOL_SOCKET, SO_SNDBUF, value, u32(value.length));
      return result < 0 ? result : readU32(value, 0);
    },
    attachFilter(fd, program) {
      const value = { length: program.length / INSTRUCTION_LENGTH, instructions: program };
      const size = koffi.sizeof(programType);
      const result = attachFilter(fd, SOL_SOCKET, SO_ATTACH_FILTER, value, size);
      return result < 0 ? -koffi.errno() : result;
    },
    close: close.now,
    send: (fd, bytes) => send.pooled(fd, bytes, bytes.length, 0),
    sendNow: (fd, bytes) => send.now(fd, bytes, bytes.length, 0),
    receive: (fd, buffer) => recvfrom.now(...receiveArguments(fd, buffer)),
    receiveMany(fd, { headers }) {
      const flags = MSG_DONTWAIT | MSG_TRUNC;
      return recvmmsg.now(fd, headers, headers.length / MMSGHDR_LENGTH, flags, null);
    },
    manyBuffers,
    receivePooled: (fd, buffer) => recvfrom.pooled(...receiveArguments(fd, buffer)),
    waitReadable: (fd, milliseconds) => poll(fd, POLLIN, milliseconds) === POLLIN,
    hasHungUp: (fd) => (poll(fd, 0, 0) & (POLLERR | POLLHUP)) !== 0,
    watch: (fd, onReadable) => watch(koffi, fd, onReadable),
  };
}

/**
 * Waits for readiness with libuv itself (uv_poll, through koffi). An idle socket uses no CPU, a
 * change is reported immediately, no pool thread waits, and the process can exit at any time.
 * Measured: 0.2 ms from a change to the callback, under 1 ms of CPU in 10 s of idling. A recv or
 * poll(2) that waits in the thread pool lacks these advantages, with or without a timeout.
 *
 * Two quirks need care. libuv reports a socket error, such as an overrun, as EBADF and stops the
 * handle, so it must be restarted. koffi calls back outside of Node's callback scope: an exception
 * would be lost and promises would not resume. Therefore the callback goes through setImmediate.
 */
function watch(koffi: typeof Koffi, fd: number, onReadable: () => void): { close(): void } {
  let closed = false;
  // Called with (status, events), although the declared type has no parameters.
  const onPoll = (...[status]: unknown[]) => {
    setImmediate(() => {
      if (closed) return;
      if (status !== 0) handle.start({ readable: true }, onPoll);
      onReadable();
    });
  };
  const handle = koffi.node.poll(fd, { readable: true }, onPoll);
  return {
    close() {
      if (closed) return;
      closed = true;
      handle.close();
    },
  };
}
