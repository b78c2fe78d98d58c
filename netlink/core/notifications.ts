/**
 * A socket for multicast groups with many messages. The owner reads when it likes, for example every
 * 100 ms: a wake-up for each message would cost more than reading it.
 */
import { readAck } from './ack.ts';
import { align } from './attribute.ts';
import { isFromKernel, newReceiveBuffer, readDatagram, SOCKADDR_NL_LENGTH } from './datagram.ts';
import { checkResult, joinGroup, openDescriptor } from './descriptor.ts';
import { EAGAIN, ENOBUFS, NetlinkError } from './error.ts';
import { datagramLength, libc } from './libc.ts';
import {
  encodeMessages,
  messageEnd,
  messageType,
  type NetlinkMessage,
  type NetlinkRequest,
  NLM_F_ACK,
  NLMSG_ERROR,
  NLMSG_HDRLEN,
  readMessages,
} from './message.ts';

export interface NotificationOptions {
  /** NFNLGRP_ or RTNLGRP_ numbers. */
  readonly groups: readonly number[];
  /** Bytes that may wait; the kernel doubles it. */
  readonly receiveBuffer: number;
  /** BPF program that decides which messages are queued; undefined for all. */
  readonly filter?: Buffer | undefined;
}

/** Sequence number of requests. Notifications have 0. */
const CONFIGURE = 1;
/** Datagrams of one system call, and bytes of each: a conntrack event has 300, a batch of log messages 8 KiB. */
const DATAGRAMS = 64;
const DATAGRAM_SIZE = 16 << 10;
/** Milliseconds of reading before the event loop gets a turn. */
const TIME_SLICE = 8;

/** A subscription that is read on demand. */
export class NotificationSocket {
  readonly #fd: number;
  readonly #buffers = libc().manyBuffers(DATAGRAMS, DATAGRAM_SIZE);
  #isClosed = false;
  #dropped = 0;
  #overruns = 0;

  /** @throws NetlinkError if the kernel lacks the protocol or a group. */
  constructor(protocol: number, { groups, receiveBuffer, filter }: NotificationOptions) {
    this.#fd = openDescriptor(protocol, { receiveBuffer });
    try {
      if (filter !== undefined) this.setFilter(filter);
      for (const group of groups) joinGroup(this.#fd, group);
    } catch (error) {
      libc().close(this.#fd);
      throw error;
    }
  }

  /** Replaces the BPF program, for messages from now on. @throws NetlinkError */
  setFilter(filter: Buffer): void {
    checkResult('SO_ATTACH_FILTER', libc().attachFilter(this.#fd, filter));
  }

  /**
   * Sends a request that the kernel executes at once, and waits for its ack. Skips notifications that arrived before.
   * @param operation subject of error messages.
   * @throws NetlinkError
   */
  configure(operation: string, request: NetlinkRequest): void {
    const flags = (request.flags ?? 0) | NLM_F_ACK;
    const bytes = encodeMessages([{ ...request, flags }], CONFIGURE);
    checkResult(operation, libc().sendNow(this.#fd, bytes));
    const buffer = newReceiveBuffer();
    for (;;) {
      const result = libc().receive(this.#fd, buffer);
      for (const message of readDatagram(operation, buffer, result)) {
        if (message.type !== NLMSG_ERROR || message.sequence !== CONFIGURE) continue;
        const { errno, extendedAck } = readAck(message);
        if (errno === 0) return;
        throw new NetlinkError(operation, errno, extendedAck);
      }
    }
  }

  /**
   * Number of messages that the kernel dropped because the receive buffer was full, until now or until `close`. ENOBUFS
   * reports only the first: then the kernel drops all messages until the buffer is empty (NETLINK_S_CONGESTED).
   * One system call. A kernel that does not tell the number (before Linux 4.12, or a sandbox) has each ENOBUFS counted.
   */
  get dropped(): number {
    return this.#isClosed ? this.#dropped : this.#readDrops();
  }

  #readDrops(): number {
    this.#dropped = Math.max(libc().drops(this.#fd), this.#overruns, this.#dropped);
    return this.#dropped;
  }

  /**
   * Reads waiting messages, for at most one time slice.
   * @param onMessage The message is valid only during the call.
   * @returns whether messages may be left.
   * @throws NetlinkError; MalformedMessage; whatever `onMessage` throws.
   */
  read(onMessage: (message: NetlinkMessage) => void): boolean {
    return this.#readDatagrams((bytes, start, end) => {
      for (const message of readMessages(bytes.subarray(start, end))) onMessage(message);
    });
  }

  /**
   * Reads as `read` does, without an object for each message.
   * @param onMessage gets the type of a message and the bounds of its payload.
   * @param atMost Ends after so many messages, rounded up to a system call. Later ones wait until the buffer is full, and
   * the kernel drops and counts the others.
   * @returns whether messages may be left; false after `atMost`, so that the next call waits.
   */
  visit(
    onMessage: (type: number, bytes: Buffer, start: number, end: number) => void,
    atMost = Infinity,
  ): boolean {
    return this.#readDatagrams((bytes, start, end) => {
      for (let offset = start; offset < end; ) {
        const next = messageEnd(bytes, offset, end);
        onMessage(messageType(bytes, offset), bytes, offset + NLMSG_HDRLEN, next);
        offset += align(next - offset);
      }
    }, atMost);
  }

  #readDatagrams(
    onDatagram: (bytes: Buffer, start: number, end: number) => void,
    atMost = Infinity,
  ): boolean {
    const start = performance.now();
    for (let total = 0; !this.#isClosed && total < atMost; ) {
      const count = libc().receiveMany(this.#fd, this.#buffers);
      if (count === -EAGAIN) return false;
      if (count === -ENOBUFS) this.#overruns += 1;
      else checkResult('receive netlink notifications', count);
      for (let index = 0; index < count; index++) this.#readDatagram(index, onDatagram);
      total += Math.max(count, 0);
      if (performance.now() - start > TIME_SLICE) return true;
    }
    return false;
  }

  #readDatagram(
    index: number,
    onDatagram: (bytes: Buffer, start: number, end: number) => void,
  ): void {
    const { bytes, size, senders } = this.#buffers;
    if (!isFromKernel(senders, index * SOCKADDR_NL_LENGTH)) return;
    const length = datagramLength(this.#buffers, index);
    // Larger than any message of the groups.
    if (length > size) return;
    const start = index * size;
    onDatagram(bytes, start, start + length);
  }

  /** Leaves the groups. Later reads return nothing. */
  close(): void {
    if (this.#isClosed) return;
    this.#readDrops();
    this.#isClosed = true;
    libc().close(this.#fd);
  }
}
