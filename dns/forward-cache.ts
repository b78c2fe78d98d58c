/** What resolvers answered, for as long as they say that it may be kept (RFC 1034, 3.6; RFC 2308). */
import { type DnsQuery, HEADER_LENGTH, RCODES } from './query.ts';
import { FLAG, isTruncated, OPT_LENGTH, rcodeIn, writeOpt } from './response.ts';
import { TYPE } from './types.ts';
import { type RecordOffsets, recordOffsets, unpooledCopy } from './wire.ts';

type CacheType = 'success' | 'denial';

export interface ForwardCacheOptions {
  /** Seconds that an answer is kept at most; 0: nothing is kept. */
  readonly maxTtl: number;
  /** Seconds since any moment; fractions count. */
  readonly now: () => number;
  /** From 0 up to and without 1. */
  readonly random: () => number;
  /** Bytes of all answers together, and how many there may be. */
  readonly maxBytes?: number;
  readonly maxEntries?: number;
}

/** For metrics. */
export interface CacheStats {
  readonly hits: Readonly<Record<CacheType, number>>;
  readonly misses: number;
  readonly entries: Readonly<Record<CacheType, number>>;
  readonly evictions: Readonly<Record<CacheType, number>>;
}

interface Entry {
  readonly type: CacheType;
  /** From the header to the last record that is not an OPT record. */
  readonly bytes: Buffer;
  /** Where TTLs are. */
  readonly ttls: readonly number[];
  /** Addresses of one name, which may change places. */
  readonly addresses: { readonly start: number; readonly length: number; readonly count: number };
  readonly from: number;
  readonly until: number;
}

/** CoreDNS keeps 9,984 answers and as many denials. */
const MAX_ENTRIES = 10_000;
/** Most answers take some hundred bytes; of those that come by TCP a few would do. */
const MAX_BYTES = 8 << 20;
/** Bits of the header that change what a resolver answers: RD, AD (RFC 6840, 5.7) and CD (RFC 4035, 3.2.2). */
const REQUEST_FLAGS = FLAG.RD | 0x20 | 0x10;
/** From the end of an SOA record: its last field, the TTL of what there is not (RFC 2308, 4). */
const SOA_MINIMUM = 4;

/** Answers of resolvers by question. The one that was asked for longest ago makes room. */
export class ForwardCache {
  readonly #options: Required<ForwardCacheOptions>;
  readonly #entries = new Map<string, Entry>();
  #bytes = 0;
  readonly #stats = {
    hits: { success: 0, denial: 0 },
    misses: 0,
    entries: { success: 0, denial: 0 },
    evictions: { success: 0, denial: 0 },
  };

  constructor(options: ForwardCacheOptions) {
    this.#options = { maxBytes: MAX_BYTES, maxEntries: MAX_ENTRIES, ...options };
  }

  get stats(): CacheStats {
    return this.#stats;
  }

  /**
   * @param bytes of the query.
   * @returns an answer to it, in bytes of its own: under id 0, with its question, an OPT record if it has one, and
   * TTLs as they are now.
   */
  get(query: DnsQuery, bytes: Buffer): Buffer | undefined {
    const key = this.#keyOf(query, bytes);
    if (key === undefined) return undefined;
    const entry = this.#entries.get(key);
    const now = this.#options.now();
    if (entry === undefined || now >= entry.until) {
      if (entry !== undefined) this.#delete(key, entry);
      this.#stats.misses += 1;
      return undefined;
    }
    this.#stats.hits[entry.type] += 1;
    // The last is the one that was asked for last.
    this.#entries.delete(key);
    this.#entries.set(key, entry);
    return answerOf(entry, query, Math.floor(now - entry.from), this.#options.random);
  }

  /** @param bytes of the query. @param response to it, checked to be. */
  set(query: DnsQuery, bytes: Buffer, response: Buffer): void {
    const key = this.#keyOf(query, bytes);
    const now = this.#options.now();
    const entry = key === undefined ? undefined : this.#read(query, response, now);
    if (key === undefined || entry === undefined || entry.until <= now) return;
    const before = this.#entries.get(key);
    if (before !== undefined) this.#delete(key, before);
    const { maxBytes, maxEntries } = this.#options;
    for (const [oldest, each] of this.#entries) {
      if (this.#entries.size < maxEntries && this.#bytes + entry.bytes.length <= maxBytes) break;
      this.#delete(oldest, each);
      this.#stats.evictions[each.type] += 1;
    }
    this.#entries.set(key, entry);
    this.#bytes += entry.bytes.length;
    this.#stats.entries[entry.type] += 1;
  }

  #delete(key: string, { bytes, type }: Entry): void {
    this.#entries.delete(key);
    this.#bytes -= bytes.length;
    this.#stats.entries[type] -= 1;
  }

  /** undefined for queries whose answers are for their clients alone, or change at any time. */
  #keyOf({ name, type, edns, recursionDesired }: DnsQuery, bytes: Buffer): string | undefined {
    if (this.#options.maxTtl === 0 || !recursionDesired || type === TYPE.ANY) return undefined;
    if (edns?.hasSubnet) return undefined;
    const flags = bytes.readUInt16BE(2) & REQUEST_FLAGS;
    const known = edns === undefined ? 'plain' : edns.dnssecOk;
    return `${flags} ${known} ${type} ${name}`;
  }

  /** @returns undefined when it must not be kept. */
  #read({ question, type }: DnsQuery, response: Buffer, now: number): Entry | undefined {
    const code = rcodeIn(response);
    if (code !== RCODES.NOERROR && code !== RCODES.NXDOMAIN) return undefined;
    if (isTruncated(response) || response.readUInt16BE(4) !== 1) return undefined;
    const counts = [6, 8, 10].map((at) => response.readUInt16BE(at));
    const [answerCount = 0, authorityCount = 0, additionalCount = 0] = counts;
    const start = HEADER_LENGTH + question.length;
    const places = recordOffsets(response, start, answerCount + authorityCount + additionalCount);
    if (places === undefined) return undefined;
    const opt = places.find((place) => place.type === TYPE.OPT);
    // Names of records behind it could lead to places that move.
    if (opt !== undefined && opt !== places.at(-1)) return undefined;
    // Of a code above 15 the header has a part only.
    if (opt !== undefined && response.readUInt8(opt.typeOffset + 4) !== 0) return undefined;
    const kept = opt === undefined ? places : places.slice(0, -1);
    const answers = kept.slice(0, answerCount);
    const isDenial = code === RCODES.NXDOMAIN || !answers.some((place) => place.type === type);
    const soa = kept
      .slice(answerCount, answerCount + authorityCount)
      .find((place) => place.type === TYPE.SOA);
    // RFC 2308, 5: without an SOA record nobody says how long there will be nothing.
    if (isDenial && soa === undefined) return undefined;
    const bytes = unpooledCopy(response.subarray(0, kept.at(-1)?.end ?? start));
    bytes.writeUInt16BE(opt === undefined ? additionalCount : additionalCount - 1, 10);
    if (isDenial && soa !== undefined) capSoaTtl(bytes, soa);
    const ttls = kept.map(({ typeOffset: head }) => head + 4);
    const ttl = Math.min(this.#options.maxTtl, ...ttls.map((at) => ttlAt(bytes, at)));
    return {
      type: isDenial ? 'denial' : 'success',
      bytes,
      ttls,
      addresses: addressesIn(bytes, answers),
      from: now,
      until: now + ttl,
    };
  }
}

