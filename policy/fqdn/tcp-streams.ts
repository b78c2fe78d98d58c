/**
 * Reassembles DNS messages from TCP segments, separately for each direction. A stream whose SYN was
 * not seen yields no messages. A stream in which a segment is permanently missing yields no further
 * messages.
 *
 * Only the segment that completes a message needs a deferred verdict: the receiver cannot read data
 * behind a gap before the missing segment arrives.
 */
import type { TcpSegment } from './packet.ts';

/** One direction of a connection. */
export interface Stream<Tag> {
  /** Value that the caller attaches to the stream. */
  tag: Tag | undefined;
}

export interface StreamLimits {
  /** Maximum number of streams; beyond it the least recently active streams are given up. */
  readonly streams: number;
  /**
   * Maximum number of buffered bytes in all streams: incomplete messages and out-of-order segments.
   */
  readonly bytes: number;
  /** Maximum number of out-of-order segments in one stream. */
  readonly outOfOrder: number;
}

const STREAM_LIMITS: StreamLimits = { streams: 4096, bytes: 8 << 20, outOfOrder: 64 };

/** Bytes of the length field before each message (RFC 1035, 4.2.2). */
const LENGTH = 2;
/**
 * Segments that are further ahead than this many bytes are ignored. A DNS message has at most
 * 64 KiB.
 */
const WINDOW = 1 << 20;
/** Bytes of the first buffer of a message. */
const SMALLEST_BUFFER = 512;

interface StreamState<Tag> extends Stream<Tag> {
  /** Sequence number of the next byte. */
  next: number;
  /** An incomplete message; its first `length` bytes are valid. */
  buffer: Buffer;
  length: number;
  /** Segments after a gap. */
  readonly outOfOrder: { readonly start: number; readonly data: Buffer }[];
}

const EMPTY = Buffer.alloc(0);

export class TcpStreams<Tag> {
  readonly #limits: StreamLimits;
  /** The least recently active stream comes first. */
  readonly #streams = new Map<string, StreamState<Tag>>();
  #bytes = 0;
  #givenUp = 0;

  constructor(limits: StreamLimits = STREAM_LIMITS) {
    this.#limits = limits;
  }

  stats(): { readonly streams: number; readonly bytes: number; readonly givenUp: number } {
    return { streams: this.#streams.size, bytes: this.#bytes, givenUp: this.#givenUp };
  }

  /**
   * Adds a segment to its stream.
   * @param onMessage Called with each message that the segment completes. The buffer is valid
   * during the call only.
   * @returns the stream; undefined after a RST, without a SYN, and for a stream given up earlier.
   */
  addSegment(segment: TcpSegment, onMessage: (message: Buffer) => void): Stream<Tag> | undefined {
    const key = segment.source + segment.destination;
    const existing = this.#streams.get(key);
    if (segment.rst) {
      if (existing !== undefined) this.#end(key, existing);
      return undefined;
    }
    const state = segment.syn ? this.#begin(key, segment, existing) : existing;
    if (state === undefined) return undefined;
    // Move to the end: most recently active.
    this.#streams.delete(key);
    this.#streams.set(key, state);
    if (!this.#follow(state, segment, onMessage)) this.#giveUp(key, state);
    for (const [oldestKey, oldestState] of this.#streams) {
      const { streams, bytes } = this.#limits;
      if (this.#streams.size <= streams && this.#bytes <= bytes) break;
      this.#giveUp(oldestKey, oldestState);
    }
    return state;
  }

  #begin(
    key: string,
    { sequence }: TcpSegment,
    existing: StreamState<Tag> | undefined,
  ): StreamState<Tag> {
    const next = (sequence + 1) >>> 0;
    // A retransmitted SYN. Segments after a gap may be buffered already.
    if (existing !== undefined && existing.next === next) return existing;
    if (existing !== undefined) this.#end(key, existing);
    return { tag: undefined, next, buffer: EMPTY, length: 0, outOfOrder: [] };
  }

  /** @returns false if the stream must be given up. */
  #follow(
    state: StreamState<Tag>,
    { sequence, syn, data }: TcpSegment,
    onMessage: (message: Buffer) => void,
  ): boolean {
    const { outOfOrder } = state;
    const start = syn ? (sequence + 1) >>> 0 : sequence;
    if (distance(state.next, start) > 0) return this.#queueOutOfOrder(state, start, data);
    let isSound = this.#append(state, start, data, onMessage);
    // Append out-of-order segments that are next in sequence now.
    for (;;) {
      const index = outOfOrder.findIndex((each) => distance(state.next, each.start) <= 0);
      const [segment] = index === -1 ? [] : outOfOrder.splice(index, 1);
      if (segment === undefined) return isSound;
      this.#bytes -= segment.data.length;
      isSound = isSound && this.#append(state, segment.start, segment.data, onMessage);
    }
  }

  /**
   * Buffers a segment that arrived before earlier data of the stream.
   * @returns false if the stream must be given up.
   */
  #queueOutOfOrder({ outOfOrder, next }: StreamState<Tag>, start: number, data: Buffer): boolean {
    if (data.length === 0 || distance(next, start) > WINDOW) return true;
    if (outOfOrder.some((each) => each.start === start && each.data.length >= data.length))
      return true;
    if (outOfOrder.length >= this.#limits.outOfOrder) return false;
    outOfOrder.push({ start, data: Buffer.from(data) });
    this.#bytes += data.length;
    return true;
  }

  /**
   * Appends the new data of a segment that begins at or before the next byte.
   * @returns false if the stream must be given up.
   */
  #append(
    state: StreamState<Tag>,
    start: number,
    data: Buffer,
    onMessage: (message: Buffer) => void,
  ): boolean {
    const newData = data.subarray(Math.min(-distance(state.next, start), data.length));
    if (newData.length === 0) return true;
    state.next = (state.next + newData.length) >>> 0;
    this.#reserve(state, state.length + newData.length);
    newData.copy(state.buffer, state.length);
    state.length += newData.length;

    let at = 0;
    let isSound = true;
    while (state.length - at >= LENGTH) {
      const size = state.buffer.readUInt16BE(at);
      isSound = size > 0;
      if (!isSound || state.length - at < LENGTH + size) break;
      onMessage(state.buffer.subarray(at + LENGTH, at + LENGTH + size));
      at += LENGTH + size;
    }
    state.buffer.copyWithin(0, at, state.length);
    state.length -= at;
    if (state.length === 0) this.#resize(state, EMPTY);
    return isSound;
  }

  #reserve(state: StreamState<Tag>, length: number): void {
    if (length <= state.buffer.length) return;
    const bigger = Buffer.allocUnsafe(Math.max(length, 2 * state.buffer.length, SMALLEST_BUFFER));
    state.buffer.copy(bigger, 0, 0, state.length);
    this.#resize(state, bigger);
  }

  #resize(state: StreamState<Tag>, buffer: Buffer): void {
    this.#bytes += buffer.length - state.buffer.length;
    state.buffer = buffer;
  }

  #giveUp(key: string, state: StreamState<Tag>): void {
    this.#givenUp += 1;
    this.#end(key, state);
  }

  #end(key: string, state: StreamState<Tag>): void {
    this.#resize(state, EMPTY);
    for (const { data } of state.outOfOrder) this.#bytes -= data.length;
    state.outOfOrder.length = 0;
    this.#streams.delete(key);
  }
}

/** Distance of sequence numbers modulo 2^32; negative if `to` is before `from`. */
function distance(from: number, to: number): number {
  return (to - from) | 0;
}
