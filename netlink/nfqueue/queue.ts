/** Queues of packets that the kernel hands to this process (NFQUEUE). */
import { readFile } from 'node:fs/promises';
import { readAck } from '../core/ack.ts';
import { newReceiveBuffer, readDatagram } from '../core/datagram.ts';
import { checkResult, NETLINK_NETFILTER, openDescriptor } from '../core/descriptor.ts';
import {
  EAGAIN,
  EINVAL,
  EPROTONOSUPPORT,
  NetlinkError,
  orUnsupported,
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
 * Bytes that the kernel holds for the socket: thousands of packets of ordinary size, or a hundred of the
 * biggest. What does not fit goes by unseen, as does what does not fit into the queue.
 */
const RECEIVE_BUFFER = 8 << 20;
/** Milliseconds for which packets are read before the event loop gets a turn. */
const SLICE = 8;
/** Sequence number of the message that binds. Packets have 0. */
const BIND = 1;

/**
 * Packets that wait, in a queue of the network namespace of the thread that opens it, until they are
 * accepted. The rule that sends them there should say `--queue-bypass`, so that they go by where
 * nobody has bound the queue.
 *
 * When more wait than the queue is long, or the socket's buffer is full, packets go by unseen
 * (NFQA_CFG_F_FAIL_OPEN), which the kernel counts nowhere. A process that hangs holds up as many
 * packets as the queue is long, and no more; those that wait when it ends are dropped.
 */
export class PacketQueue {
  readonly #number: number;
  readonly #fd: number;
  readonly #into = newReceiveBuffer();
  readonly #accept: Buffer;
  #watch: { close(): void } | undefined;
  #closed = false;

  /** @throws UnsupportedError when the kernel has no nfnetlink; NetlinkError. */
  constructor(number: number) {
    this.#number = number;
    this.#accept = acceptMessage(number);
    try {
      // Nobody could do anything about an overrun.
      const options = { receiveBuffer: RECEIVE_BUFFER, ignoreOverruns: true };
      this.#fd = openDescriptor(NETLINK_NETFILTER, options);
    } catch (error) {
      throw orUnsupported('NFQUEUE', error, EPROTONOSUPPORT);
    }
  }

  /**
   * Binds the queue. The process stays alive until it is closed.
   * @param maxLength Packets that wait at most, those that were handed over included.
   * @param onPacket Has the packets in the order of their coming, those that are there in one turn of
   * the event loop; the first perhaps before this returns. What it throws later is an uncaught exception.
   * @throws UnsupportedError when the kernel has no NFQUEUE; NetlinkError: EPERM when somebody else
   * has bound the queue, or without CAP_NET_ADMIN.
   */
  bind(maxLength: number, onPacket: (packet: QueuedPacket) => void): void {
    const operation = `binding queue ${this.#number}`;
    checkResult(operation, libc().sendNow(this.#fd, bindMessage(this.#number, maxLength, BIND)));
    let errno: number | undefined;
    // The answer is there as soon as send returns, perhaps behind packets.
    while (errno === undefined) {
      const messages = this.#receive();
      if (messages === undefined) throw new NetlinkError(operation, EAGAIN);
      for (const message of messages) {
        if (message.sequence === BIND) errno = readAck(message).errno;
        else deliver(message, onPacket);
      }
    }
    // nfnetlink does not know the subsystem (nfnetlink_rcv_msg).
    if (errno === EINVAL) throw new UnsupportedError('NFQUEUE');
    if (errno !== 0) throw new NetlinkError(operation, errno);
    this.#watch = libc().watch(this.#fd, () => {
      const start = performance.now();
      while (!this.#closed && performance.now() - start < SLICE) {
        const messages = this.#receive();
        if (messages === undefined) return;
        for (const message of messages) deliver(message, onPacket);
      }
    });
  }

  /** @param maxLength As for `listen`. What waits already stays. */
  setMaxLength(maxLength: number): void {
    if (this.#closed) return;
    const message = maxLengthMessage(this.#number, maxLength);
    checkResult(`length of queue ${this.#number}`, libc().sendNow(this.#fd, message));
  }

  /** Of its socket, as long as it is not closed. */
  get descriptor(): number {
    return this.#fd;
  }

  /** Lets a packet go its way. It is no error when it has gone. */
  accept(id: number): void {
    if (this.#closed) return;
    setPacketId(this.#accept, id);
    checkResult(`verdict of queue ${this.#number}`, libc().sendNow(this.#fd, this.#accept));
  }

  /** What was not read goes its way; what was handed over and not accepted is dropped by the kernel. */
  close(): void {
    if (this.#closed) return;
    for (let messages = this.#receive(); messages !== undefined; messages = this.#receive()) {
      for (const message of messages) deliver(message, ({ id }) => this.accept(id));
    }
    this.#closed = true;
    this.#watch?.close();
    libc().close(this.#fd);
  }

  /** @returns undefined when there is nothing. */
  #receive(): NetlinkMessage[] | undefined {
    const result = libc().receive(this.#fd, this.#into);
    if (result === -EAGAIN) return undefined;
    return readDatagram(`queue ${this.#number}`, this.#into, result);
  }
}

/**
 * Closes the queue of a thread that ended without doing so. Its descriptor is the process's: the queue would
 * stay bound, and packets would wait in it for ever.
 */
export function closeQueueDescriptor(descriptor: number): void {
  libc().close(descriptor);
}

/** A queue as /proc/net/netfilter/nfnetlink_queue has it. */
interface QueueState {
  readonly waiting: number;
  /** Packets that were dropped: none did not fit, for those go by unseen. */
  readonly dropped: number;
  /** Packets that could not be handed over, and were dropped. */
  readonly userDropped: number;
  /** The number of the last packet; 32 bits wide. */
  readonly last: number;
}

/** @returns undefined when nobody has bound the queue, or the kernel has none. */
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
 * Each line: queue, port of the socket, packets waiting, copy mode, copy range, dropped, dropped on
 * the way to the socket, number of the last packet, 1 (seq_show in nfnetlink_queue.c).
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
  // Anything else is that a packet, to be accepted, has gone: ENOENT.
  if (message.type === NFQNL_MSG_PACKET) onPacket(readPacket(message));
}