function answerOf(entry: Entry, query: DnsQuery, age: number, random: () => number): Buffer {
  const { bytes, ttls, addresses } = entry;
  const { question, edns } = query;
  const out = Buffer.allocUnsafe(bytes.length + (edns === undefined ? 0 : OPT_LENGTH));
  bytes.copy(out);
  out.writeUInt16BE(0, 0);
  // What was kept is nobody's own word (RFC 1034, 4.3.1).
  out.writeUInt16BE(out.readUInt16BE(2) & ~FLAG.AA, 2);
  question.copy(out, HEADER_LENGTH);
  for (const at of ttls) out.writeUInt32BE(Math.max(0, ttlAt(bytes, at) - age), at);
  const { start, length, count } = addresses;
  if (count > 1) {
    const turned = Buffer.from(out.subarray(start, start + length * count));
    const first = Math.floor(random() * count) * length;
    turned.copy(out, start, first);
    turned.copy(out, start + turned.length - first, 0, first);
  }
  if (edns === undefined) return out;
  out.writeUInt16BE(out.readUInt16BE(10) + 1, 10);
  writeOpt(out, bytes.length, query, 'NOERROR');
  return out;
}

/** RFC 2181, 8: a TTL with its first bit set is 0. */
function ttlAt(bytes: Buffer, at: number): number {
  const ttl = bytes.readUInt32BE(at);
  return ttl > 0x7fff_ffff ? 0 : ttl;
}

/** RFC 2308, 3 and 5: the lesser of the record's TTL and its last field is how long there will be nothing. */
function capSoaTtl(bytes: Buffer, { typeOffset: head, end }: RecordOffsets): void {
  const ttl = Math.min(ttlAt(bytes, head + 4), ttlAt(bytes, end - SOA_MINIMUM));
  bytes.writeUInt32BE(ttl, head + 4);
}

/** The addresses at the end of the answers, if they are of one name that is written in the same way for each. */
function addressesIn(bytes: Buffer, answers: readonly RecordOffsets[]): Entry['addresses'] {
  const last = answers.at(-1);
  if (last === undefined || (last.type !== TYPE.A && last.type !== TYPE.AAAA)) return NO_ADDRESSES;
  // The first may have its name in full, which those behind it point to.
  const owner = bytes.subarray(last.start, last.typeOffset);
  const length = last.end - last.start;
  let count = 0;
  for (const { start, typeOffset: head, end, type } of answers.toReversed()) {
    const isAlike = type === last.type && end - start === length;
    if (!isAlike || !owner.equals(bytes.subarray(start, head))) break;
    count += 1;
  }
  return { start: last.end - count * length, length, count };
}

const NO_ADDRESSES = { start: 0, length: 0, count: 0 };
