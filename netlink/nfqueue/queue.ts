/** Receives packets from the kernel through NFQUEUE and returns verdicts. */
import { readFile } from 'node:fs/promises';
import { readAck } from '../core/ack.ts';
import { newReceiveBuffer, readDatagram } from '../core/datagram.ts';
import { checkResult, NETLINK_NETFILTER, openDescriptor } from '../core/descriptor.ts';
import {
  EAGAIN,
  EINVAL,
  EPROTONOSUPPORT,
  NetlinkError,
  toUnsupportedError,
  UnsupportedError,
} from '../core/error.ts';
import { libc } from '../core/libc.ts';
import type { NetlinkMessage } from '../core/message.ts';
import {
  acceptMessage,
  bindMessage,
  maxLengthMessage,
  NFQNL_MSG_PACKET,
  type QueuedPacket,
  readPacket,
  setPacketId,
} from './message.ts';

export type { QueuedPacket } from './message.ts';

/**
 * Receive buffer in bytes: thousands of packets of ordinary size, or a hundred of the largest.
 * Packets that do not fit bypass the queue, as do packets beyond the maximum queue length.
 */
const RECEIVE_BUFFER = 8 << 20;
/** Milliseconds of reading before the event loop gets a turn. */
const TIME_SLICE = 8;
/** Sequence number of the bind request. Packets have sequence number 0. */
const BIND = 1;

/**
 * A queue of packets in the network namespace of the thread that opens it. Each packet waits until
 * it is accepted. The rule should use `--queue-bypass`, so that packets continue while no process
 * has bound the queue.
 *
 * Packets bypass the queue while it is full or the socket buffer is full (NFQA_CFG_F_FAIL_OPEN).
 * The kernel does not count them. A process that hangs delays at most as many packets as the queue
 * holds. Packets that wait when the process exits are dropped.
 */
export class PacketQueue {
  readonly #number: number;
  readonly #fd: number;
  readonly #buffer = newReceiveBuffer();
  readonly #accept: Buffer;
  #watch: { close(): void } | undefined;
  #closed = false;

  /** Opens the socket. @throws UnsupportedError if the kernel has no nfnetlink; NetlinkError. */
  constructor(number: number) {
    this.#number = number;
    this.#accept = acceptMessage(number);
    try {
      // Ignore overruns: packets that do not fit bypass the queue.
      const options = { receiveBuffer: RECEIVE_BUFFER, ignoreOverruns: true };
      this.#fd = openDescriptor(NETLINK_NETFILTER, options);
    } catch (error) {
      throw toUnsupportedError('NFQUEUE', error, EPROTONOSUPPORT);
    }
  }

  /**
   * Binds the queue. The process stays alive until the queue is closed.
   * @param maxLength Maximum number of waiting packets, including those passed to `onPacket`.
   * @param onPacket Called with packets in order of arrival, possibly before `bind` returns.
   * Packets that are available together are delivered in one event loop turn. An error that
   * `onPacket` throws after `bind` has returned is an uncaught exception.
   * @throws UnsupportedError if the kernel has no NFQUEUE; NetlinkError: EPERM if another socket
   * has bound the queue, or without CAP_NET_ADMIN.
   */
  bind(maxLength: number, onPacket: (packet: QueuedPacket) => void): void {
    const operation = `bind NFQUEUE ${this.#number}`;
    checkResult(operation, libc().sendNow(this.#fd, bindMessage(this.#number, maxLength, BIND)));
    let errno: number | undefined;
    // The ack is available as soon as send returns, possibly behind packets.
    while (errno === undefined) {
      const messages = this.#receive();
      if (messages === undefined) throw new NetlinkError(operation, EAGAIN);
      for (const message of messages) {
        if (message.sequence === BIND) errno = readAck(message).errno;
        else deliver(message, onPacket);
      }
    }
    // EINVAL: nfnetlink does not know the subsystem (nfnetlink_rcv_msg).
    if (errno === EINVAL) throw new UnsupportedError('NFQUEUE');
    if (errno !== 0) throw new NetlinkError(operation, errno);
    this.#watch = libc().watch(this.#fd, () => {
      const start = performance.now();
      while (!this.#closed && performance.now() - start < TIME_SLICE) {
        const messages = this.#receive();
        if (messages === undefined) return;
        for (const message of messages) deliver(message, onPacket);
      }
    });
  }

