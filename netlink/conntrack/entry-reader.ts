/**
 * Reads conntrack entries with their details from dumps and events. A busy node has 10,000 events a second, so a reader
 * creates no objects. It fills one entry again and again, and formats an address only on demand.
 */
import type { IpFamily } from '../../api/objects.ts';
import { AF_INET, addressFormatter, ipFamilyOf } from '../core/address.ts';
import { align, attributeEnd, attributeType, NLA_HDRLEN } from '../core/attribute.ts';
import { MalformedMessage } from '../core/error.ts';
import { readNumber, readU64 } from '../core/network-order.ts';
import { NFGENMSG_LENGTH } from '../core/nfnetlink.ts';
import {
  CTA_COUNTERS_BYTES,
  CTA_COUNTERS_ORIG,
  CTA_COUNTERS_PACKETS,
  CTA_COUNTERS_REPLY,
  CTA_ID,
  CTA_PROTOINFO,
  CTA_PROTOINFO_TCP,
  CTA_PROTOINFO_TCP_STATE,
  CTA_STATUS,
  CTA_TIMESTAMP,
  CTA_TIMESTAMP_EVENT,
  CTA_TIMESTAMP_START,
  CTA_TIMESTAMP_STOP,
  CTA_TUPLE_ORIG,
  CTA_TUPLE_REPLY,
  CTA_ZONE,
  type DetailedEntry,
  type EntryDetails,
  TCP_STATES,
} from './entry.ts';
import { clearTuple, emptyTuple, readTuple } from './tuple.ts';

/** A reader for entries of both families. */
export class EntryReader {
  readonly #entry = new ReusedEntry();

  /**
   * Reads the entry between two offsets.
   * @returns an entry that is valid until the next call and while the bytes are unchanged; undefined for another family.
   * @throws MalformedMessage
   */
  read(bytes: Buffer, start: number, end: number): DetailedEntry | undefined {
    return this.#entry.read(bytes, start, end) ? this.#entry : undefined;
  }
}

class ReusedEntry implements DetailedEntry {
  family: IpFamily = 'IPv4';
  id = 0;
  zone = 0;
  status = 0;
  readonly details: { -readonly [Name in keyof EntryDetails]: EntryDetails[Name] } = {
    counters: undefined,
    tcpState: undefined,
    startedAt: undefined,
    eventAt: undefined,
  };
  readonly #counters = { packets: 0, bytes: 0 };
  readonly #format = addressFormatter();
  readonly #orig = emptyTuple();
  readonly #reply = emptyTuple();
  #bytes: Buffer = Buffer.alloc(0);

  get protocol(): number {
    return this.#orig.protocol;
  }
  get origSrc(): string {
    return this.#format(this.#bytes, this.#orig.srcStart, this.#orig.srcEnd);
  }
  get origDst(): string {
    return this.#format(this.#bytes, this.#orig.dstStart, this.#orig.dstEnd);
  }
  get replySrc(): string {
    return this.#format(this.#bytes, this.#reply.srcStart, this.#reply.srcEnd);
  }
  get replyDst(): string {
    return this.#format(this.#bytes, this.#reply.dstStart, this.#reply.dstEnd);
  }
  get origSrcPort(): number {
    return this.#orig.srcPort;
  }
  get origDstPort(): number {
    return this.#orig.dstPort;
  }
  get replySrcPort(): number {
    return this.#reply.srcPort;
  }
  get replyDstPort(): number {
    return this.#reply.dstPort;
  }

  get origDstBits(): number | undefined {
    const { dstStart, dstEnd } = this.#orig;
    return dstEnd - dstStart === 4 ? this.#bytes.readInt32BE(dstStart) : undefined;
  }
  get replySrcBits(): number | undefined {
    const { srcStart, srcEnd } = this.#reply;
    return srcEnd - srcStart === 4 ? this.#bytes.readInt32BE(srcStart) : undefined;
  }

