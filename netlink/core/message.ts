/**
 * Encodes and decodes netlink messages: the header, batches for one send, and the messages of one
 * datagram.
 */
import { align } from './attribute.ts';
import { MalformedMessage } from './error.ts';
import { readU16, readU32, writeU16, writeU32 } from './host-order.ts';

/**
 * Length of struct nlmsghdr (linux/netlink.h): u32 length, u16 type, u16 flags, u32 sequence, u32
 * port ID.
 */
export const NLMSG_HDRLEN = 16;
/** Offset of the port ID (nlmsg_pid). */
export const NLMSG_PID_OFFSET = 12;

/** Message flags of linux/netlink.h. */
export const NLM_F_REQUEST = 0x01;
export const NLM_F_ACK = 0x04;
/** The table changed during the dump: entries may be missing or duplicated. */
export const NLM_F_DUMP_INTR = 0x10;
export const NLM_F_DUMP = 0x300;

/** Message types common to all netlink protocols. */
export const NLMSG_ERROR = 2;
export const NLMSG_DONE = 3;

/** A message to send. The payload starts with the header of its protocol (nfgenmsg, ifaddrmsg). */
export interface NetlinkRequest {
  readonly type: number;
  /** Flags in addition to NLM_F_REQUEST, which is always set. */
  readonly flags?: number;
  readonly payload: Buffer;
}

/** A received message. */
export interface NetlinkMessage {
  readonly type: number;
  readonly flags: number;
  /**
   * The sequence number of the request that this message answers. For a notification: the sequence
   * number of the request that caused the change.
   */
  readonly sequence: number;
  /**
   * For a notification: port ID of the socket whose request caused the change; 0 if the kernel
   * itself made the change.
   */
  readonly portId: number;
  /** A view of the receive buffer. Copy it to keep it beyond the callback. */
  readonly payload: Buffer;
}

/** Messages packed for one send, without sequence numbers. */
export interface PackedMessages {
  readonly bytes: Buffer;
  /** Offset of each message. */
  readonly starts: readonly number[];
}

/** Assigns ascending sequence numbers from `sequence` (modulo 2^32), in place. */
export function numberMessages({ bytes, starts }: PackedMessages, sequence: number): void {
  for (const [index, start] of starts.entries()) {
    writeU32(bytes, (sequence + index) >>> 0, start + 8);
  }
}

/** Packs messages for one send, with ascending sequence numbers from `sequence`. */
export function encodeMessages(requests: readonly NetlinkRequest[], sequence: number): Buffer {
  const packed = packMessages(requests);
  numberMessages(packed, sequence);
  return packed.bytes;
}

/** Packs messages for one send, without sequence numbers. */
export function packMessages(requests: readonly NetlinkRequest[]): PackedMessages {
  let length = 0;
  for (const { payload } of requests) length += NLMSG_HDRLEN + align(payload.length);
  const bytes = Buffer.alloc(length);
  const starts: number[] = [];
  let start = 0;
  for (const request of requests) {
    const { payload } = request;
    writeHeader(bytes, start, request, NLMSG_HDRLEN + payload.length);
    payload.copy(bytes, start + NLMSG_HDRLEN);
    starts.push(start);
    start += NLMSG_HDRLEN + align(payload.length);
  }
  return { bytes, starts };
}

/**
 * Writes a header without a sequence number, which `numberMessages` assigns. The kernel sets the
 * port ID.
 */
export function writeHeader(
  bytes: Buffer,
  start: number,
  { type, flags = 0 }: Pick<NetlinkRequest, 'type' | 'flags'>,
  length: number,
): void {
  writeU32(bytes, length, start);
  writeU16(bytes, type, start + 4);
  writeU16(bytes, flags | NLM_F_REQUEST, start + 6);
  writeU32(bytes, 0, start + 8);
  writeU32(bytes, 0, start + NLMSG_PID_OFFSET);
}

/**
 * Splits a datagram into messages.
 * @throws MalformedMessage if a header or a message extends beyond the end.
 */
export function readMessages(bytes: Buffer): NetlinkMessage[] {
  const messages: NetlinkMessage[] = [];
  for (let offset = 0; offset < bytes.length; ) {
    const end = messageEnd(bytes, offset, bytes.length);
    messages.push({
      type: messageType(bytes, offset),
      flags: readU16(bytes, offset + 6),
      sequence: readU32(bytes, offset + 8),
      portId: readU32(bytes, offset + NLMSG_PID_OFFSET),
      payload: bytes.subarray(offset + NLMSG_HDRLEN, end),
    });
    offset += align(end - offset);
  }
  return messages;
}

/**
 * The end of the message at an offset, for loops that must not create objects.
 * @param end of the datagram.
 * @throws MalformedMessage as `readMessages`.
 */
export function messageEnd(bytes: Buffer, offset: number, end: number): number {
  const left = end - offset;
  if (left < NLMSG_HDRLEN)
    throw new MalformedMessage(`netlink header expected but ${left} bytes remain`);
  const length = readU32(bytes, offset);
  if (length < NLMSG_HDRLEN || length > left) {
    throw new MalformedMessage(`netlink message length ${length} but ${left} bytes remain`);
  }
  return offset + length;
}

/** The type of the message at an offset. */
export function messageType(bytes: Buffer, offset: number): number {
  return readU16(bytes, offset + 4);
}
