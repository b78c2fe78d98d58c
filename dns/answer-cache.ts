/** Answers of the zone, encoded, for as long as its records are the same. */

import type { DnsQuery } from './query.ts';
import { type DnsRecord, sameRecords } from './records.ts';
import type { EncodedAnswer } from './response.ts';
import { unpooledCopy } from './wire.ts';
import type { ZoneView } from './zone-answer.ts';

/** So that names that anybody may think of take no more than some ten megabytes. */
const MAX_ENTRIES = 10_000;
/** Bytes; of an answer that does not go by UDP at once, encoding is the least. */
const MAX_LENGTH = 1232;
/** Bytes from the serial to the end of an SOA record. */
const SERIAL_TO_END = 20;

/** What an answer was made of: the zone's records by name; undefined for names that do not exist. */
export type Lookups = ReadonlyMap<string, readonly DnsRecord[] | undefined>;

interface Entry {
  readonly answer: EncodedAnswer;
  readonly lookups: readonly (readonly [string, readonly DnsRecord[] | undefined])[];
  /** Of the zone when `lookups` were last compared. */
  serial: number;
}

/**
 * Encoded answers, by what was asked, as long as the records that they were made of are the same. Changes of the zone
 * cost nothing here: an entry is compared when it is asked for, once for each serial.
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
    if (!lookups.every(([name, before]) => isSame(before, zone.lookup(name)))) {
      this.#entries.delete(key);
      return undefined;
    }
    entry.serial = serial;
    // The only authority of such an answer is the SOA record of what there is not, and nothing follows it.
    if (answer.counts[1] > 0) {
      answer.bytes.writeUInt32BE(serial, answer.bytes.length - SERIAL_TO_END);
    }
    return answer;
  }

  /** Keeps what `get` did not find. The oldest makes room. @param serial of the zone when the answer was made. */
  set(query: DnsQuery, answer: EncodedAnswer, lookups: Lookups, serial: number): void {
    if (answer.bytes.length > MAX_LENGTH) return;
    const [oldest] = this.#entries.keys();
    if (oldest !== undefined && this.#entries.size >= this.#maxEntries)
      this.#entries.delete(oldest);
    const kept = { ...answer, bytes: unpooledCopy(answer.bytes) };
    this.#entries.set(keyOf(query), { answer: kept, lookups: [...lookups], serial });
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