  /** @returns whether the entry has one of the IP families. */
  read(bytes: Buffer, start: number, end: number): boolean {
    if (end - start < NFGENMSG_LENGTH) {
      throw new MalformedMessage('conntrack entry without a header');
    }
    const family = bytes[start] === AF_INET ? 'IPv4' : ipFamilyOf(bytes[start]);
    if (family === undefined) return false;
    const details = this.details;
    this.#bytes = bytes;
    this.family = family;
    this.id = 0;
    this.status = 0;
    this.#counters.packets = 0;
    this.#counters.bytes = 0;
    details.counters = undefined;
    details.tcpState = undefined;
    details.startedAt = undefined;
    details.eventAt = undefined;
    clearTuple(this.#orig);
    clearTuple(this.#reply);
    let zone: number | undefined;
    for (let at = start + NFGENMSG_LENGTH; at + NLA_HDRLEN <= end; ) {
      const valueEnd = attributeEnd(bytes, at, end);
      const value = at + NLA_HDRLEN;
      switch (attributeType(bytes, at)) {
        case CTA_TUPLE_ORIG:
          readTuple(bytes, value, valueEnd, this.#orig);
          break;
        case CTA_TUPLE_REPLY:
          readTuple(bytes, value, valueEnd, this.#reply);
          break;
        case CTA_STATUS:
          this.status = readNumber(bytes, value, valueEnd, 4);
          break;
        case CTA_ID:
          this.id = readNumber(bytes, value, valueEnd, 4);
          break;
        case CTA_ZONE:
          zone = readNumber(bytes, value, valueEnd, 2);
          break;
        case CTA_COUNTERS_ORIG:
        case CTA_COUNTERS_REPLY:
          details.counters = this.#counters;
          this.#addCounters(bytes, value, valueEnd);
          break;
        case CTA_PROTOINFO:
          this.#readTcp(bytes, value, valueEnd);
          break;
        case CTA_TIMESTAMP:
          details.startedAt = timeIn(bytes, value, valueEnd, CTA_TIMESTAMP_START);
          details.eventAt ??= timeIn(bytes, value, valueEnd, CTA_TIMESTAMP_STOP);
          break;
        case CTA_TIMESTAMP_EVENT:
          details.eventAt = readU64(bytes, value, valueEnd) / 1e6;
          break;
      }
      at += align(valueEnd - at);
    }
    this.zone = zone ?? this.#orig.zone;
    return true;
  }

  #addCounters(bytes: Buffer, start: number, end: number): void {
    for (let at = start; at + NLA_HDRLEN <= end; ) {
      const valueEnd = attributeEnd(bytes, at, end);
      const type = attributeType(bytes, at);
      if (type === CTA_COUNTERS_PACKETS) {
        this.#counters.packets += readU64(bytes, at + NLA_HDRLEN, valueEnd);
      } else if (type === CTA_COUNTERS_BYTES) {
        this.#counters.bytes += readU64(bytes, at + NLA_HDRLEN, valueEnd);
      }
      at += align(valueEnd - at);
    }
  }

  #readTcp(bytes: Buffer, start: number, end: number): void {
    const tcp = findAttribute(bytes, start, end, CTA_PROTOINFO_TCP);
    if (tcp === 0) return;
    const tcpEnd = attributeEnd(bytes, tcp, end);
    const state = findAttribute(bytes, tcp + NLA_HDRLEN, tcpEnd, CTA_PROTOINFO_TCP_STATE);
    if (state === 0) return;
    const number = readNumber(bytes, state + NLA_HDRLEN, attributeEnd(bytes, state, tcpEnd), 1);
    this.details.tcpState = TCP_STATES[number];
  }
}

/** A nested attribute with nanoseconds, in milliseconds. */
function timeIn(bytes: Buffer, start: number, end: number, wanted: number): number | undefined {
  const time = findAttribute(bytes, start, end, wanted);
  if (time === 0) return undefined;
  return readU64(bytes, time + NLA_HDRLEN, attributeEnd(bytes, time, end)) / 1e6;
}

/** The offset of a nested attribute; 0 if there is none. */
function findAttribute(bytes: Buffer, start: number, end: number, wanted: number): number {
  for (let at = start; at + NLA_HDRLEN <= end; ) {
    const valueEnd = attributeEnd(bytes, at, end);
    if (attributeType(bytes, at) === wanted) return at;
    at += align(valueEnd - at);
  }
  return 0;
}
