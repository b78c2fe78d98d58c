/** Finds names and records in a DNS message (RFC 1035, 4.1) without decoding them. */

/**
 * RFC 1035 limits labels to 63 bytes. Greater length bytes are compression pointers or label types
 * that are not in use.
 */
export const MAX_LABEL_LENGTH = 63;
/** The two high bits of the first byte of a compression pointer. */
const POINTER = 0xc0;
/** Bytes of type, class, TTL and data length, between a record's name and its data. */
export const RECORD_HEAD_LENGTH = 10;

/** Type, class and offsets of one record. */
export interface RecordOffsets {
  /** Offset of the record's name. */
  readonly start: number;
  /** Offset of the type field, which class, TTL and data length follow. */
  readonly typeOffset: number;
  readonly type: number;
  readonly class: number;
  /** Offset of the record's data, which ends at `end`. */
  readonly data: number;
  readonly end: number;
}

/**
 * @returns the end offset of a name; undefined if a label exceeds the message or is malformed. Of a
 * compression pointer only the first byte is read, so the end may exceed the message by one byte.
 */
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
 * Finds consecutive records.
 * @param start offset of the first record.
 * @returns undefined if a record exceeds the message or has a malformed name.
 */
export function recordOffsets(
  bytes: Buffer,
  start: number,
  count: number,
): readonly RecordOffsets[] | undefined {
  const records: RecordOffsets[] = [];
  let at = start;
  for (let index = 0; index < count; index++) {
    const typeOffset = endOfName(bytes, at);
    if (typeOffset === undefined || typeOffset + RECORD_HEAD_LENGTH > bytes.length)
      return undefined;
    const data = typeOffset + RECORD_HEAD_LENGTH;
    const end = data + bytes.readUInt16BE(typeOffset + 8);
    if (end > bytes.length) return undefined;
    const type = bytes.readUInt16BE(typeOffset);
    records.push({
      start: at,
      typeOffset,
      type,
      class: bytes.readUInt16BE(typeOffset + 2),
      data,
      end,
    });
    at = end;
  }
  return records;
}

/**
 * Copies bytes for long-term storage. Node.js cuts small buffers from a pool of 64 KiB blocks, and
 * a block stays in memory as long as any part of it is used.
 * @returns a copy that shares no memory with other buffers.
 */
export function unpooledCopy(bytes: Buffer): Buffer {
  const copy = Buffer.allocUnsafeSlow(bytes.length);
  bytes.copy(copy);
  return copy;
}
