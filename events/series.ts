/** Combines equal occurrences into Event series. */
import { setLruEntry } from '../api/collections.ts';
import {
  eventName,
  type Occurrence,
  occurrenceKey,
  type Series,
  sharedEventName,
} from './event.ts';

/** An Event and the number of its occurrences. */
export class SeriesEntry {
  readonly occurrence: Occurrence;
  readonly name: string;
  /** Time of the first occurrence, in milliseconds since 1970. */
  readonly time: number;
  count = 1;
  lastObserved: number;
  /**
   * `count` when the Event was last written, or checked if it is a shared Event; 0 before that.
   */
  writtenCount = 0;
  writtenAt = 0;

  constructor(occurrence: Occurrence, name: string, time: number) {
    this.occurrence = occurrence;
    this.name = name;
    this.time = time;
    this.lastObserved = time;
  }

  /** The series so far; undefined after a single occurrence. */
  get series(): Series | undefined {
    return this.count > 1 ? { count: this.count, lastObserved: this.lastObserved } : undefined;
  }
}

/** A series ends after this many milliseconds without an occurrence, as in client-go. */
export const SERIES_END_MS = 6 * 60_000;
/** Milliseconds between updates of a continuing series at the API server, as in client-go. */
const REFRESH_MS = 30 * 60_000;
/** Limit on series in memory; the least recently observed series is evicted. */
const MAX_SERIES = 1000;

/**
 * Combines equal occurrences into series, and decides when to write them. As in client-go: on the
 * first and second occurrence, then every half hour, and at the end of the series.
 */
export class SeriesCache {
  /** Entries in the order of their last occurrence, oldest first. */
  readonly #entries = new Map<string, SeriesEntry>();

  get size(): number {
    return this.#entries.size;
  }

  /**
   * Counts an occurrence.
   * @param now milliseconds since 1970.
   * @param offset nanoseconds for the Event name; see `eventName`.
   * @returns the entry, and whether to write it now.
   */
  observe(
    occurrence: Occurrence,
    now: number,
    offset: number,
  ): { entry: SeriesEntry; isDue: boolean } {
    const key = occurrenceKey(occurrence);
    let entry = this.#entries.get(key);
    if (entry === undefined) {
      const name =
        occurrence.scope === 'cluster'
          ? sharedEventName(occurrence)
          : eventName(occurrence.regarding, now, offset);
      entry = new SeriesEntry(occurrence, name, now);
    } else {
      entry.count += 1;
      entry.lastObserved = now;
    }
    setLruEntry(this.#entries, key, entry, MAX_SERIES);
    return { entry, isDue: entry.writtenCount <= 1 };
  }

  /** Removes an entry, so that the next occurrence creates a new Event. */
  delete(entry: SeriesEntry): void {
    const key = occurrenceKey(entry.occurrence);
    if (this.#entries.get(key) === entry) this.#entries.delete(key);
  }

  /**
   * Removes ended series.
   * @returns the entries to write now.
   */
  takeDue(now: number): SeriesEntry[] {
    const due: SeriesEntry[] = [];
    for (const [key, entry] of this.#entries) {
      const hasEnded = now - entry.lastObserved >= SERIES_END_MS;
      if (hasEnded) this.#entries.delete(key);
      const hasUpdate = entry.writtenCount > 0 && entry.count > entry.writtenCount;
      if (hasUpdate && (hasEnded || now - entry.writtenAt >= REFRESH_MS)) due.push(entry);
    }
    return due;
  }
}
