/**
 * DNS messages out of the segments of TCP connections, each direction by itself. A stream is followed
 * from its SYN on: one that was there before, or of which a part was never seen, tells nothing.
 *
 * A gap is closed by the segment that is missing, and until that has gone on nobody can read what is
 * behind it. So it is enough to hold back the one that completes a message.
 */
import type { TcpSegment } from './packet.ts';

/** One direction of a connection. */
export interface Stream<Tag> {
  /** For whoever follows the stream. */
  tag: Tag | undefined;
}

export interface StreamLimits {
  /** Streams that are followed; of more, those that were silent the longest are given up. */
  readonly streams: number;
  /** Bytes that wait in all streams, for the rest of a message or for what is missing before them. */
  readonly bytes: number;
  /** Segments that wait in one stream for what is missing before them. */
  readonly early: number;
}

const STREAM_LIMITS: StreamLimits = { streams: 4096, bytes: 8 << 20, early: 64 };

/** A message has its length before it, in two bytes (RFC 1035, 4.2.2). */
const LENGTH = 2;
/** Bytes from where a stream is at which a segment may begin: more than any window in use. */
const WINDOW = 1 << 20;
const SMALLEST_BUFFER = 512;

interface StreamState<Tag> extends Stream<Tag> {
  /** Sequence number of the byte that comes next. */
  next: number;
  /** Begin of a message, of which `length` bytes are there. */
  buffer: Buffer;
  length: number;
  /** Segments behind a gap. */
  readonly early: { readonly start: number; readonly data: Buffer }[];
}

const EMPTY = Buffer.alloc(0);

export class TcpStreams<Tag> {
  readonly #limits: StreamLimits;
  /** The one that was silent the longest comes first. */
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
   * Takes a segment.
   * @param onMessage Has the messages that it completes, valid during the call.
   * @returns the stream; undefined for one that is not followed.
   */
  addSegment(segment: TcpSegment, onMessage: (message: Buffer) => void): Stream<Tag> | undefined {
    const key = segment.source + segment.destination;
    const known = this.#streams.get(key);
    if (segment.rst) {
      if (known !== undefined) this.#end(key, known);
      return undefined;
    }
    const state = segment.syn ? this.#begin(key, segment, known) : known;
    if (state === undefined) return undefined;
    // To the end.
    this.#streams.delete(key);
    this.#streams.set(key, state);
    if (!this.#follow(state, segment, onMessage)) this.#giveUp(key, state);
    for (const [oldest, silent] of this.#streams) {
      const { streams, bytes } = this.#limits;
      if (this.#streams.size <= streams && this.#bytes <= bytes) break;
      this.#giveUp(oldest, silent);
    }
    return state;
  }

  #begin(
    key: string,
    { sequence }: TcpSegment,
    known: StreamState<Tag> | undefined,
  ): StreamState<Tag> {
    const next = (sequence + 1) >>> 0;
    // Sent once more, perhaps when data has come already.
    if (known !== undefined && known.next === next) return known;
    if (known !== undefined) this.#end(key, known);
    return { tag: undefined, next, buffer: EMPTY, length: 0, early: [] };
  }

  /** @returns whether the stream can be followed further. */
  #follow(
    state: StreamState<Tag>,
    { sequence, syn, data }: TcpSegment,
    onMessage: (message: Buffer) => void,
  ): boolean {
    const { early } = state;
    const start = syn ? (sequence + 1) >>> 0 : sequence;
    if (distance(state.next, start) > 0) return this.#queueOutOfOrder(state, start, data);
    let isSound = this.#append(state, start, data, onMessage);
    // What waited may come next now.
    for (;;) {
      const index = early.findIndex((each) => distance(state.next, each.start) <= 0);
      const [segment] = index === -1 ? [] : early.splice(index, 1);
      if (segment === undefined) return isSound;
      this.#bytes -= segment.data.length;
      isSound = isSound && this.#append(state, segment.start, segment.data, onMessage);
    }
  }

  /** Keeps a segment that comes too early. */
  #queueOutOfOrder({ early, next }: StreamState<Tag>, start: number, data: Buffer): boolean {
    if (data.length === 0 || distance(next, start) > WINDOW) return true;
    if (early.some((each) => each.start === start && each.data.length >= data.length)) return true;
    if (early.length >= this.#limits.early) return false;
    early.push({ start, data: Buffer.from(data) });
    this.#bytes += data.length;
    return true;
  }

  /** Takes what is new of a segment that begins where the stream is, or before. */
  #append(
    state: StreamState<Tag>,
    start: number,
    data: Buffer,
    onMessage: (message: Buffer) => void,
  ): boolean {
    const fresh = data.subarray(Math.min(-distance(state.next, start), data.length));
    if (fresh.length === 0) return true;
    state.next = (state.next + fresh.length) >>> 0;
    this.#reserve(state, state.length + fresh.length);
    fresh.copy(state.buffer, state.length);
    state.length += fresh.length;

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
    for (const { data } of state.early) this.#bytes -= data.length;
    state.early.length = 0;
    this.#streams.delete(key);
  }
}

/** How far sequence numbers, which are modulo 2^32, are apart; negative when the second is before. */
function distance(from: number, to: number): number {
  return (to - from) | 0;
}
