/**
 * Integers in host byte order, for the netlink header, rtnetlink and generic netlink. Netfilter
 * attributes are in network order: see network-order.ts.
 */
import { endianness } from 'node:os';

const little = endianness() === 'LE';

export function readU16(bytes: Buffer, offset: number): number {
  return little ? bytes.readUInt16LE(offset) : bytes.readUInt16BE(offset);
}

export function readU32(bytes: Buffer, offset: number): number {
  return little ? bytes.readUInt32LE(offset) : bytes.readUInt32BE(offset);
}

export function writeU16(bytes: Buffer, value: number, offset: number): void {
  if (little) bytes.writeUInt16LE(value, offset);
  else bytes.writeUInt16BE(value, offset);
}

export function writeU32(bytes: Buffer, value: number, offset: number): void {
  if (little) bytes.writeUInt32LE(value, offset);
  else bytes.writeUInt32BE(value, offset);
}

/** Writes a pointer or a size_t of a 64-bit system. */
export function writeU64(bytes: Buffer, value: bigint, offset: number): void {
  if (little) bytes.writeBigUInt64LE(value, offset);
  else bytes.writeBigUInt64BE(value, offset);
}

/** A u16 in host order, such as an attribute value. `Buffer.alloc` would take three times as long. */
export function u16(value: number): Buffer {
  const bytes = Buffer.allocUnsafe(2);
  writeU16(bytes, value, 0);
  return bytes;
}

/** A u32 in host order, such as a socket option. */
export function u32(value: number): Buffer {
  const bytes = Buffer.allocUnsafe(4);
  writeU32(bytes, value, 0);
  return bytes;
}
