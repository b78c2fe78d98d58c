/** Where the parts of a message lie (RFC 1035, 4.1), without decoding them. */

/** RFC 1035 has 63; a greater length is a pointer, or a kind of label that nobody uses. */
export const MAX_LABEL_LENGTH = 63;
/** The first byte of a pointer has these bits set. */
const POINTER = 0xc0;
/** Type, class, TTL and length of data, between a record's name and its data. */
export const RECORD_HEAD_LENGTH = 10;

/** Offsets of one record. */
export interface RecordOffsets {
  /** Of its name. */
  readonly start: number;
  /** Of its type, which class, TTL and length of data follow. */
  readonly typeOffset: number;
  readonly type: number;
  readonly class: number;
  readonly data: number;
  readonly end: number;
}

/** @returns where a name ends; undefined when that is past the end, or a label is malformed. */
export function endOfName(bytes: Buffer, start: number): number | undefined {
  let at = start;
  for (;;) {
    const length = bytes[at];
    if (length === undefined) return undefined;
    if (length === 0) return at + 1;
    if (length >= POINTER) return at + 2;
    if (length > MAX_LABEL_LENGTH) return undefined;
    at += 1 + length;
  }
}

/**
 * @param start where the first record begins.
 * @returns undefined when one of them goes past the end.
 */
export function recordOffsets(
  bytes: Buffer,
  start: number,
  count: number,
): readonly RecordOffsets[] | undefined {
  const places: RecordOffsets[] = [];
  let at = start;
  for (let index = 0; index < count; index++) {
    const head = endOfName(bytes, at);
    if (head === undefined || head + RECORD_HEAD_LENGTH > bytes.length) return undefined;
    const data = head + RECORD_HEAD_LENGTH;
    const end = data + bytes.readUInt16BE(head + 8);
    if (end > bytes.length) return undefined;
    const type = bytes.readUInt16BE(head);
    places.push({
      start: at,
      typeOffset: head,
      type,
      class: bytes.readUInt16BE(head + 2),
      data,
      end,
    });
    at = end;
  }
  return places;
}

/**
 * For bytes that are kept. Node.js cuts small buffers out of blocks of 64 KiB, and each of these stays in memory for as
 * long as any part of it is used.
 * @returns a copy that shares memory with nothing else.
 */
export function unpooledCopy(bytes: Buffer): Buffer {
  const copy = Buffer.allocUnsafeSlow(bytes.length);
  bytes.copy(copy);
  return copy;
}
