/** Bounds the share of time that requests take from syncs. */
import type { Timers } from '../../sync/timers.ts';

/** Share of time that requests may take. */
const SHARE = 0.1;
/** Milliseconds of unused time to keep for a burst, such as the first load of the page. */
const MAX_CREDIT = 300;
/** Most milliseconds to charge for one request: waiting for the kernel is not work of this process. */
const MAX_CHARGE = 100;
/** Requests that may wait. */
const MAX_WAITING = 100;

/** Too many requests wait; the answer is 503. */
export class TooManyRequests extends Error {
  override readonly name = 'TooManyRequests';

  constructor() {
    super('too many requests; try again in a second');
  }
}

/**
 * Runs one request at a time, as long as requests have taken less than their share of the time. Others wait, so that
 * syncs are not held up however many requests arrive.
 */
export class RequestBudget {
  readonly #timers: Timers;
  #credit = MAX_CREDIT;
  #creditAt: number;
  #last: Promise<unknown> = Promise.resolve();
  #waiting = 0;

  constructor(timers: Timers) {
    this.#timers = timers;
    this.#creditAt = timers.now();
  }

  /** @throws TooManyRequests, and errors of the request. */
  async run<T>(request: () => Promise<T> | T): Promise<T> {
    if (this.#waiting >= MAX_WAITING) throw new TooManyRequests();
    this.#waiting += 1;
    const before = this.#last;
    const done = Promise.withResolvers<void>();
    this.#last = done.promise;
    try {
      await before;
      const wait = -this.#refilled() / SHARE;
      if (wait > 0) await new Promise<void>((resolve) => this.#timers.set(() => resolve(), wait));
    } finally {
      this.#waiting -= 1;
    }
    const started = this.#timers.now();
    try {
      return await request();
    } finally {
      this.#credit = this.#refilled() - Math.min(this.#timers.now() - started, MAX_CHARGE);
      done.resolve();
    }
  }

  #refilled(): number {
    const now = this.#timers.now();
    this.#credit = Math.min(this.#credit + (now - this.#creditAt) * SHARE, MAX_CREDIT);
    this.#creditAt = now;
    return this.#credit;
  }
}
