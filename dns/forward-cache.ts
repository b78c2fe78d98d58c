/** Cache of responses from upstream resolvers, kept for their TTL (RFC 1034, 3.6; RFC 2308). */
import { type DnsQuery, HEADER_LENGTH, RCODES } from './query.ts';
import { FLAG, isTruncated, OPT_LENGTH, rcodeIn, writeOpt } from './response.ts';
import { TYPE } from './types.ts';
import { type RecordOffsets, recordOffsets, unpooledCopy } from './wire.ts';

type CacheType = 'success' | 'denial';

export interface ForwardCacheOptions {
  /** Upper bound on the TTL of entries, in seconds; 0 turns the cache off. */
  readonly maxTtl: number;
  /** Monotonic time in seconds, with fractions. */
  readonly now: () => number;
  /** Random number in [0, 1). */
  readonly random: () => number;
  /** Upper bound on the bytes of all entries together. */
  readonly maxBytes?: number;
  readonly maxEntries?: number;
}

/** Counters for metrics. */
export interface CacheStats {
  readonly hits: Readonly<Record<CacheType, number>>;
  readonly misses: number;
  readonly entries: Readonly<Record<CacheType, number>>;
  readonly evictions: Readonly<Record<CacheType, number>>;
}

interface Entry {
  readonly type: CacheType;
  /** The response from the header to the last record that is not an OPT record. */
  readonly bytes: Buffer;
  /** Offsets of the TTL fields. */
  readonly ttls: readonly number[];
  /** Trailing address records of one name, which may be rotated. */
  readonly addresses: { readonly start: number; readonly length: number; readonly count: number };
  /** Monotonic seconds at which the entry was stored and at which it expires. */
  readonly from: number;
  readonly until: number;
}

/** CoreDNS caches up to 9,984 positive and 9,984 negative answers. */
const MAX_ENTRIES = 10_000;
/**
 * Most responses take a few hundred bytes, but responses over TCP may take 64 KiB: without this
 * limit, they could fill the memory.
 */
const MAX_BYTES = 8 << 20;
/**
 * Header bits of a query that change the response: RD, AD (RFC 6840, 5.7) and CD (RFC 4035, 3.2.2).
 */
const REQUEST_FLAGS = FLAG.RD | 0x20 | 0x10;
/**
 * Bytes from the end of an SOA record to its last field, MINIMUM, the negative TTL (RFC 2308, 4).
 */
const SOA_MINIMUM = 4;

