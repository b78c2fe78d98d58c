/**
 * The folder netlink/ speaks netlink with the kernel: sockets and what all protocols share in core/, the messages of
 * each protocol in a folder of its own. This is the socket.
 */
import { setImmediate as nextTurn } from 'node:timers/promises';
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
import { EAGAIN, ECANCELED, EINTR, ETIMEDOUT, MalformedMessage, NetlinkError } from './error.ts';
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
  /** Position in the batch. */
  readonly index: number;
  readonly error: NetlinkError;
}

/** What to keep of a message; undefined leaves it out. */
type MessagePicker<T> = (message: NetlinkMessage) => T | undefined;

const DUMP_ATTEMPTS = 5;
/** Milliseconds of work after which the event loop gets a turn. */
const SLICE = 8;

/**
 * One netlink socket, in the network namespace of the thread that opens it. It serves requests,
 * one after the other, or a subscription, not both: an overrun by notifications would lose answers.
 *
 * The kernel works inside send (requests, batches) and recv (dumps), for as long as the table
 * demands, so these run in the thread pool. Neither ever waits there: the socket does not block.
 */
export class NetlinkSocket {
  /** Notifications of what this socket does bear it (nlmsg_pid). */
  readonly portId: number;
  readonly #fd: number;
  readonly #timeout: number;
  readonly #buffer = newReceiveBuffer();
  readonly #closing = Promise.withResolvers<never>();
  #closed: Promise<void> | undefined;
  readonly #queue = new SerialQueue();
  #sequence = 0;
  /** An exchange ended early, so that answers to it may still come. */
  #hasPendingReplies = false;
  #sliceStart = 0;
  #watch: { close(): void } | undefined;

