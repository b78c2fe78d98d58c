/** Messages of netlink: their header, several of them in one send, and those of one receive. */
import { align } from './attribute.ts';
import { MalformedMessage } from './error.ts';
import { readU16, readU32, writeU16, writeU32 } from './host-order.ts';

/** struct nlmsghdr of linux/netlink.h: u32 length, u16 type, u16 flags, u32 sequence, u32 port. */
export const NLMSG_HDRLEN = 16;
/** Offset of the port. */
export const NLMSG_PID_OFFSET = 12;

/** Flags of linux/netlink.h, as far as they are used. */
export const NLM_F_REQUEST = 0x01;
export const NLM_F_ACK = 0x04;
/** The kernel's table changed while it was dumped: entries may be missing or come twice. */
export const NLM_F_DUMP_INTR = 0x10;
export const NLM_F_DUMP = 0x300;

/** Message types that every netlink protocol shares. */
export const NLMSG_ERROR = 2;
export const NLMSG_DONE = 3;

/** A message to be sent; the payload starts with the header of its protocol (nfgenmsg, ifaddrmsg). */
export interface NetlinkRequest {
  readonly type: number;
  /** Beyond NLM_F_REQUEST, which is always set. */
  readonly flags?: number;
  readonly payload: Buffer;
}

/** A message that was received. */
export interface NetlinkMessage {
  readonly type: number;
  readonly flags: number;
  /** Of the request that it answers; of a notification, whatever its cause had. */
  readonly sequence: number;
  /** Of a notification, the port of the socket whose request caused it; 0 for the kernel itself. */
  readonly portId: number;
  /** A view of the receive buffer: whoever keeps it beyond the callback must copy it. */
  readonly payload: Buffer;
}

/** Messages that are packed for one send, not numbered yet. */
export interface PackedMessages {
  readonly bytes: Buffer;
  /** Where each message starts. */
  readonly starts: readonly number[];
}

/** Numbers packed messages upwards from `sequence` (modulo 2^32), in place. */
export function numberMessages({ bytes, starts }: PackedMessages, sequence: number): void {
  for (const [index, start] of starts.entries()) {
    writeU32(bytes, (sequence + index) >>> 0, start + 8);
  }
}

/** Packs messages for one send, numbered upwards from `sequence`. */
export function encodeMessages(requests: readonly NetlinkRequest[], sequence: number): Buffer {
  const packed = packMessages(requests);
  numberMessages(packed, sequence);
  return packed.bytes;
}

/** Packs messages for one send. */
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

/** The sequence number follows with `numberMessages`; the port is left to the kernel. */
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
 * Splits what one receive brought.
 * @throws MalformedMessage at a header or a length that reaches beyond the end.
 */
export function readMessages(bytes: Buffer): NetlinkMessage[] {
  const messages: NetlinkMessage[] = [];
  let offset = 0;
  while (offset < bytes.length) {
    const left = bytes.length - offset;
    if (left < NLMSG_HDRLEN) throw new MalformedMessage(`${left} bytes where a header should be`);
    const length = readU32(bytes, offset);
    if (length < NLMSG_HDRLEN || length > left) {
      throw new MalformedMessage(`message of ${length} bytes where ${left} are left`);
    }
    messages.push({
      type: readU16(bytes, offset + 4),
      flags: readU16(bytes, offset + 6),
      sequence: readU32(bytes, offset + 8),
      portId: readU32(bytes, offset + NLMSG_PID_OFFSET),
      payload: bytes.subarray(offset + NLMSG_HDRLEN, offset + length),
    });
    // Not align(): beyond 2^31 it would turn negative, and the loop would never end.
    offset += Math.ceil(length / 4) * 4;
  }
  return messages;
}
