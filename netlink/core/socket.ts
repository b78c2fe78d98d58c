/**
 * The netlink socket: requests, batches, transactions, dumps and multicast subscriptions. Folder
 * netlink/ contains the agent's netlink client: core/ is shared, and each netlink protocol has its
 * own folder.
 */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { BACKGROUND_SLICE, syncPrecedence } from '../../sync/precedence.ts';
import { SerialQueue } from '../../sync/serial-queue.ts';
import { type Ack, readAck } from './ack.ts';
import { firstPortId, newReceiveBuffer, readDatagram } from './datagram.ts';
import {
  checkResult,
  joinGroup,
  openDescriptor,
  portIdOf,
  type SocketOptions,
} from './descriptor.ts';
import { waitForReply } from './early-reply.ts';
import {
  EAGAIN,
  EBADMSG,
  ECANCELED,
  EINTR,
  EMSGSIZE,
  ENOBUFS,
  ETIMEDOUT,
  hasErrno,
  MalformedMessage,
  NetlinkError,
} from './error.ts';
import { readU16 } from './host-order.ts';
import { libc } from './libc.ts';
import {
  encodeMessages,
  type NetlinkMessage,
  type NetlinkRequest,
  NLM_F_ACK,
  NLM_F_DUMP,
  NLM_F_DUMP_INTR,
  NLMSG_DONE,
  NLMSG_ERROR,
  NLMSG_HDRLEN,
  numberMessages,
  type PackedMessages,
  packMessages,
} from './message.ts';
import { portIdFilter } from './socket-filter.ts';

/** A message of a batch that the kernel refused. */
export interface RefusedMessage {
  /** Index of the message in the batch. */
  readonly index: number;
  readonly error: NetlinkError;
}

/** Converts a message to a result; undefined omits the message from the results. */
type MessagePicker<T> = (message: NetlinkMessage) => T | undefined;

/** The result of one dump. */
export interface Dump<T> {
  readonly picked: T[];
  /** The table changed meanwhile (NLM_F_DUMP_INTR), so objects may be missing or appear twice. */
  readonly isInterrupted: boolean;
}

const DUMP_ATTEMPTS = 5;
/** Milliseconds of work before the event loop gets a turn. */
const TIME_SLICE = 8;

export interface NetlinkSocketOptions extends SocketOptions {
  /** Whether dumps only answer questions, so that they let syncs go first. */
  readonly inBackground?: boolean;
}

/**
 * A netlink socket in the network namespace of the thread that opens it. A socket serves either
 * requests, one at a time, or a subscription. It never serves both: an overrun by notifications
 * would lose replies.
 *
 * The kernel executes requests and batches inside send, and dumps inside recv, which may take
 * seconds for a large table. These calls therefore run in the thread pool. The socket is
 * nonblocking, so no call waits there for a reply. Only a small transaction holds up the event
 * loop until the kernel replies, for at most 2 ms.
 */
export class NetlinkSocket {
  /** The port ID of the socket. Notifications caused by its requests carry it (nlmsg_pid). */
  readonly portId: number;
  readonly #fd: number;
  readonly #timeout: number;
  readonly #inBackground: boolean;
  readonly #buffer = newReceiveBuffer();
  readonly #closing = Promise.withResolvers<never>();
  #closed: Promise<void> | undefined;
  readonly #queue = new SerialQueue();
  #sequence = 0;
  /** Whether the previous exchange ended early, so that replies to it may still arrive. */
  #hasPendingReplies = false;
  #sliceStart = 0;
  #watch: { close(): void } | undefined;

