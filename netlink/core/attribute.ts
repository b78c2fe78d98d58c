/**
 * Encodes and decodes netlink attributes (struct nlattr), the content of every message after its
 * headers.
 */
import { MalformedMessage } from './error.ts';
import { readU16, writeU16 } from './host-order.ts';

/** struct nlattr of linux/netlink.h: u16 length, u16 type, value, padding to 4 bytes. */
export const NLA_HDRLEN = 4;
export const NLA_F_NESTED = 0x8000;
/** Flag in the type of a number in network order. Set it where the protocol requires it. */
export const NLA_F_NET_BYTEORDER = 0x4000;
/** Masks out NLA_F_NESTED and NLA_F_NET_BYTEORDER. */
const NLA_TYPE_MASK = 0x3fff;

/** An attribute to send: bytes, or nested attributes. */
export interface Attribute {
  readonly type: number;
  readonly value: Buffer | readonly Attribute[];
}

/** Rounds up to the alignment of messages and attributes (NLMSG_ALIGNTO, NLA_ALIGNTO). */
export function align(length: number): number {
  return (length + 3) & ~3;
}

const NO_HEADER: Buffer = Buffer.alloc(0);

/**
 * Encodes attributes as the payload of a message.
 * @param header Header of the protocol, before the attributes; a multiple of 4 bytes.
 * @throws RangeError if an attribute does not fit its 16-bit length.
 */
export function encodeAttributes(attributes: readonly Attribute[], header = NO_HEADER): Buffer {
  // Use pooled memory: `alloc` would allocate memory for every message. Clear it, because earlier
  // buffer content would otherwise leak in the padding.
  const bytes = Buffer.allocUnsafe(header.length + encodedLength(attributes)).fill(0);
  header.copy(bytes);
  writeAttributes(bytes, header.length, attributes);
  return bytes;
}

function encodedLength(attributes: readonly Attribute[]): number {
  let length = 0;
  for (const { value } of attributes) {
    const own = Buffer.isBuffer(value) ? value.length : encodedLength(value);
    length += align(NLA_HDRLEN + own);
  }
  return length;
}

/** @returns the offset after the attributes. */
function writeAttributes(bytes: Buffer, start: number, attributes: readonly Attribute[]): number {
  let offset = start;
  for (const { type, value } of attributes) {
    const from = offset + NLA_HDRLEN;
    const isPlain = Buffer.isBuffer(value);
    const end = isPlain ? from + value.copy(bytes, from) : writeAttributes(bytes, from, value);
    writeU16(bytes, end - offset, offset);
    writeU16(bytes, isPlain ? type : type | NLA_F_NESTED, offset + 2);
    offset = align(end);
  }
  return offset;
}

/**
 * Visits the attributes between two offsets in order. Passes values as offsets: a dump of 50,000
 * entries has a million attributes, and creating a Buffer for each would cost more than everything
 * else.
 * @throws MalformedMessage if an attribute extends beyond `end`.
 */
export function walkAttributes(
  bytes: Buffer,
  start: number,
  end: number,
  visit: (type: number, start: number, end: number) => void,
): void {
  if (end > bytes.length) throw new MalformedMessage('attributes extend beyond the message');
  let offset = start;
  while (offset + NLA_HDRLEN <= end) {
    const valueEnd = attributeEnd(bytes, offset, end);
    visit(attributeType(bytes, offset), offset + NLA_HDRLEN, valueEnd);
    offset += align(valueEnd - offset);
  }
}

/**
 * The end of the attribute at an offset, for loops that must not create a callback.
 * @throws MalformedMessage if it extends beyond `end`.
 */
export function attributeEnd(bytes: Buffer, offset: number, end: number): number {
  const length = readU16(bytes, offset);
  if (length < NLA_HDRLEN || offset + length > end) {
    throw new MalformedMessage(`attribute length ${length} but ${end - offset} bytes remain`);
  }
  return offset + length;
}

/** The type of the attribute at an offset. */
export function attributeType(bytes: Buffer, offset: number): number {
  return readU16(bytes, offset + 2) & NLA_TYPE_MASK;
}

/**
 * Reads the attributes between two offsets, by type. The last attribute of a type wins, as in the
 * kernel.
 */
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

/**
 * Returns a mandatory attribute.
 * @param protocol Name of the protocol, for the error message.
 * @throws MalformedMessage if the attribute is missing or shorter than `size` bytes.
 */
export function requiredAttribute(
  attributes: ReadonlyMap<number, Buffer>,
  protocol: string,
  type: number,
  size = 0,
): Buffer {
  const value = attributes.get(type);
  if (value === undefined) throw new MalformedMessage(`${protocol} attribute ${type} is missing`);
  if (value.length < size) {
    const found = `${protocol} attribute ${type} has ${value.length} bytes`;
    throw new MalformedMessage(`${found}; must have ${size}`);
  }
  return value;
}
