import { MalformedMessage } from './error.ts';
import { readU16, writeU16 } from './host.ts';

/** struct nlattr of linux/netlink.h: u16 length, u16 type, value, padding to 4 bytes. */
export const ATTRIBUTE_HEADER = 4;
export const NLA_F_NESTED = 0x8000;
/** To be set in the type of a number in network order, where the protocol insists on it. */
export const NLA_F_NET_BYTEORDER = 0x4000;
/** Without NLA_F_NESTED and NLA_F_NET_BYTEORDER. */
const NLA_TYPE_MASK = 0x3fff;

/** An attribute to be sent: bytes, or attributes nested in it. */
export interface Attribute {
  readonly type: number;
  readonly value: Buffer | readonly Attribute[];
}

/** Rounds up to the boundary on which messages and attributes start (NLMSG_ALIGNTO, NLA_ALIGNTO). */
export function align(length: number): number {
  return (length + 3) & ~3;
}

/** @throws RangeError when an attribute does not fit into its 16-bit length. */
export function encodeAttributes(attributes: readonly Attribute[]): Buffer {
  // Not `alloc`, which gives every message memory of its own; gaps must not tell what was there.
  const bytes = Buffer.allocUnsafe(encodedLength(attributes)).fill(0);
  writeAttributes(bytes, 0, attributes);
  return bytes;
}

function encodedLength(attributes: readonly Attribute[]): number {
  let length = 0;
  for (const attribute of attributes) length += align(ATTRIBUTE_HEADER + valueLength(attribute));
  return length;
}

function valueLength({ value }: Attribute): number {
  return Buffer.isBuffer(value) ? value.length : encodedLength(value);
}

function writeAttributes(bytes: Buffer, start: number, attributes: readonly Attribute[]): void {
  let offset = start;
  for (const attribute of attributes) {
    const length = ATTRIBUTE_HEADER + valueLength(attribute);
    writeU16(bytes, length, offset);
    if (Buffer.isBuffer(attribute.value)) {
      writeU16(bytes, attribute.type, offset + 2);
      attribute.value.copy(bytes, offset + ATTRIBUTE_HEADER);
    } else {
      writeU16(bytes, attribute.type | NLA_F_NESTED, offset + 2);
      writeAttributes(bytes, offset + ATTRIBUTE_HEADER, attribute.value);
    }
    offset += align(length);
  }
}

/**
 * Visits the attributes between two offsets, in order. Values are given as offsets, because
 * a dump of 50,000 entries has a million attributes and a Buffer for each would cost more than
 * the rest of the work.
 * @throws MalformedMessage at an attribute that reaches beyond the end.
 */
export function walkAttributes(
  bytes: Buffer,
  start: number,
  end: number,
  visit: (type: number, start: number, end: number) => void,
): void {
  if (end > bytes.length) throw new MalformedMessage('attributes beyond the message');
  let offset = start;
  while (offset + ATTRIBUTE_HEADER <= end) {
    const length = readU16(bytes, offset);
    if (length < ATTRIBUTE_HEADER || offset + length > end) {
      throw new MalformedMessage(`attribute of ${length} bytes where ${end - offset} are left`);
    }
    const type = readU16(bytes, offset + 2) & NLA_TYPE_MASK;
    visit(type, offset + ATTRIBUTE_HEADER, offset + length);
    offset += align(length);
  }
}

/** The attributes between two offsets by type; the last of a type wins, as in the kernel. */
export function readAttributes(
  bytes: Buffer,
  start: number,
  end = bytes.length,
): Map<number, Buffer> {
  const attributes = new Map<number, Buffer>();
  walkAttributes(bytes, start, end, (type, from, to) => {
    attributes.set(type, bytes.subarray(from, to));
  });
  return attributes;
}