  /** @throws NetlinkError if the kernel lacks the protocol or refuses the socket. */
  constructor(protocol: number, options: NetlinkSocketOptions = {}) {
    this.#inBackground = options.inBackground ?? false;
    this.#timeout = options.timeout ?? 30_000;
    this.#fd = openDescriptor(protocol, options);
    this.portId = portIdOf(this.#fd);
    // Avoids an unhandled rejection if nothing awaits this promise.
    this.#closing.promise.catch(() => undefined);
  }

  /**
   * Sends one message and waits for its ack.
   * @throws NetlinkError
   */
  async request(request: NetlinkRequest): Promise<void> {
    const [refusal] = await this.batch([request]);
    if (refusal !== undefined) throw refusal.error;
  }

  /**
   * Sends several messages in one send. The kernel executes them one by one and continues after an
   * error, unless the protocol makes the batch a transaction. Only the last message requests an
   * ack.
   * @returns the refused messages, in order.
   * @throws NetlinkError if the outcome is unknown (ENOBUFS, ETIMEDOUT) or nothing was sent
   * (EMSGSIZE).
   */
  batch(requests: readonly NetlinkRequest[]): Promise<RefusedMessage[]> {
    const last = requests.at(-1);
    if (last === undefined) return Promise.resolve([]);
    const acknowledged = { ...last, flags: (last.flags ?? 0) | NLM_F_ACK };
    const pack = async () => packMessages([...requests.slice(0, -1), acknowledged]);
    return this.#send(pack, (index) => index === requests.length - 1);
  }

  /**
   * Sends a transaction: messages between a batch begin and a batch end. The kernel applies all of
   * them or none. The last message before the batch end must request an ack.
   * @param pack Called when earlier operations are done, so that transactions are applied in the
   * order of calls. One send carries all of it, because the kernel takes a transaction only in one piece.
   * @param hasEnd false: the messages lack the batch end, so nfnetlink checks them and applies none.
   * @returns the refused messages, in order. Index 0, the batch begin, stands for the whole
   * transaction. If so many messages are refused that their errors overrun the receive buffer, the first are returned.
   * @throws NetlinkError as `batch`; whatever `pack` throws.
   */
  transaction(pack: () => Promise<PackedMessages>, hasEnd = true): Promise<RefusedMessage[]> {
    // If the kernel refuses the whole transaction, the refusal may be the only reply.
    const isLast = (index: number, count: number) =>
      index === count - (hasEnd ? 2 : 1) || index === 0;
    return this.#send(pack, isLast, true);
  }

  /**
   * Dumps a table. Repeats a dump that was interrupted by a change (NLM_F_DUMP_INTR), up to five
   * attempts.
   * @param pick Called with every message, and again from the start when the dump is repeated.
   * @throws NetlinkError: EINTR if every attempt was interrupted; whatever `pick` throws.
   */
  dump<T>(request: NetlinkRequest, pick: MessagePicker<T>): Promise<T[]> {
    return this.#enqueue(async () => {
      for (let attempt = 0; attempt < DUMP_ATTEMPTS; attempt++) {
        const { picked, isInterrupted } = await this.#collect(request, NLM_F_DUMP, pick);
        if (!isInterrupted) return picked;
      }
      throw new NetlinkError(`netlink dump ${request.type}`, EINTR, undefined, {
        detail: `the table changed during each of ${DUMP_ATTEMPTS} dumps`,
      });
    });
  }

  /** Dumps a table once. @throws NetlinkError; whatever `pick` throws. */
  dumpOnce<T>(request: NetlinkRequest, pick: MessagePicker<T>): Promise<Dump<T>> {
    return this.#enqueue(() => this.#collect(request, NLM_F_DUMP, pick));
  }

  /**
   * Requests a single object, such as a link by name.
   * @returns the result of `pick` for the reply.
   * @throws NetlinkError; MalformedMessage if `pick` returns only undefined; whatever `pick`
   * throws.
   */
  async get<T>(request: NetlinkRequest, pick: MessagePicker<T>): Promise<T> {
    // The ack follows the reply and ends the exchange.
    const collected = this.#enqueue(() => this.#collect(request, NLM_F_ACK, pick));
    const [answer] = (await collected).picked;
    if (answer === undefined)
      throw new MalformedMessage(`netlink message ${request.type}: empty reply`);
    return answer;
  }

  /**
   * Joins multicast groups (RTNLGRP_ and NFNLGRP_ numbers) and listens until the socket is closed.
   * The process stays alive until then. Callbacks run in separate event loop turns, so an error
   * that a callback throws is an uncaught exception.
   * @param onMessages The messages are valid only during the call.
   * @param onOverrun Notifications were lost (ENOBUFS) or could not be read: dump the table again.
   * @param isIgnored Whether to skip datagrams caused by a port ID; called once per datagram.
   * @throws NetlinkError if the kernel does not know a group.
   */
  subscribe(
    groups: readonly number[],
    onMessages: (messages: readonly NetlinkMessage[]) => void,
    onOverrun: (error: Error) => void,
    isIgnored?: (port: number) => boolean,
  ): void {
    this.#checkOpen();
    for (const group of groups) joinGroup(this.#fd, group);
    this.#watch = libc().watch(this.#fd, () =>
      this.#receiveNotifications(onMessages, onOverrun, isIgnored),
    );
  }

  /**
   * Attaches a BPF filter that drops notifications caused by these port IDs. It costs less than
   * `isIgnored`, and the dropped messages cannot overrun the socket.
   * @throws NetlinkError
   */
  filterPortIds(ports: readonly number[]): void {
    this.#checkOpen();
    checkResult('SO_ATTACH_FILTER', libc().attachFilter(this.#fd, portIdFilter(ports)));
  }

  /** Fails pending operations with ECANCELED. Resolves when the descriptor is closed. */
  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    this.#watch?.close();
    this.#closing.reject(new NetlinkError('netlink socket closed', ECANCELED));
    // A call in the thread pool may still use the descriptor. After close the kernel may reuse its
    // number.
    await this.#queue.idle();
    libc().close(this.#fd);
  }

  #enqueue<T>(work: () => Promise<T>): Promise<T> {
    return this.#queue.run(async () => {
      this.#checkOpen();
      if (this.#watch !== undefined)
        throw new TypeError('request on a netlink socket with a subscription');
      return await work();
    });
  }

  #checkOpen(): void {
    if (this.#closed !== undefined) throw new NetlinkError('netlink socket closed', ECANCELED);
  }

  /**
   * Allocates consecutive sequence numbers. Never allocates 0: the kernel uses 0 in notifications
   * of its own changes.
   * @returns the first number.
   */
  #takeSequenceNumbers(count: number): number {
    if (this.#sequence + count > 0xffffffff) this.#sequence = 0;
    const first = this.#sequence + 1;
    this.#sequence += count;
    return first;
  }

  /** Sends messages and collects refusals until the last reply. */
  #send(
    pack: () => Promise<PackedMessages>,
    isLast: (index: number, count: number) => boolean,
    isTransaction = false,
  ): Promise<RefusedMessage[]> {
    return this.#enqueue(async () => {
      const packed = await pack();
      const { bytes, starts } = packed;
      const first = this.#takeSequenceNumbers(starts.length);
      numberMessages(packed, first);
      const operation = (start = 0) => `netlink message ${readU16(bytes, start + 4)}`;
      const refusals: RefusedMessage[] = [];
      const exchanged = this.#exchange(
        operation(starts.at(-1)),
        bytes,
        { isTransaction },
        (message) => {
          const index = (message.sequence - first) >>> 0;
          if (message.type !== NLMSG_ERROR || index >= starts.length) return false;
          const ack = readAck(message);
          if (ack.errno !== 0)
            refusals.push({ index, error: refused(operation(starts[index]), ack) });
          return isLast(index, starts.length);
        },
      );
      try {
        await exchanged;
      } catch (error) {
        // One refused message undoes the whole transaction, so lost replies do not matter.
        const isRefused = isTransaction && refusals.length > 0;
        if (!isRefused || !hasErrno(error, ENOBUFS)) throw error;
      }
      return refusals;
    });
  }

  async #collect<T>(
    request: NetlinkRequest,
    kind: number,
    pick: MessagePicker<T>,
  ): Promise<Dump<T>> {
    const isDump = kind === NLM_F_DUMP;
    const operation = `netlink ${isDump ? 'dump' : 'message'} ${request.type}`;
    const picked: T[] = [];
    let isInterrupted = false;
    let thrown: { error: unknown } | undefined;
    const sequence = this.#takeSequenceNumbers(1);
    const flags = (request.flags ?? 0) | kind;
    const bytes = encodeMessages([{ ...request, flags }], sequence);
    await this.#exchange(operation, bytes, { isDump }, (message) => {
      if (message.sequence !== sequence) return false;
      if ((message.flags & NLM_F_DUMP_INTR) !== 0) isInterrupted = true;
      if (message.type === NLMSG_DONE || message.type === NLMSG_ERROR) {
        const ack = readAck(message);
        if (ack.errno !== 0) thrown ??= { error: refused(operation, ack) };
        return true;
      }
      // Receive the rest of the dump even after an error: otherwise the socket could not dump
      // again.
      if (thrown !== undefined) return false;
      try {
        const value = pick(message);
        if (value !== undefined) picked.push(value);
      } catch (error) {
        thrown = { error };
      }
      return false;
    });
    if (thrown !== undefined) throw thrown.error;
    return { picked, isInterrupted };
  }

  /**
   * Sends, then receives until `isLast` returns true.
   * @param options.isDump The kernel works while the replies are received.
   * @param options.isTransaction The kernel replies only after it has executed all messages.
   */
  async #exchange(
    operation: string,
    bytes: Buffer,
    { isDump = false, isTransaction = false }: { isDump?: boolean; isTransaction?: boolean },
    isLast: (message: NetlinkMessage) => boolean,
  ): Promise<void> {
    // The deadline applies to each reply, not to the whole dump: the number of parts depends on the
    // table, and later parts take longer. A part takes seconds at 300,000 nf_tables elements and
    // half a minute at 500,000.
    let deadline = performance.now() + this.#timeout;
    this.#sliceStart = performance.now();
    if (this.#hasPendingReplies) await this.#drain(operation, deadline);
    this.#hasPendingReplies = true;
    const sent = this.#sent(operation, bytes);
    // The exchange may end before it awaits the outcome.
    sent.catch(() => undefined);
    if (!isTransaction || this.#inBackground || !waitForReply(this.#fd, bytes.length)) await sent;
    let hasOverrun = false;
    let isSent = false;
    for (let last = false; !last; ) {
      this.#checkOpen();
      const result = await this.#receive(isDump);
      if (result === -EAGAIN) {
        await sent;
        if (hasOverrun) throw new NetlinkError(operation, ENOBUFS);
        // nfnetlink replies to all of a transaction before send returns, or never: it discards a batch with a wrong length.
        if (isTransaction && isSent) throw noReply(operation);
        if (!isTransaction) await this.#readable(operation, deadline);
        isSent = true;
      } else if (result === -ENOBUFS && isTransaction) {
        // The replies before the overrun are still in the buffer. The kernel sends all replies before send returns.
        await sent;
        hasOverrun = true;
      } else
        for (const message of readDatagram(operation, this.#buffer, result))
          last = isLast(message) || last;
      if (!last) await this.#pause(operation, deadline);
      if (result !== -EAGAIN) deadline = performance.now() + this.#timeout;
    }
    this.#hasPendingReplies = false;
  }

  /** Sends in the thread pool. @throws NetlinkError: EMSGSIZE with the sizes if the send buffer is too small. */
  async #sent(operation: string, bytes: Buffer): Promise<void> {
    const result = await libc().send(this.#fd, bytes);
    if (result !== -EMSGSIZE) {
      checkResult(operation, result);
      return;
    }
    const detail = `a batch of ${bytes.length} bytes in a send buffer of ${libc().sendBuffer(this.#fd)} bytes`;
    throw new NetlinkError(operation, EMSGSIZE, undefined, { detail });
  }

  /** Discards the pending replies of an exchange that ended early. This also ends a dump. */
  async #drain(operation: string, deadline: number): Promise<void> {
    while ((await this.#receive(true)) !== -EAGAIN) {
      this.#checkOpen();
      await this.#pause(operation, deadline);
    }
  }

  #receive(pooled: boolean): number | Promise<number> {
    return pooled
      ? libc().receivePooled(this.#fd, this.#buffer)
      : libc().receive(this.#fd, this.#buffer);
  }

  /**
   * Yields to the event loop if the time slice is over.
   * @throws NetlinkError ETIMEDOUT after the deadline.
   */
  async #pause(operation: string, deadline: number): Promise<void> {
    const now = performance.now();
    if (now > deadline) throw new NetlinkError(operation, ETIMEDOUT);
    if (now - this.#sliceStart < (this.#inBackground ? BACKGROUND_SLICE : TIME_SLICE)) return;
    await (this.#inBackground ? syncPrecedence.yield() : nextTurn());
    this.#sliceStart = performance.now();
  }

  /**
   * Waits until the socket is readable. Rarely needed: most replies are available as soon as send
   * returns.
   * @throws NetlinkError: ETIMEDOUT after the deadline, ECANCELED if the socket is closed.
   */
  async #readable(operation: string, deadline: number): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    const watch = libc().watch(this.#fd, resolve);
    const timer = setTimeout(
      () => reject(new NetlinkError(operation, ETIMEDOUT)),
      Math.max(deadline - performance.now(), 0),
    );
    try {
      await Promise.race([promise, this.#closing.promise]);
    } finally {
      clearTimeout(timer);
      watch.close();
    }
  }

  #receiveNotifications(
    onMessages: (messages: readonly NetlinkMessage[]) => void,
    onOverrun: (error: Error) => void,
    isIgnored?: (port: number) => boolean,
  ): void {
    const start = performance.now();
    // Data left after this time slice makes the socket readable in the next turn.
    while (this.#closed === undefined && performance.now() - start < TIME_SLICE) {
      const result = libc().receive(this.#fd, this.#buffer);
      if (result === -EAGAIN) return;
      if (result >= NLMSG_HDRLEN && isIgnored?.(firstPortId(this.#buffer)) === true) continue;
      let messages: NetlinkMessage[];
      try {
        messages = readDatagram('netlink notifications', this.#buffer, result);
      } catch (error) {
        if (!(error instanceof NetlinkError || error instanceof MalformedMessage)) throw error;
        onOverrun(error);
        continue;
      }
      onMessages(messages);
    }
  }
}

/**
 * Runs `use` with a socket and closes it afterwards.
 * @throws NetlinkError; whatever `use` throws.
 */
export async function withSocket<T>(
  protocol: number,
  use: (socket: NetlinkSocket) => Promise<T>,
  options: NetlinkSocketOptions = {},
): Promise<T> {
  const socket = new NetlinkSocket(protocol, options);
  try {
    return await use(socket);
  } finally {
    await socket.close();
  }
}

function noReply(operation: string): NetlinkError {
  return new NetlinkError(operation, EBADMSG, undefined, { detail: 'the kernel did not reply' });
}

function refused(operation: string, { errno, extendedAck }: Ack): NetlinkError {
  return new NetlinkError(operation, errno, extendedAck);
}
