/** Encodes and decodes conntrack entries: dump requests, delete requests and dump replies. */
import { familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';
import { addressBytes, addressFamily, addressFormatter } from '../core/address.ts';
import { type Attribute, encodeAttributes, walkAttributes } from '../core/attribute.ts';
import { MalformedMessage } from '../core/error.ts';
import { u32 } from '../core/host-order.ts';
import { encodeNumber, readNumber } from '../core/network-order.ts';
import { NFGENMSG_LENGTH, nfgenmsg } from '../core/nfnetlink.ts';
import { emptyTuple, readTuple, type Tuple, tupleAttributes } from './tuple.ts';

/** A conntrack entry. Addresses are canonical text. */
export interface ConntrackEntry {
  readonly family: IpFamily;
  /** IP protocol number. */
  readonly protocol: number;
  readonly origSrc: string;
  readonly origDst: string;
  /**
   * Ports; 0 for protocols without ports. As in the kernel's tuple, for ICMP and ICMPv6 the source
   * port is the ID and the destination port is type * 256 + code.
   */
  readonly origSrcPort: number;
  readonly origDstPort: number;
  readonly replySrc: string;
  readonly replyDst: string;
  readonly replySrcPort: number;
  readonly replyDstPort: number;
  /**
   * Opaque ID from the kernel. Distinguishes this entry from a later entry with the same tuple,
   * unless the kernel placed the later entry at the same memory address.
   */
  readonly id: number;
  /** Zone of the original direction; 0 is the default zone. */
  readonly zone: number;
  /** IPS_ bits of linux/netfilter/nf_conntrack_common.h. */
  readonly status: number;
}

/** Fields that are read only when asked for, so that large dumps of tuples stay cheap. */
export interface EntryDetails {
  /** Packets and bytes of both directions; undefined with `net.netfilter.nf_conntrack_acct=0`. */
  readonly counters: { readonly packets: number; readonly bytes: number } | undefined;
  /** Name of the TCP state, such as `ESTABLISHED`; undefined for other protocols. */
  readonly tcpState: string | undefined;
  /**
   * Creation time, milliseconds since 1970; undefined with `net.netfilter.nf_conntrack_timestamp=0`.
   */
  readonly startedAt: number | undefined;
  /** When an event happened, as `startedAt`. Before Linux 6.14 only of `destroy`. */
  readonly eventAt?: number | undefined;
}

/** A conntrack entry with its details. */
export interface DetailedEntry extends ConntrackEntry {
  readonly details: EntryDetails;
  /** IPv4 addresses as signed 32-bit numbers: cheaper to compare than text. undefined for IPv6. */
  readonly origDstBits?: number | undefined;
  readonly replySrcBits?: number | undefined;
}

/** Conditions on an entry; undefined matches everything. */
export interface EntryFilter {
  readonly family: IpFamily;
  /** IP protocol number. */
  readonly protocol?: number | undefined;
  /** Canonical text of the same family. */
  readonly origDst?: string | undefined;
  /** true: only entries with IPS_DST_NAT. */
  readonly translatedOnly?: boolean | undefined;
  /** true: only entries with neither IPS_DST_NAT nor IPS_SEEN_REPLY. */
  readonly unansweredOnly?: boolean | undefined;
}

const AF_UNSPEC = 0;
/** linux/netfilter/nfnetlink_conntrack.h */
export const CTA_TUPLE_ORIG = 1;
export const CTA_TUPLE_REPLY = 2;
export const CTA_STATUS = 3;
export const CTA_PROTOINFO = 4;
export const CTA_COUNTERS_ORIG = 9;
export const CTA_COUNTERS_REPLY = 10;
export const CTA_ID = 12;
export const CTA_ZONE = 18;
export const CTA_TIMESTAMP = 20;
const CTA_FILTER = 25;
const CTA_STATUS_MASK = 26;
export const CTA_TIMESTAMP_EVENT = 27;
export const CTA_COUNTERS_PACKETS = 1;
export const CTA_COUNTERS_BYTES = 2;
export const CTA_PROTOINFO_TCP = 1;
export const CTA_PROTOINFO_TCP_STATE = 1;
export const CTA_TIMESTAMP_START = 1;
export const CTA_TIMESTAMP_STOP = 2;
const CTA_FILTER_ORIG_FLAGS = 1;
const CTA_FILTER_REPLY_FLAGS = 2;
/** A packet was seen in the reply direction: linux/netfilter/nf_conntrack_common.h. */
export const IPS_SEEN_REPLY = 1 << 1;
/** The destination is translated. */
export const IPS_DST_NAT = 1 << 5;
/** enum tcp_conntrack of linux/netfilter/nf_conntrack_tcp.h, by number. */
export const TCP_STATES = [
  'NONE',
  'SYN_SENT',
  'SYN_RECV',
  'ESTABLISHED',
  'FIN_WAIT',
  'CLOSE_WAIT',
  'LAST_ACK',
  'TIME_WAIT',
  'CLOSE',
  'SYN_SENT2',
] as const;
/** Bits of CTA_FILTER_ORIG_FLAGS: net/netfilter/nf_internals.h of the kernel source. */
const FILTER_IP_DST = 2;
const FILTER_PROTO_NUM = 8;

/**
 * The payload of a dump request, for entries of both families without a family. With `kernelFilter`, the kernel filters by protocol and IPv4
 * destination. Only `entryReader` filters by IPv6 destination: the kernel inverts that comparison
 * and would return all other entries (ctnetlink_filter_match_tuple, from 5.8 to at least 6.18).
 */
export function dumpPayload(filter: Partial<EntryFilter>, kernelFilter: boolean): Buffer {
  const { family, protocol } = filter;
  const header = nfgenmsg(family === undefined ? AF_UNSPEC : addressFamily(family));
  const dst = family === 'IPv4' ? filter.origDst : undefined;
  const attributes: Attribute[] = [];
  if (kernelFilter && (protocol !== undefined || dst !== undefined)) {
    const flags =
      (dst === undefined ? 0 : FILTER_IP_DST) | (protocol === undefined ? 0 : FILTER_PROTO_NUM);
    attributes.push(
      {
        type: CTA_TUPLE_ORIG,
        value: tupleAttributes({ src: undefined, dst, protocol, ports: undefined }),
      },
      {
        type: CTA_FILTER,
        value: [
          { type: CTA_FILTER_ORIG_FLAGS, value: u32(flags) },
          { type: CTA_FILTER_REPLY_FLAGS, value: u32(0) },
        ],
      },
    );
  }
  const { mask, value } = statusFilter(filter);
  if (kernelFilter && mask !== 0) {
    // From Linux 5.15 on; older kernels ignore it.
    attributes.push(
      { type: CTA_STATUS, value: encodeNumber(value, 4) },
      { type: CTA_STATUS_MASK, value: encodeNumber(mask, 4) },
    );
  }
  if (attributes.length === 0) return header;
  return encodeAttributes(attributes, header);
}

/** The bits of the status that a filter compares, and their values. */
function statusFilter({ translatedOnly, unansweredOnly }: Partial<EntryFilter>): {
  readonly mask: number;
  readonly value: number;
} {
  if (translatedOnly === true) return { mask: IPS_DST_NAT, value: IPS_DST_NAT };
  return { mask: unansweredOnly === true ? IPS_DST_NAT | IPS_SEEN_REPLY : 0, value: 0 };
}

/**
 * The payload that deletes one entry. It always contains a tuple: without a tuple, the kernel would
 * flush the whole conntrack table.
 */
export function deletePayload(entry: ConntrackEntry): Buffer {
  const tuple = tupleAttributes({
    src: entry.origSrc,
    dst: entry.origDst,
    protocol: entry.protocol,
    ports: [entry.origSrcPort, entry.origDstPort],
  });
  const attributes: Attribute[] = [
    { type: CTA_TUPLE_ORIG, value: tuple },
    { type: CTA_ID, value: encodeNumber(entry.id, 4) },
  ];
  if (entry.zone !== 0) attributes.push({ type: CTA_ZONE, value: encodeNumber(entry.zone, 2) });
  return encodeAttributes(attributes, nfgenmsg(addressFamily(entry.family)));
}

/**
 * Returns a reader for the entries of one dump. It formats addresses only of entries that match the
 * filter.
 * @returns (the reader) undefined for an entry that does not match.
 * @throws RangeError for a destination of the other family; MalformedMessage (the reader).
 */
export function entryReader(filter: EntryFilter): (payload: Buffer) => ConntrackEntry | undefined {
  const format = addressFormatter();
  const passes = byteFilter(filter);
  const { mask, value } = statusFilter(filter);
  return (payload) => {
    if (payload.length < NFGENMSG_LENGTH)
      throw new MalformedMessage('conntrack entry without a header');
    const orig = emptyTuple();
    const reply = emptyTuple();
    let id = 0;
    let status = 0;
    let zone: number | undefined;
    walkAttributes(payload, NFGENMSG_LENGTH, payload.length, (type, start, end) => {
      if (type === CTA_TUPLE_ORIG) readTuple(payload, start, end, orig);
      else if (type === CTA_TUPLE_REPLY) readTuple(payload, start, end, reply);
      else if (type === CTA_STATUS) status = readNumber(payload, start, end, 4);
      else if (type === CTA_ID) id = readNumber(payload, start, end, 4);
      else if (type === CTA_ZONE) zone = readNumber(payload, start, end, 2);
    });
    if (!passes(payload, orig)) return undefined;
    if ((status & mask) !== value) return undefined;
    return {
      family: filter.family,
      protocol: orig.protocol,
      origSrc: format(payload, orig.srcStart, orig.srcEnd),
      origDst: format(payload, orig.dstStart, orig.dstEnd),
      origSrcPort: orig.srcPort,
      origDstPort: orig.dstPort,
      replySrc: format(payload, reply.srcStart, reply.srcEnd),
      replyDst: format(payload, reply.dstStart, reply.dstEnd),
      replySrcPort: reply.srcPort,
      replyDstPort: reply.dstPort,
      id,
      zone: zone ?? orig.zone,
      status,
    };
  };
}

/**
 * Returns a function that reports whether a received entry matches the filter. It compares
 * addresses as bytes, at a tenth of the cost of formatting them as text.
 * @throws RangeError for a destination of the other family.
 */
function byteFilter({
  family,
  protocol,
  origDst,
}: EntryFilter): (bytes: Buffer, orig: Tuple) => boolean {
  if (origDst !== undefined && familyOf(origDst) !== family) {
    throw new RangeError(`${origDst} is not an ${family} address`);
  }
  const expected = origDst === undefined ? undefined : addressBytes(origDst);
  const af = addressFamily(family);
  return (bytes, orig) =>
    bytes[0] === af &&
    (protocol === undefined || orig.protocol === protocol) &&
    (expected === undefined || expected.equals(bytes.subarray(orig.dstStart, orig.dstEnd)));
}
