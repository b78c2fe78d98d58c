/**
 * events/ reports to operators with Kubernetes Events; this file queues, rate-limits and writes
 * them.
 */
import { setLruEntry } from '../api/collections.ts';
import { type Backoff, backoffMs } from '../sync/backoff.ts';
import type { Timers } from '../sync/timers.ts';
import { type ObjectRef, type Occurrence, reportingInstanceOf } from './event.ts';
import { SERIES_END_MS, SeriesCache, type SeriesEntry } from './series.ts';
import { EARLY_WINDOW_MS, sharedEventDelay } from './shared-event-delay.ts';
import { TokenBucket, type TokenBucketOptions } from './token-bucket.ts';
import { isRetryable, type OpenWriteSession, type WriteSession, writeEntry } from './write.ts';

/** Reports Events, visible with `kubectl describe`. The methods neither throw nor wait. */
export interface Events {
  normal(regarding: ObjectRef, reason: string, note: string, action?: string): void;
  warning(regarding: ObjectRef, reason: string, note: string, action?: string): void;
  /** Reports a warning that every node of the cluster reports alike. All nodes share one Event. */
  sharedWarning(regarding: ObjectRef, reason: string, note: string, action?: string): void;
}

/**
 * Why an Event was dropped: the queue was full, the spam filter limited its object, the API server
 * rejected it, or the API server was unreachable.
 */
export type DropReason = 'queue_full' | 'object_limit' | 'rejected' | 'unreachable';

/** Time in milliseconds since 1970, and randomness; tests substitute their own. */
export interface EventClock extends Timers {
  /** From 0 (inclusive) to 1 (exclusive). */
  random(): number;
}

export interface RecorderOptions {
  readonly nodeName: string;
  /** Number of known nodes of the cluster. */
  readonly nodes: () => number;
  readonly onDropped: (reason: DropReason) => void;
  /** Compatible with pino loggers. */
  readonly log: { warn(details: object, message: string): void };
  readonly clock?: EventClock;
}

/** Token bucket for all Events of this node. */
const RATE: TokenBucketOptions = { burst: 25, perSecond: 1 };
/** Token bucket per object: client-go's spam filter (`EventSourceObjectSpamFilter`). */
const OBJECT_RATE: TokenBucketOptions = { burst: 25, perSecond: 1 / 300 };
/** Limit on queued Events, including delayed shared Events. */
const MAX_QUEUED = 100;
/**
 * While this many shared Events wait for their check, no late check is added. A late check may wait
 * for half an hour, and the queue needs room for Events that are written soon.
 */
const MAX_LATE = 50;
/** Limit on token buckets of objects; the least recently used bucket is evicted. */
const MAX_OBJECTS = 1000;
const MAX_ATTEMPTS = 6;
const BACKOFF: Backoff = { first: 1000, max: 16_000 };
/** Nanoseconds per millisecond. */
const NANOSECONDS = 1_000_000;
const DEFAULT_ACTION = 'ServeService';

const SYSTEM_CLOCK: EventClock = {
  now: Date.now,
  random: Math.random,
  // unref: a pending timer must not keep a stopping agent alive.
  set: (callback, milliseconds) => setTimeout(callback, milliseconds).unref(),
  clear: (handle) => clearTimeout(handle as NodeJS.Timeout),
};

/** Discards Events, for an agent without an API server. */
export const NO_EVENTS: Events = {
  normal: () => {},
  warning: () => {},
  sharedWarning: () => {},
};

/**
 * Writes Kubernetes Events (events.k8s.io/v1) as client-go's recorder does. Equal occurrences
 * become a series. Requests are sequential and rate-limited, retries per Event and memory are
 * bounded. An Event that cannot be written is dropped and counted. Events are queued until
 * `connect`.
 */
export class EventRecorder implements Events {
  readonly #options: RecorderOptions;
  readonly #clock: EventClock;
  readonly #instance: string;
  readonly #bucket: TokenBucket;
  /** Token buckets by object. */
  readonly #objectBuckets = new Map<string, TokenBucket>();
  readonly #series = new SeriesCache();
  readonly #queue = new Set<SeriesEntry>();
  /**
   * Timers of shared Events. When a timer fires, this node checks whether another node has written
   * the Event.
   */
  readonly #delayed = new Map<SeriesEntry, unknown>();
  readonly #stop = new AbortController();
  #open: OpenWriteSession | undefined;
  #writing: Promise<void> | undefined;
  #dueTimer: unknown;
  /** Nanoseconds within the millisecond for the next Event name; starts at a random value. */
  #offset: number;
  /** Whether writing fails and the failure has been logged. */
  #isFailing = false;

  constructor(options: RecorderOptions) {
    this.#options = options;
    this.#clock = options.clock ?? SYSTEM_CLOCK;
    this.#instance = reportingInstanceOf(options.nodeName);
    this.#bucket = new TokenBucket(RATE, this.#clock.now());
    this.#offset = Math.floor(this.#clock.random() * NANOSECONDS);
  }

  normal(regarding: ObjectRef, reason: string, note: string, action = DEFAULT_ACTION): void {
    this.#record({ type: 'Normal', regarding, reason, action, note, scope: 'node' });
  }

  warning(regarding: ObjectRef, reason: string, note: string, action = DEFAULT_ACTION): void {
    this.#record({ type: 'Warning', regarding, reason, action, note, scope: 'node' });
  }

  sharedWarning(regarding: ObjectRef, reason: string, note: string, action = DEFAULT_ACTION): void {
    this.#record({ type: 'Warning', regarding, reason, action, note, scope: 'cluster' });
  }

  /** Starts writing queued Events. */
  connect(open: OpenWriteSession): void {
    this.#open = open;
    this.#startWriting();
  }