  /**
   * Changes the maximum length. Packets already waiting stay in the queue.
   * @param maxLength As for `bind`.
   * @throws NetlinkError
   */
  setMaxLength(maxLength: number): void {
    if (this.#closed) return;
    const message = maxLengthMessage(this.#number, maxLength);
    checkResult(`set length of NFQUEUE ${this.#number}`, libc().sendNow(this.#fd, message));
  }

  /** File descriptor of the socket, valid until it is closed. */
  get descriptor(): number {
    return this.#fd;
  }

  /**
   * Accepts a packet. Does nothing if the packet is no longer in the queue.
   * @throws NetlinkError if the verdict cannot be sent.
   */
  accept(id: number): void {
    if (this.#closed) return;
    setPacketId(this.#accept, id);
    checkResult(`send verdict to NFQUEUE ${this.#number}`, libc().sendNow(this.#fd, this.#accept));
  }

  /**
   * Closes the queue. Accepts unread packets. The kernel drops packets that were delivered but not
   * accepted.
   */
  close(): void {
    if (this.#closed) return;
    for (let messages = this.#receive(); messages !== undefined; messages = this.#receive()) {
      for (const message of messages) deliver(message, ({ id }) => this.accept(id));
    }
    this.#closed = true;
    this.#watch?.close();
    libc().close(this.#fd);
  }

  /** @returns undefined if there is nothing to read. */
  #receive(): NetlinkMessage[] | undefined {
    const result = libc().receive(this.#fd, this.#buffer);
    if (result === -EAGAIN) return undefined;
    return readDatagram(`receive from NFQUEUE ${this.#number}`, this.#buffer, result);
  }
}

/**
 * Closes the queue of a thread that ended without closing it. The descriptor belongs to the
 * process, so the queue would stay bound and packets would wait in it forever.
 */
export function closeQueueDescriptor(descriptor: number): void {
  libc().close(descriptor);
}

/** State of a queue from /proc/net/netfilter/nfnetlink_queue. */
interface QueueState {
  /** Packets that wait for a verdict. */
  readonly waiting: number;
  /**
   * Packets that the kernel dropped because the queue was full. Does not include packets that
   * bypass a full queue (NFQA_CFG_F_FAIL_OPEN).
   */
  readonly dropped: number;
  /** Packets dropped because they could not be delivered to the socket. */
  readonly userDropped: number;
  /** ID of the last packet, 32 bits. */
  readonly last: number;
}

/** @returns undefined if the queue is not bound or the kernel has no NFQUEUE. */
export async function queueState(number: number): Promise<QueueState | undefined> {
  let text: string;
  try {
    text = await readFile('/proc/net/netfilter/nfnetlink_queue', 'utf8');
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined;
    throw error;
  }
  return parseQueueStates(text).get(number);
}

/**
 * Each line: queue, port ID, packets waiting, copy mode, copy range, dropped, dropped on the way to
 * the socket, ID of the last packet, constant 1 (seq_show in nfnetlink_queue.c).
 */
export function parseQueueStates(text: string): Map<number, QueueState> {
  const states = new Map<number, QueueState>();
  for (const line of text.split('\n')) {
    const fields = line.trim().split(/ +/).map(Number);
    const [queue, , waiting, , , dropped, userDropped, last] = fields;
    if (queue === undefined || waiting === undefined || dropped === undefined) continue;
    if (userDropped === undefined || last === undefined) continue;
    states.set(queue, { waiting, dropped, userDropped, last });
  }
  return states;
}

function deliver(message: NetlinkMessage, onPacket: (packet: QueuedPacket) => void): void {
  // Ignore error messages. They report verdicts that failed with ENOENT, because the packet is no
  // longer in the queue.
  if (message.type === NFQNL_MSG_PACKET) onPacket(readPacket(message));
}
