import { MalformedMessage } from './error.ts';

/** Integers in network order, as netfilter's attributes hold them; see host.ts for the others. */

/** @throws MalformedMessage when there are fewer bytes than the number has. */
export function readNumber(bytes: Buffer, start: number, end: number, size: 1 | 2 | 4): number {
  if (end - start < size) throw new MalformedMessage(`number of ${end - start} bytes, not ${size}`);
  if (size === 4) return bytes.readUInt32BE(start);
  return size === 2 ? bytes.readUInt16BE(start) : bytes.readUInt8(start);
}

/** @throws RangeError when the value does not fit. */
export function number(value: number, size: 1 | 2 | 4): Buffer {
  const bytes = Buffer.allocUnsafe(size);
  bytes.writeUIntBE(value, 0, size);
  return bytes;
}