/** LRU cache of resolver responses by question. */
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
   * @param bytes the query.
   * @returns a new buffer with the response: id 0, the question as in the query, an OPT record if
   * the query has one, and remaining TTLs. Undefined if there is no valid entry.
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
    // The map is ordered from least to most recently used.
    this.#entries.delete(key);
    this.#entries.set(key, entry);
    return answerOf(entry, query, Math.floor(now - entry.from), this.#options.random);
  }

  /**
   * @param bytes the query.
   * @param response a response that is known to match the query.
   */
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

  /**
   * Cache key; undefined for queries that bypass the cache. The response to Client Subnet is for
   * one network only; responses to RD=0 and ANY depend on the resolver's cache.
   */
  #keyOf({ name, type, edns, recursionDesired }: DnsQuery, bytes: Buffer): string | undefined {
    if (this.#options.maxTtl === 0 || !recursionDesired || type === TYPE.ANY) return undefined;
    if (edns?.hasSubnet) return undefined;
    const flags = bytes.readUInt16BE(2) & REQUEST_FLAGS;
    const client = edns === undefined ? 'plain' : edns.dnssecOk;
    return `${flags} ${client} ${type} ${name}`;
  }

  /** @returns undefined if the response must not be cached. */
  #read({ question, type }: DnsQuery, response: Buffer, now: number): Entry | undefined {
    const code = rcodeIn(response);
    if (code !== RCODES.NOERROR && code !== RCODES.NXDOMAIN) return undefined;
    if (isTruncated(response) || response.readUInt16BE(4) !== 1) return undefined;
    const counts = [6, 8, 10].map((at) => response.readUInt16BE(at));
    const [answerCount = 0, authorityCount = 0, additionalCount = 0] = counts;
    const start = HEADER_LENGTH + question.length;
    const records = recordOffsets(response, start, answerCount + authorityCount + additionalCount);
    if (records === undefined) return undefined;
    const opt = records.find((record) => record.type === TYPE.OPT);
    // Compression pointers in records after the OPT record could point to data that moves.
    if (opt !== undefined && opt !== records.at(-1)) return undefined;
    // The header holds only the lower four bits of an extended RCODE.
    if (opt !== undefined && response.readUInt8(opt.typeOffset + 4) !== 0) return undefined;
    const retained = opt === undefined ? records : records.slice(0, -1);
    const answers = retained.slice(0, answerCount);
    const isDenial = code === RCODES.NXDOMAIN || !answers.some((record) => record.type === type);
    const soa = retained
      .slice(answerCount, answerCount + authorityCount)
      .find((record) => record.type === TYPE.SOA);
    // RFC 2308, 5: a negative answer without an SOA record should not be cached.
    if (isDenial && soa === undefined) return undefined;
    const bytes = unpooledCopy(response.subarray(0, retained.at(-1)?.end ?? start));
    bytes.writeUInt16BE(opt === undefined ? additionalCount : additionalCount - 1, 10);
    if (isDenial && soa !== undefined) capSoaTtl(bytes, soa);
    const ttls = retained.map(({ typeOffset }) => typeOffset + 4);
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
  // A cached answer is not authoritative (RFC 1034, 4.3.1).
  out.writeUInt16BE(out.readUInt16BE(2) & ~FLAG.AA, 2);
  question.copy(out, HEADER_LENGTH);
  for (const at of ttls) out.writeUInt32BE(Math.max(0, ttlAt(bytes, at) - age), at);
  const { start, length, count } = addresses;
  if (count > 1) {
    const unrotated = Buffer.from(out.subarray(start, start + length * count));
    const first = Math.floor(random() * count) * length;
    unrotated.copy(out, start, first);
    unrotated.copy(out, start + unrotated.length - first, 0, first);
  }
  if (edns === undefined) return out;
  out.writeUInt16BE(out.readUInt16BE(10) + 1, 10);
  writeOpt(out, bytes.length, query, 'NOERROR');
  return out;
}

/** RFC 2181, 8: a TTL with the most significant bit set is treated as 0. */
function ttlAt(bytes: Buffer, at: number): number {
  const ttl = bytes.readUInt32BE(at);
  return ttl > 0x7fff_ffff ? 0 : ttl;
}

/**
 * RFC 2308, 3 and 5: the negative TTL is the lesser of the SOA record's TTL and its MINIMUM field.
 */
function capSoaTtl(bytes: Buffer, { typeOffset, end }: RecordOffsets): void {
  const ttl = Math.min(ttlAt(bytes, typeOffset + 4), ttlAt(bytes, end - SOA_MINIMUM));
  bytes.writeUInt32BE(ttl, typeOffset + 4);
}

/** The trailing address records of the answer section whose names are encoded identically. */
function addressesIn(bytes: Buffer, answers: readonly RecordOffsets[]): Entry['addresses'] {
  const last = answers.at(-1);
  if (last === undefined || (last.type !== TYPE.A && last.type !== TYPE.AAAA)) return NO_ADDRESSES;
  // The first record may have its name in full; the records after it then point to that name.
  const owner = bytes.subarray(last.start, last.typeOffset);
  const length = last.end - last.start;
  let count = 0;
  for (const { start, typeOffset, end, type } of answers.toReversed()) {
    const isAlike = type === last.type && end - start === length;
    if (!isAlike || !owner.equals(bytes.subarray(start, typeOffset))) break;
    count += 1;
  }
  return { start: last.end - count * length, length, count };
}

const NO_ADDRESSES = { start: 0, length: 0, count: 0 };
