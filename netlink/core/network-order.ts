/**
 * Integers in network byte order, as in netfilter attributes. For the host byte order see
 * host-order.ts.
 */
import { MalformedMessage } from './error.ts';

/** @throws MalformedMessage if the value has fewer than `size` bytes. */
export function readNumber(bytes: Buffer, start: number, end: number, size: 1 | 2 | 4): number {
  if (end - start < size)
    throw new MalformedMessage(`integer attribute has ${end - start} bytes; must have ${size}`);
  if (size === 4) return bytes.readUInt32BE(start);
  return size === 2 ? bytes.readUInt16BE(start) : bytes.readUInt8(start);
}

/** A number of 64 bits; exact up to 2^53. @throws MalformedMessage if the value has fewer than 8 bytes. */
export function readU64(bytes: Buffer, start: number, end: number): number {
  if (end - start < 8) {
    throw new MalformedMessage(`integer attribute has ${end - start} bytes; must have 8`);
  }
  return bytes.readUInt32BE(start) * 2 ** 32 + bytes.readUInt32BE(start + 4);
}

/**
 * Reads the number in an attribute; undefined if the attribute is missing.
 * @throws MalformedMessage as `readNumber`.
 */
export function optionalNumber(
  attributes: ReadonlyMap<number, Buffer>,
  type: number,
  size: 1 | 2 | 4,
): number | undefined {
  const bytes = attributes.get(type);
  return bytes && readNumber(bytes, 0, bytes.length, size);
}

/** Encodes a number in network order. @throws RangeError if the value does not fit `size` bytes. */
export function encodeNumber(value: number, size: 1 | 2 | 4 | 8): Buffer {
  const bytes = Buffer.allocUnsafe(size);
  if (size === 8) bytes.writeBigUInt64BE(BigInt(value));
  else bytes.writeUIntBE(value, 0, size);
  return bytes;
}
