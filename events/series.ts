/** Which occurrences are one Event, and when the API server hears of it. */
import { lruSet } from '../api/collections.ts';
import {
  eventName,
  type Occurrence,
  occurrenceKey,
  type Series,
  sharedEventName,
} from './event.ts';

/** One Event: the occurrence, and how often it came. */
export class SeriesEntry {
  readonly occurrence: Occurrence;
  readonly name: string;
  /** Of the first time, in milliseconds since 1970. */
  readonly time: number;
  count = 1;
  lastObserved: number;
  /** The count that the API server has; 0: it has no such Event. */
  writtenCount = 0;
  writtenAt = 0;

  constructor(occurrence: Occurrence, name: string, time: number) {
    this.occurrence = occurrence;
    this.name = name;
    this.time = time;
    this.lastObserved = time;
  }

  /** As of now; undefined for what came once. */
  get series(): Series | undefined {
    return this.count > 1 ? { count: this.count, lastObserved: this.lastObserved } : undefined;
  }
}

/** Milliseconds without another occurrence after which a series has ended; client-go's. */
export const SERIES_END_MS = 6 * 60_000;
/** Milliseconds after which the API server hears how a series goes on; client-go's. */
const REFRESH_MS = 30 * 60_000;
/** Series that are remembered; of more, those that came last. */
const MAX_SERIES = 1000;

/**
 * Which occurrences are one Event, and when the API server is to hear of it, as client-go does it: the
 * first time, the second (from then on it is a series), once in half an hour, and at the end.
 */
export class SeriesCache {
  /** The least recently observed first. */
  readonly #entries = new Map<string, SeriesEntry>();

  get size(): number {
    return this.#entries.size;
  }

  /**
   * @param now milliseconds since 1970.
   * @param offset for the name; see `eventName`.
   * @returns the entry, and whether it is to be written now.
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
    lruSet(this.#entries, key, entry, MAX_SERIES);
    return { entry, isDue: entry.writtenCount <= 1 };
  }

  /** The next time it will be as new. */
  delete(entry: SeriesEntry): void {
    const key = occurrenceKey(entry.occurrence);
    if (this.#entries.get(key) === entry) this.#entries.delete(key);
  }

  /** Ends series that have ended. @returns those of which the API server is to hear. */
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