  /** @throws NetlinkError when the kernel lacks the protocol or refuses the socket. */
  constructor(protocol: number, options: SocketOptions = {}) {
    this.#timeout = options.timeout ?? 30_000;
    this.#fd = openDescriptor(protocol, options);
    this.portId = portIdOf(this.#fd);
    // Nobody need be waiting when it rejects.
    this.#closing.promise.catch(() => undefined);
  }

  /**
   * Sends one message and waits until the kernel has done what it says.
   * @throws NetlinkError
   */
  async request(request: NetlinkRequest): Promise<void> {
    const [refusal] = await this.batch([request]);
    if (refusal !== undefined) throw refusal.error;
  }

  /**
   * Sends messages in one go. The kernel takes them one by one, unless their protocol makes
   * a transaction of them, and goes on after one that it refuses. Only the last is acknowledged.
   * @returns those that were refused, in order.
   * @throws NetlinkError when the fate of the batch is not known (ENOBUFS, ETIMEDOUT) or nothing
   * was sent at all (EMSGSIZE).
   */
  batch(requests: readonly NetlinkRequest[]): Promise<RefusedMessage[]> {
    const last = requests.at(-1);
    if (last === undefined) return Promise.resolve([]);
    const acknowledged = { ...last, flags: (last.flags ?? 0) | NLM_F_ACK };
    const pack = async () => packMessages([...requests.slice(0, -1), acknowledged]);
    return this.#send(pack, (index) => index === requests.length - 1);
  }

  /**
   * Sends messages framed by two others, which the kernel makes a transaction of: all are done,
   * or none. The last but the closing one must ask for an acknowledgement.
   * @param pack Called when the turn has come, so that transactions are made in the order of calls.
   * @returns those that were refused, in order; the opening one (0) stands for the whole.
   * @throws NetlinkError as `batch` does; whatever `pack` throws.
   */
  transaction(pack: () => Promise<PackedMessages>): Promise<RefusedMessage[]> {
    // A refusal of the whole may be the only answer.
    return this.#send(pack, (index, count) => index === count - 2 || index === 0);
  }

  /**
   * Dumps a table. A dump during which the table changed is made again, up to five times.
   * @param pick Called with every message; again, from the start, when the dump is made again.
   * @throws NetlinkError, EINTR when the table would not keep still; whatever `pick` throws.
   */
  dump<T>(request: NetlinkRequest, pick: MessagePicker<T>): Promise<T[]> {
    return this.#enqueue(async () => {
      for (let attempt = 0; attempt < DUMP_ATTEMPTS; attempt++) {
        const picked = await this.#collect(request, NLM_F_DUMP, pick);
        if (picked !== undefined) return picked;
      }
      throw new NetlinkError(`netlink dump ${request.type}, table changing all the time`, EINTR);
    });
  }

  /**
   * Asks for one thing, such as a link by its name; returns what `pick` made of the answer.
   * @throws NetlinkError; MalformedMessage when `pick` was content with nothing; what `pick` throws.
   */
  async get<T>(request: NetlinkRequest, pick: MessagePicker<T>): Promise<T> {
    // The acknowledgement, which comes after the answer, ends it.
    const gathered = this.#enqueue(() => this.#collect(request, NLM_F_ACK, pick));
    const [answer] = (await gathered) ?? [];
    if (answer === undefined) throw new MalformedMessage(`message ${request.type} without answer`);
    return answer;
  }

  /**
   * Joins multicast groups (RTNLGRP_ and NFNLGRP_ numbers) and listens until the socket is
   * closed; the process stays alive as long. The callbacks run in turns of the event loop of
   * their own; what they throw is an uncaught exception.
   * @param onMessages The messages are valid during the call only.
   * @param onOverrun Notifications were lost (ENOBUFS), or could not be read: look at the table anew.
   * @param isIgnored Whether those caused from a port are left unread; asked once for a datagram.
   * @throws NetlinkError when the kernel does not know a group.
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
   * Has the kernel hand on nothing that is caused from some ports: at less cost than `isIgnored`,
   * and it cannot overrun this socket.
   * @throws NetlinkError
   */
  filterPortIds(ports: readonly number[]): void {
    this.#checkOpen();
    checkResult('SO_ATTACH_FILTER', libc().attachFilter(this.#fd, portIdFilter(ports)));
  }

  /** Fails what is under way with ECANCELED. Resolves when the descriptor is gone. */
  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    this.#watch?.close();
    this.#closing.reject(new NetlinkError('netlink socket closed', ECANCELED));
    // A call in the pool may still use the descriptor, whose number is free for others once closed.
    await this.#queue.idle();
    libc().close(this.#fd);
  }

  #enqueue<T>(work: () => Promise<T>): Promise<T> {
    return this.#queue.run(async () => {
      this.#checkOpen();
      if (this.#watch !== undefined) throw new TypeError('request on a socket that subscribed');
      return await work();
    });
  }

  #checkOpen(): void {
    if (this.#closed !== undefined) throw new NetlinkError('netlink socket closed', ECANCELED);
  }

  /** Takes sequence numbers; 0 is left to notifications. */
  #takeSequenceNumbers(count: number): number {
    if (this.#sequence + count > 0xffffffff) this.#sequence = 0;
    const first = this.#sequence + 1;
    this.#sequence += count;
    return first;
  }

  /** Sends messages, and collects refusals up to the last answer. */
  #send(
    pack: () => Promise<PackedMessages>,
    isLast: (index: number, count: number) => boolean,
  ): Promise<RefusedMessage[]> {
    return this.#enqueue(async () => {
      const packed = await pack();
      const { bytes, starts } = packed;
      const first = this.#takeSequenceNumbers(starts.length);
      numberMessages(packed, first);
      const operation = (start = 0) => `netlink message ${readU16(bytes, start + 4)}`;
      const refusals: RefusedMessage[] = [];
      await this.#exchange(operation(starts.at(-1)), bytes, false, (message) => {
        const index = (message.sequence - first) >>> 0;
        if (message.type !== NLMSG_ERROR || index >= starts.length) return false;
        const ack = readAck(message);
        if (ack.errno !== 0)
          refusals.push({ index, error: refused(operation(starts[index]), ack) });
        return isLast(index, starts.length);
      });
      return refusals;
    });
  }

  /** @returns undefined when the table changed meanwhile. */
  async #collect<T>(
    request: NetlinkRequest,
    kind: number,
    pick: MessagePicker<T>,
  ): Promise<T[] | undefined> {
    const dump = kind === NLM_F_DUMP;
    const operation = `netlink ${dump ? 'dump' : 'message'} ${request.type}`;
    const picked: T[] = [];
    let interrupted = false;
    let thrown: { error: unknown } | undefined;
    const sequence = this.#takeSequenceNumbers(1);
    const flags = (request.flags ?? 0) | kind;
    const bytes = encodeMessages([{ ...request, flags }], sequence);
    await this.#exchange(operation, bytes, dump, (message) => {
      if (message.sequence !== sequence) return false;
      if ((message.flags & NLM_F_DUMP_INTR) !== 0) interrupted = true;
      if (message.type === NLMSG_DONE || message.type === NLMSG_ERROR) {
        const ack = readAck(message);
        if (ack.errno !== 0) thrown ??= { error: refused(operation, ack) };
        return true;
      }
      // After a failure the rest is received all the same, or the socket could not dump again.
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
    return interrupted ? undefined : picked;
  }

  /** Sends, then receives until `isLast` says so. */
  async #exchange(
    operation: string,
    bytes: Buffer,
    pooled: boolean,
    isLast: (message: NetlinkMessage) => boolean,
  ): Promise<void> {
    // Of each answer: how many parts a dump has depends on the table, and they take the longer to
    // come the more there were (300,000 elements of nf_tables: seconds; half a million: half a minute).
    let deadline = performance.now() + this.#timeout;
    this.#sliceStart = performance.now();
    if (this.#hasPendingReplies) await this.#drain(operation, deadline);
    this.#hasPendingReplies = true;
    checkResult(operation, await libc().send(this.#fd, bytes));
    for (let last = false; !last; ) {
      this.#checkOpen();
      const result = await this.#receive(pooled);
      if (result === -EAGAIN) await this.#readable(operation, deadline);
      else
        for (const message of readDatagram(operation, this.#buffer, result))
          last = isLast(message) || last;
      if (!last) await this.#pause(operation, deadline);
      if (result !== -EAGAIN) deadline = performance.now() + this.#timeout;
    }
    this.#hasPendingReplies = false;
  }

  /** Receives what is left of an exchange that ended early; also ends a dump. */
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

  /** @throws NetlinkError ETIMEDOUT */
  async #pause(operation: string, deadline: number): Promise<void> {
    const now = performance.now();
    if (now > deadline) throw new NetlinkError(operation, ETIMEDOUT);
    if (now - this.#sliceStart < SLICE) return;
    await nextTurn();
    this.#sliceStart = performance.now();
  }

  /** Rare: the answer is there as soon as send returns, except from a protocol that answers later. */
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
    // What is left after the slice makes the socket readable in the next turn.
    while (this.#closed === undefined && performance.now() - start < SLICE) {
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

/** Runs with a socket that is closed afterwards. @throws NetlinkError; whatever `use` throws. */
export async function withSocket<T>(
  protocol: number,
  use: (socket: NetlinkSocket) => Promise<T>,
): Promise<T> {
  const socket = new NetlinkSocket(protocol);
  try {
    return await use(socket);
  } finally {
    await socket.close();
  }
}

function refused(operation: string, { errno, extendedAck }: Ack): NetlinkError {
  return new NetlinkError(operation, errno, extendedAck);
}
