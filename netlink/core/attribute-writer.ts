/**
 * Writes attributes directly into a growing buffer. For large batches, the object per attribute
 * that `encodeAttributes` needs would cost too much.
 */
import { align, NLA_F_NESTED, NLA_HDRLEN } from './attribute.ts';
import { writeU16 } from './host-order.ts';

const FIRST_CAPACITY = 2048;

/** A growing buffer of attributes. Only `reserve` grows it: call `reserve` before writing. */
export class AttributeWriter {
  bytes = Buffer.allocUnsafe(FIRST_CAPACITY);
  length = 0;

  /** Makes room for `more` bytes. */
  reserve(more: number): void {
    const needed = this.length + more;
    if (needed <= this.bytes.length) return;
    const bigger = Buffer.allocUnsafe(Math.max(needed, this.bytes.length * 2));
    this.bytes.copy(bigger, 0, 0, this.length);
    this.bytes = bigger;
  }

  /** Starts a nested attribute. @returns its offset, for `close`. */
  open(type: number): number {
    const start = this.length;
    writeU16(this.bytes, type | NLA_F_NESTED, start + 2);
    this.length += NLA_HDRLEN;
    return start;
  }

  /** Ends a nested attribute: writes its length. @param start From `open`. */
  close(start: number): void {
    writeU16(this.bytes, this.length - start, start);
  }

  /** Writes an attribute and its padding. */
  value(type: number, value: Buffer): void {
    writeU16(this.bytes, NLA_HDRLEN + value.length, this.length);
    writeU16(this.bytes, type, this.length + 2);
    this.length += NLA_HDRLEN;
    this.append(value);
  }

  /** Writes a u32 attribute in network order. */
  u32(type: number, value: number): void {
    writeU16(this.bytes, NLA_HDRLEN + 4, this.length);
    writeU16(this.bytes, type, this.length + 2);
    this.bytes.writeUInt32BE(value, this.length + NLA_HDRLEN);
    this.length += NLA_HDRLEN + 4;
  }

  /** Copies bytes and pads them with zeros to the next 4-byte boundary. */
  append(bytes: Buffer): void {
    bytes.copy(this.bytes, this.length);
    const end = this.length + bytes.length;
    this.length += align(bytes.length);
    for (let gap = end; gap < this.length; gap++) this.bytes[gap] = 0;
  }
}
