/** Bounds the share of time that requests take from syncs. */
import type { Timers } from '../../sync/timers.ts';

/** Share of time that requests may take. */
const SHARE = 0.05;
/** Milliseconds of unused time to keep for a burst, such as the first load of the page. */
const MAX_CREDIT = 300;
/**
 * Most milliseconds for which the first request of the queue waits because of what others use, also while they run. So
 * an expensive request makes the page and commands slow, but does not lock them out.
 */
const MAX_WAIT = 2000;
/** Requests that may wait to start. */
const MAX_WAITING = 100;
/** Requests that may wait for something else; they keep no others out. */
const MAX_OUTSIDE = 100;

/** Too many requests; the answer is 503. */
export class TooManyRequests extends Error {
  override readonly name = 'TooManyRequests';
  /** Seconds until another attempt can succeed; undefined if that depends on other clients. */
  readonly retryAfter: number | undefined;

  constructor(message: string, retryAfter?: number) {
    super(message);
    this.retryAfter = retryAfter;
  }
}

/** Requests that run at a time: some wait for the kernel while others work. */
const MAX_RUNNING = 4;
/**
 * Milliseconds until a refusal, and number of refusals that wait. A client that gets its refusals at once sends the next
 * requests at once: answering 1,000 of them a second takes a tenth of a core.
 */
const REFUSAL_DELAY = 1000;
const MAX_REFUSALS = 500;
/** Most milliseconds that one request waits for syncs, and milliseconds between two looks whether they ended. */
const MAX_HOLD = 50;
const HOLD_CHECK = 2;

/** Syncs, which have precedence over requests. */
interface SyncState {
  /** Whether a sync runs. If one that waits for its rate limit counted, requests to a busy cluster would be free. */
  readonly isBusy: boolean;
  /** Calls back just before `isBusy` changes. */
  beforeBusyChange(listener: () => void): void;
}

/** Leaves the place of a running request to others while something runs that takes no time of the agent, or has its own bound. */
export type WaitOutside = <T>(run: () => Promise<T>) => Promise<T>;

/**
 * Starts requests in order, as long as requests have used less than their share of the time; others wait. The share is
 * a courtesy to other programs of the node, not a guarantee: a request waits a bounded time, so expensive requests one
 * after the other take more. Syncs do not depend on the share: they come first, and requests work in time slices. A
 * request waits for syncs, too, also for a bounded time.
 */
export class RequestBudget {
  readonly #timers: Timers;
  readonly #syncs: SyncState;
  readonly #worked: () => number;
  #refusals = 0;
  /** Requests that wait for something else and have left their place. */
  #outside = 0;
  /** When the first waiting request began to wait for syncs. */
  #heldSince: number | undefined;
  /** When the queue began to wait because of what other requests use, since the last one started. */
  #chargedSince: number | undefined;
  #credit = MAX_CREDIT;
  #creditAt: number;
  #workedAt: number;
  #running = 0;
  /** Each is called with whether the request may start. */
  readonly #waiting: ((mayStart: boolean) => void)[] = [];
  /** Requests that have waited for something else and go on, before requests that have not started. */
  readonly #returning: (() => void)[] = [];
  #timer: unknown;

