/** Integers in network order, as netfilter's attributes hold them; see host.ts for the others. */
import { MalformedMessage } from './error.ts';

/** @throws MalformedMessage when there are fewer bytes than the number has. */
export function readNumber(bytes: Buffer, start: number, end: number, size: 1 | 2 | 4): number {
  if (end - start < size) throw new MalformedMessage(`number of ${end - start} bytes, not ${size}`);
  if (size === 4) return bytes.readUInt32BE(start);
  return size === 2 ? bytes.readUInt16BE(start) : bytes.readUInt8(start);
}

/** The number in an attribute; undefined when there is none. @throws MalformedMessage as `readNumber`. */
export function optionalNumber(
  attributes: ReadonlyMap<number, Buffer>,
  type: number,
  size: 1 | 2 | 4,
): number | undefined {
  const bytes = attributes.get(type);
  return bytes && readNumber(bytes, 0, bytes.length, size);
}

/** @throws RangeError when the value does not fit. */
export function encodeNumber(value: number, size: 1 | 2 | 4 | 8): Buffer {
  const bytes = Buffer.allocUnsafe(size);
  if (size === 8) bytes.writeBigUInt64BE(BigInt(value));
  else bytes.writeUIntBE(value, 0, size);
  return bytes;
}
