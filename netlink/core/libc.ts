/** The few functions of libc that sockets need, over koffi. */
import { createRequire } from 'node:module';
import type * as Koffi from 'koffi';
import type { ReceiveBuffer } from './datagram.ts';
import { u32, writeU32 } from './host-order.ts';
import { INSTRUCTION_LENGTH } from './socket-filter.ts';

/** As with system calls, a negative result is an errno. */
export interface Libc {
  socket(domain: number, type: number, protocol: number): number;
  bind(fd: number, address: Buffer): number;
  /** Fills in the address that the socket is bound to. */
  getsockname(fd: number, address: Buffer): number;
  setsockopt(fd: number, level: number, name: number, value: Buffer): number;
  /** setsockopt SO_ATTACH_FILTER. @param program Instructions of classic BPF. */
  attachFilter(fd: number, program: Buffer): number;
  close(fd: number): number;
  /** In libuv's thread pool: the kernel does the work of a request inside send. */
  send(fd: number, bytes: Buffer): Promise<number>;
  /** For a request that is little work. */
  sendNow(fd: number, bytes: Buffer): number;
  receive(fd: number, into: ReceiveBuffer): number;
  /** In libuv's thread pool: the kernel does the work of a dump inside recv. */
  receivePooled(fd: number, into: ReceiveBuffer): Promise<number>;
  /** Calls back in a turn of the event loop of its own whenever the socket can be read or has failed. */
  watch(fd: number, onReadable: () => void): { close(): void };
}

/** asm-generic/socket.h */
const SOL_SOCKET = 1;
const SO_ATTACH_FILTER = 26;

const MSG_TRUNC = 0x20;
const MSG_DONTWAIT = 0x40;

type Call = (...values: (number | Buffer)[]) => number;
type AsyncCall = (...values: (number | Buffer)[]) => Promise<number>;

let loaded: Libc | undefined;

/** Loaded at first use, so that commands without sockets need neither koffi's binary nor its 8 ms. */
export function libc(): Libc {
  loaded ??= load();
  return loaded;
}

function load(): Libc {
  const koffi = createRequire(import.meta.url)('koffi') as typeof Koffi;
  // The symbols of the process itself: its own libc, glibc or musl, whatever the file is called.
  const library = koffi.load(null);

  /** koffi does not keep what a call reads and writes: the collector must not free it meanwhile. */
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
            // errno is that of the pool's thread, handed over for the length of this callback only.
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
  const close = bind('int close(int fd)');
  const send = bind('intptr_t send(int fd, const void *bytes, size_t length, int flags)');
  const recvfrom = bind(
    'intptr_t recvfrom(int fd, void *bytes, size_t length, int flags, void *sender, void *senderLength)',
  );

  /** struct sock_fprog of linux/filter.h. */
  const programType = koffi.struct({ length: 'uint16_t', instructions: 'void *' });
  const attachFilter = library.func('setsockopt', 'int', [
    'int',
    'int',
    'int',
    koffi.pointer(programType),
    'uint32_t',
  ]);

  function receiveArguments(fd: number, into: ReceiveBuffer): (number | Buffer)[] {
    writeU32(into.senderLength, into.sender.length, 0);
    const flags = MSG_DONTWAIT | MSG_TRUNC;
    return [fd, into.bytes, into.bytes.length, flags, into.sender, into.senderLength];
  }

  return {
    socket: socket.now,
    bind: (fd, address) => bindAddress.now(fd, address, address.length),
    getsockname: (fd, address) => getsockname.now(fd, address, u32(address.length)),
    setsockopt: (fd, level, name, value) => setsockopt.now(fd, level, name, value, value.length),
    attachFilter(fd, program) {
      const value = { length: program.length / INSTRUCTION_LENGTH, instructions: program };
      const size = koffi.sizeof(programType);
      const result = attachFilter(fd, SOL_SOCKET, SO_ATTACH_FILTER, value, size);
      return result < 0 ? -koffi.errno() : result;
    },
    close: close.now,
    send: (fd, bytes) => send.pooled(fd, bytes, bytes.length, 0),
    sendNow: (fd, bytes) => send.now(fd, bytes, bytes.length, 0),
    receive: (fd, into) => recvfrom.now(...receiveArguments(fd, into)),
    receivePooled: (fd, into) => recvfrom.pooled(...receiveArguments(fd, into)),
    watch: (fd, onReadable) => watch(koffi, fd, onReadable),
  };
}

/**
 * Readiness comes from libuv itself (uv_poll, through koffi): nothing runs while nothing happens,
 * an event is heard at once, no thread of the pool waits, and a process can exit at any time.
 * (Measured: 0.2 ms from a change to the callback, under 1 ms of CPU in 10 s of idling.) A recv or
 * a poll(2) that waits in the pool has none of these, be it sliced or not.
 *
 * Two things need care. libuv reports a socket error, such as an overrun, as EBADF and stops
 * the handle, so it is started again. And koffi calls back outside of Node's callback scope: an
 * exception would be lost and promises would not go on, hence the step through setImmediate.
 */
function watch(koffi: typeof Koffi, fd: number, onReadable: () => void): { close(): void } {
  let closed = false;
  // Called with (status, events), whatever the declared type says.
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
