/** Encodes and decodes conntrack tuples. A tuple is one direction of a connection. */
import { addressBytes } from '../core/address.ts';
import {
  type Attribute,
  align,
  attributeEnd,
  attributeType,
  NLA_HDRLEN,
} from '../core/attribute.ts';
import { encodeNumber, readNumber } from '../core/network-order.ts';

/** linux/netfilter/nfnetlink_conntrack.h */
export const CTA_TUPLE_IP = 1;
export const CTA_TUPLE_PROTO = 2;
const CTA_TUPLE_ZONE = 3;
export const CTA_IP_V4_SRC = 1;
export const CTA_IP_V4_DST = 2;
export const CTA_IP_V6_SRC = 3;
export const CTA_IP_V6_DST = 4;
const CTA_PROTO_NUM = 1;
export const CTA_PROTO_SRC_PORT = 2;
export const CTA_PROTO_DST_PORT = 3;
const CTA_PROTO_ICMP_ID = 4;
const CTA_PROTO_ICMPV6_CODE = 9;

const IPPROTO_ICMP = 1;
const IPPROTO_ICMPV6 = 58;
/**
 * Attribute type of the ICMP ID, by protocol. The next two attribute types are the ICMP type and
 * code.
 */
const icmpIds = new Map([
  [IPPROTO_ICMP, CTA_PROTO_ICMP_ID],
  [IPPROTO_ICMPV6, 7],
]);

/**
 * A received tuple, with addresses as offsets into the message. As in struct nf_conntrack_tuple of
 * the kernel, the source port contains the ICMP ID, and the destination port the ICMP type and
 * code.
 */
export type Tuple = ReturnType<typeof emptyTuple>;

export function emptyTuple() {
  return {
    srcStart: 0,
    srcEnd: 0,
    dstStart: 0,
    /** End offset of the destination address; 0 if the tuple has no addresses. */
    dstEnd: 0,
    protocol: 0,
    srcPort: 0,
    dstPort: 0,
    zone: 0,
  };
}

/** A tuple to send. Undefined fields are omitted, because a dump filter has only some fields. */
interface TupleText {
  readonly src: string | undefined;
  readonly dst: string | undefined;
  readonly protocol: number | undefined;
  readonly ports: readonly [src: number, dst: number] | undefined;
}

/** Clears a tuple before it is read again. */
export function clearTuple(tuple: Tuple): void {
  tuple.srcStart = 0;
  tuple.srcEnd = 0;
  tuple.dstStart = 0;
  tuple.dstEnd = 0;
  tuple.protocol = 0;
  tuple.srcPort = 0;
  tuple.dstPort = 0;
  tuple.zone = 0;
}

/**
 * Reads a CTA_TUPLE_ORIG or CTA_TUPLE_REPLY. Loops without callbacks, as in `EntryReader`.
 * @param tuple Receives the fields; must come from `emptyTuple` or `clearTuple`.
 * @throws MalformedMessage
 */
export function readTuple(bytes: Buffer, start: number, end: number, tuple: Tuple): void {
  for (let at = start; at + NLA_HDRLEN <= end; ) {
    const valueEnd = attributeEnd(bytes, at, end);
    const value = at + NLA_HDRLEN;
    const type = attributeType(bytes, at);
    if (type === CTA_TUPLE_IP) readAddresses(bytes, value, valueEnd, tuple);
    else if (type === CTA_TUPLE_PROTO) readProtocol(bytes, value, valueEnd, tuple);
    else if (type === CTA_TUPLE_ZONE) tuple.zone = readNumber(bytes, value, valueEnd, 2);
    at += align(valueEnd - at);
  }
}

function readAddresses(bytes: Buffer, start: number, end: number, tuple: Tuple): void {
  for (let at = start; at + NLA_HDRLEN <= end; ) {
    const valueEnd = attributeEnd(bytes, at, end);
    const type = attributeType(bytes, at);
    if (type === CTA_IP_V4_SRC || type === CTA_IP_V6_SRC) {
      tuple.srcStart = at + NLA_HDRLEN;
      tuple.srcEnd = valueEnd;
    } else if (type === CTA_IP_V4_DST || type === CTA_IP_V6_DST) {
      tuple.dstStart = at + NLA_HDRLEN;
      tuple.dstEnd = valueEnd;
    }
    at += align(valueEnd - at);
  }
}

function readProtocol(bytes: Buffer, start: number, end: number, tuple: Tuple): void {
  for (let at = start; at + NLA_HDRLEN <= end; ) {
    const valueEnd = attributeEnd(bytes, at, end);
    const value = at + NLA_HDRLEN;
    const type = attributeType(bytes, at);
    if (type === CTA_PROTO_NUM) tuple.protocol = readNumber(bytes, value, valueEnd, 1);
    else if (type === CTA_PROTO_SRC_PORT) tuple.srcPort = readNumber(bytes, value, valueEnd, 2);
    else if (type === CTA_PROTO_DST_PORT) tuple.dstPort = readNumber(bytes, value, valueEnd, 2);
    else if (type >= CTA_PROTO_ICMP_ID && type <= CTA_PROTO_ICMPV6_CODE) {
      const part = (type - CTA_PROTO_ICMP_ID) % 3;
      if (part === 0) tuple.srcPort = readNumber(bytes, value, valueEnd, 2);
      else if (part === 1) tuple.dstPort |= readNumber(bytes, value, valueEnd, 1) << 8;
      else tuple.dstPort |= readNumber(bytes, value, valueEnd, 1);
    }
    at += align(valueEnd - at);
  }
}

/** The nested attributes of a CTA_TUPLE_ORIG or CTA_TUPLE_REPLY. */
export function tupleAttributes({ src, dst, protocol, ports }: TupleText): Attribute[] {
  const tuple: Attribute[] = [];
  const addresses: Attribute[] = [];
  if (src !== undefined) addresses.push(addressAttribute(src, CTA_IP_V4_SRC, CTA_IP_V6_SRC));
  if (dst !== undefined) addresses.push(addressAttribute(dst, CTA_IP_V4_DST, CTA_IP_V6_DST));
  if (addresses.length > 0) tuple.push({ type: CTA_TUPLE_IP, value: addresses });
  if (protocol !== undefined) {
    const value: Attribute[] = [{ type: CTA_PROTO_NUM, value: encodeNumber(protocol, 1) }];
    if (ports !== undefined) value.push(...portAttributes(protocol, ports));
    tuple.push({ type: CTA_TUPLE_PROTO, value });
  }
  return tuple;
}

function addressAttribute(text: string, v4: number, v6: number): Attribute {
  const value = addressBytes(text);
  return { type: value.length === 4 ? v4 : v6, value };
}

function portAttributes(protocol: number, [src, dst]: readonly [number, number]): Attribute[] {
  const id = icmpIds.get(protocol);
  if (id === undefined) {
    return [
      { type: CTA_PROTO_SRC_PORT, value: encodeNumber(src, 2) },
      { type: CTA_PROTO_DST_PORT, value: encodeNumber(dst, 2) },
    ];
  }
  return [
    { type: id, value: encodeNumber(src, 2) },
    { type: id + 1, value: encodeNumber(dst >> 8, 1) },
    { type: id + 2, value: encodeNumber(dst & 0xff, 1) },
  ];
}
