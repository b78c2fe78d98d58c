/**
 * Cache of encoded answers from the zone. An entry is valid while the records it was made from are
 * unchanged.
 */

import type { DnsQuery } from './query.ts';
import { MAX_IMMUTABLE } from './record-store.ts';
import { type DnsRecord, sameRecords } from './records.ts';
import type { EncodedAnswer } from './response.ts';
import { unpooledCopy } from './wire.ts';
import type { ZoneView } from './zone-answer.ts';

/** Limits memory to about ten megabytes when clients query many different names. */
const MAX_ENTRIES = 10_000;
/** Bytes. Longer answers do not fit in one UDP message; encoding is a small part of their cost. */
const MAX_LENGTH = 1232;
/** Bytes from the serial to the end of an SOA record. */
const SERIAL_TO_END = 20;

/**
 * The zone lookups an answer was made from: records by name; undefined for names that do not exist.
 */
export type Lookups = ReadonlyMap<string, readonly DnsRecord[] | undefined>;

interface Entry {
  readonly answer: EncodedAnswer;
  readonly lookups: readonly (readonly [string, readonly DnsRecord[] | undefined])[];
  /** Serial of the zone when `lookups` were last compared. */
  serial: number;
}

/**
 * Encoded answers by name and type. Changes of the zone do no work here: a cache hit compares the
 * entry's lookups with the zone, at most once per serial.
 */
export class AnswerCache {
  readonly #maxEntries: number;
  readonly #entries = new Map<string, Entry>();

  constructor(maxEntries = MAX_ENTRIES) {
    this.#maxEntries = maxEntries;
  }

  get size(): number {
    return this.#entries.size;
  }

  get(query: DnsQuery, zone: Pick<ZoneView, 'serial' | 'lookup'>): EncodedAnswer | undefined {
    const key = keyOf(query);
    const entry = this.#entries.get(key);
    if (entry === undefined) return undefined;
    const { answer, lookups } = entry;
    const { serial } = zone;
    if (entry.serial === serial) return answer;
    if (
      !lookups.every(([name, before]) => isSame(before, zone.lookup(name, before?.length ?? 0)))
    ) {
      this.#entries.delete(key);
      return undefined;
    }
    entry.serial = serial;
    // A cacheable answer has at most one authority record, the SOA of a negative answer. It is the
    // last record.
    if (answer.counts[1] > 0) {
      answer.bytes.writeUInt32BE(serial, answer.bytes.length - SERIAL_TO_END);
    }
    return answer;
  }

  /**
   * Stores an answer that `get` did not find, unless it or its records are too long. A full cache
   * removes its oldest entry.
   * @param serial zone serial when the answer was made.
   */
  set(query: DnsQuery, answer: EncodedAnswer, lookups: Lookups, serial: number): void {
    if (answer.bytes.length > MAX_LENGTH) return;
    for (const records of lookups.values()) if (Number(records?.length) > MAX_IMMUTABLE) return;
    const [oldest] = this.#entries.keys();
    if (oldest !== undefined && this.#entries.size >= this.#maxEntries)
      this.#entries.delete(oldest);
    const stored = { ...answer, bytes: unpooledCopy(answer.bytes) };
    this.#entries.set(keyOf(query), { answer: stored, lookups: [...lookups], serial });
  }
}

function isSame(
  before: readonly DnsRecord[] | undefined,
  now: readonly DnsRecord[] | undefined,
): boolean {
  return before === now || (before !== undefined && now !== undefined && sameRecords(before, now));
}

function keyOf({ type, name }: DnsQuery): string {
  return `${type} ${name}`;
}