  /** Stops. Queued Events are not written. */
  async stop(): Promise<void> {
    this.#stop.abort();
    this.#clock.clear(this.#dueTimer);
    for (const timer of this.#delayed.values()) this.#clock.clear(timer);
    await this.#writing;
  }

  #record(occurrence: Occurrence): void {
    if (this.#stop.signal.aborted) return;
    const { entry, isDue } = this.#series.observe(occurrence, this.#clock.now(), this.#offset);
    this.#offset = (this.#offset + 1) % NANOSECONDS;
    if (isDue) this.#schedule(entry);
    this.#scheduleDueEntries();
  }

  #scheduleDueEntries(): void {
    if (this.#dueTimer !== undefined || this.#series.size === 0) return;
    this.#dueTimer = this.#clock.set(() => {
      this.#dueTimer = undefined;
      for (const entry of this.#series.takeDue(this.#clock.now())) this.#schedule(entry);
      this.#scheduleDueEntries();
    }, SERIES_END_MS);
  }

  #schedule(entry: SeriesEntry): void {
    if (this.#queue.has(entry) || this.#delayed.has(entry)) return;
    if (this.#queue.size + this.#delayed.size >= MAX_QUEUED) {
      this.#drop(entry, 'queue_full', undefined);
    } else if (!this.#isWithinObjectLimit(entry.occurrence.regarding)) {
      this.#drop(entry, 'object_limit', undefined);
    } else if (entry.occurrence.scope === 'cluster') {
      this.#delayShared(entry);
    } else {
      this.#enqueue(entry);
    }
  }

  /** The spam filter: takes a token of the object. @returns false if the object has none. */
  #isWithinObjectLimit({ kind, namespace, name }: ObjectRef): boolean {
    const key = `${kind} ${namespace}/${name}`;
    const now = this.#clock.now();
    const bucket = this.#objectBuckets.get(key) ?? new TokenBucket(OBJECT_RATE, now);
    setLruEntry(this.#objectBuckets, key, bucket, MAX_OBJECTS);
    return bucket.take(now) === 0;
  }

  #delayShared(entry: SeriesEntry): void {
    const random = () => this.#clock.random();
    const delay = sharedEventDelay(this.#options.nodes(), this.#delayed.size + 1, random);
    if (delay === undefined || (delay >= EARLY_WINDOW_MS && this.#delayed.size >= MAX_LATE)) return;
    const enqueue = () => {
      this.#delayed.delete(entry);
      this.#enqueue(entry);
    };
    this.#delayed.set(entry, this.#clock.set(enqueue, delay));
  }

  #enqueue(entry: SeriesEntry): void {
    this.#queue.add(entry);
    this.#startWriting();
  }

  #startWriting(): void {
    const open = this.#open;
    if (open === undefined || this.#writing !== undefined || this.#queue.size === 0) return;
    if (this.#stop.signal.aborted) return;
    this.#writing = this.#writeAll(open).then(() => {
      this.#writing = undefined;
      this.#startWriting();
    });
  }

  async #writeAll(open: OpenWriteSession): Promise<void> {
    let session: WriteSession | undefined;
    for (const entry of this.#queue) {
      await this.#waitForToken();
      if (this.#stop.signal.aborted) break;
      this.#queue.delete(entry);
      session = await this.#write(entry, session, open);
    }
    session?.close();
  }

  /** Waits for a token of the bucket for all Events, or until the recorder is stopped. */
  async #waitForToken(): Promise<void> {
    for (;;) {
      const wait = this.#bucket.take(this.#clock.now());
      if (wait === 0 || this.#stop.signal.aborted) return;
      await this.#sleep(wait);
    }
  }

  /** Writes one Event. @returns the session for the next Event; undefined if it was closed. */
  async #write(
    entry: SeriesEntry,
    previous: WriteSession | undefined,
    open: OpenWriteSession,
  ): Promise<WriteSession | undefined> {
    const { signal } = this.#stop;
    let session = previous;
    for (let tries = 1; ; tries++) {
      try {
        session ??= await open(signal);
        await writeEntry(session, entry, this.#instance, this.#clock.now());
        this.#isFailing = false;
        return session;
      } catch (error) {
        if (signal.aborted) return session;
        if (!isRetryable(error)) {
          this.#drop(entry, 'rejected', error);
          return session;
        }
        session?.close();
        session = undefined;
        if (tries === MAX_ATTEMPTS) {
          this.#drop(entry, 'unreachable', error);
          return undefined;
        }
        await this.#sleep(backoffMs(tries, BACKOFF) * (1 + this.#clock.random() / 4));
      }
    }
  }

  #drop(entry: SeriesEntry, reason: DropReason, error: unknown): void {
    // The Event was never written, so treat the next occurrence as new and write it.
    if (entry.writtenCount === 0) this.#series.delete(entry);
    this.#options.onDropped(reason);
    // A limit on one object does not mean that writing fails.
    if (this.#isFailing || reason === 'object_limit') return;
    this.#isFailing = true;
    const { kind, namespace, name } = entry.occurrence.regarding;
    const object = `${kind} ${namespace === '' ? '' : `${namespace}/`}${name}`;
    const details = { object, event: entry.occurrence.reason, reason, err: error };
    const effect = 'further drops are not logged until an Event is written';
    this.#options.log.warn({ ...details, effect }, 'Event dropped');
  }

  /** Resolves early when the recorder is stopped. */
  #sleep(milliseconds: number): Promise<void> {
    const { signal } = this.#stop;
    return new Promise((resolve) => {
      const end = () => {
        this.#clock.clear(timer);
        signal.removeEventListener('abort', end);
        resolve();
      };
      const timer = this.#clock.set(end, milliseconds);
      signal.addEventListener('abort', end);
      if (signal.aborted) end();
    });
  }
}