  /** @param worked milliseconds for which this thread has worked, in the kernel too. */
  constructor(timers: Timers, syncs: SyncState, worked: () => number = threadWork) {
    this.#timers = timers;
    this.#syncs = syncs;
    this.#worked = worked;
    this.#creditAt = timers.now();
    this.#workedAt = worked();
    syncs.beforeBusyChange(() => {
      if (this.#running > 0) this.#updateCredit();
    });
  }

  /**
   * @param request gets a function to wait for something else with; errors of that, and TooManyRequests, come back.
   * @param signal aborted when the client is gone; the request then leaves the queue.
   * @returns undefined if the client has gone before the request started.
   * @throws TooManyRequests, and errors of the request.
   */
  async run<T>(
    request: (waitOutside: WaitOutside) => Promise<T> | T,
    signal?: AbortSignal,
  ): Promise<T | undefined> {
    if (this.#waiting.length >= MAX_WAITING) await this.#refuse();
    if (!(await this.#mayStart(signal))) return undefined;
    try {
      return await request((run) => this.#waitOutside(run));
    } finally {
      this.#end();
    }
  }

  async #waitOutside<T>(run: () => Promise<T>): Promise<T> {
    this.#end();
    try {
      if (this.#outside >= MAX_OUTSIDE) await this.#refuse();
      this.#outside += 1;
      try {
        return await run();
      } finally {
        this.#outside -= 1;
      }
    } finally {
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#returning.push(resolve);
      this.#startNext();
      await promise;
    }
  }

  #end(): void {
    this.#updateCredit();
    this.#running -= 1;
    this.#startNext();
  }

  async #mayStart(signal: AbortSignal | undefined): Promise<boolean> {
    if (signal?.aborted) return false;
    const { promise, resolve } = Promise.withResolvers<boolean>();
    const leave = () => this.#leave(resolve);
    signal?.addEventListener('abort', leave, { once: true });
    this.#waiting.push(resolve);
    this.#startNext();
    const mayStart = await promise;
    signal?.removeEventListener('abort', leave);
    return mayStart;
  }

  #leave(waiting: (mayStart: boolean) => void): void {
    const at = this.#waiting.indexOf(waiting);
    // It has started.
    if (at === -1) return;
    this.#waiting.splice(at, 1);
    if (this.#waiting.length === 0) this.#forgetWaits();
    waiting(false);
  }

  async #refuse(): Promise<never> {
    if (this.#refusals < MAX_REFUSALS) {
      this.#refusals += 1;
      await new Promise<void>((resolve) => this.#timers.set(() => resolve(), REFUSAL_DELAY));
      this.#refusals -= 1;
    }
    // Then one place in the queue is free.
    const seconds = Math.max(1, Math.ceil(this.#waitMs() / 1000));
    throw new TooManyRequests(`too many requests; try again in ${seconds} s`, seconds);
  }

  #startNext(): void {
    while (this.#returning.length > 0 && this.#running < MAX_RUNNING) {
      this.#updateCredit();
      this.#running += 1;
      this.#returning.shift()?.();
    }
    if (this.#waiting.length === 0 || this.#running >= MAX_RUNNING) return;
    const waitMs = this.#waitMs();
    if (waitMs > 0) this.#chargedSince ??= this.#timers.now();
    const wait = Math.max(waitMs, this.#holdMs());
    if (wait <= 0) {
      this.#forgetWaits();
      this.#running += 1;
      this.#waiting.shift()?.(true);
      this.#startNext();
      return;
    }
    this.#timer ??= this.#timers.set(() => {
      this.#timer = undefined;
      this.#startNext();
    }, wait);
  }

  /** Milliseconds until the next look whether syncs have ended; 0 if they have, or if they take long. */
  #holdMs(): number {
    if (!this.#syncs.isBusy) return 0;
    const now = this.#timers.now();
    this.#heldSince ??= now;
    return now - this.#heldSince < MAX_HOLD ? HOLD_CHECK : 0;
  }

  #forgetWaits(): void {
    this.#heldSince = undefined;
    this.#chargedSince = undefined;
  }

  /** Milliseconds until the next request may start because of what others use; at most `MAX_WAIT` in all. */
  #waitMs(): number {
    const now = this.#timers.now();
    const rest = (this.#chargedSince ?? now) + MAX_WAIT - now;
    return Math.max(0, Math.min(Math.ceil(-this.#updateCredit() / SHARE), rest));
  }

  /** Credit grows by the share of the time, and shrinks by the work while a request runs and no sync is busy. */
  #updateCredit(): number {
    const [now, worked] = [this.#timers.now(), this.#worked()];
    const isCharged = this.#running > 0 && !this.#syncs.isBusy;
    const used = isCharged ? worked - this.#workedAt : 0;
    const credit = this.#credit + (now - this.#creditAt) * SHARE - used;
    this.#credit = Math.min(Math.max(credit, -MAX_WAIT * SHARE), MAX_CREDIT);
    this.#creditAt = now;
    this.#workedAt = worked;
    return this.#credit;
  }
}

/** Other threads, such as the garbage collector's, do not count, and no time in which this thread waits. */
function threadWork(): number {
  const { user, system } = process.threadCpuUsage();
  return (user + system) / 1000;
}
