/** Bounds the share of time that requests take from syncs. */
import type { Timers } from '../../sync/timers.ts';

/** Share of time that requests may take. */
const SHARE = 0.1;
/** Milliseconds of unused time to keep for a burst, such as the first load of the page. */
const MAX_CREDIT = 300;
/** Most milliseconds that requests can owe: waiting for the kernel is not work of this process. */
const MAX_DEBT = 100;
/** Requests that may wait. */
const MAX_WAITING = 100;

/** Too many requests wait; the answer is 503. */
export class TooManyRequests extends Error {
  override readonly name = 'TooManyRequests';

  constructor() {
    super('too many requests; try again in a second');
  }
}

/** Requests that run at a time: some wait for the kernel while others work. */
const MAX_RUNNING = 4;

/**
 * Starts requests in order, as long as requests have taken less than their share of the time. Others wait, so that
 * syncs are not held up however many requests arrive.
 */
export class RequestBudget {
  readonly #timers: Timers;
  #credit = MAX_CREDIT;
  #creditAt: number;
  #running = 0;
  readonly #waiting: (() => void)[] = [];
  #timer: unknown;

  constructor(timers: Timers) {
    this.#timers = timers;
    this.#creditAt = timers.now();
  }

  /** @throws TooManyRequests, and errors of the request. */
  async run<T>(request: () => Promise<T> | T): Promise<T> {
    if (this.#waiting.length >= MAX_WAITING) throw new TooManyRequests();
    await new Promise<void>((resolve) => {
      this.#waiting.push(resolve);
      this.#startNext();
    });
    try {
      return await request();
    } finally {
      this.#updateCredit();
      this.#running -= 1;
      this.#startNext();
    }
  }

  #startNext(): void {
    if (this.#waiting.length === 0 || this.#running >= MAX_RUNNING) return;
    const wait = Math.ceil(-this.#updateCredit() / SHARE);
    if (wait <= 0) {
      this.#running += 1;
      this.#waiting.shift()?.();
      this.#startNext();
      return;
    }
    this.#timer ??= this.#timers.set(() => {
      this.#timer = undefined;
      this.#startNext();
    }, wait);
  }

  /** Credit grows by the share of the time, and shrinks while a request runs. */
  #updateCredit(): number {
    const now = this.#timers.now();
    const elapsed = now - this.#creditAt;
    const used = this.#running > 0 ? elapsed : 0;
    const credit = this.#credit + elapsed * SHARE - used;
    this.#credit = Math.min(Math.max(credit, -MAX_DEBT), MAX_CREDIT);
    this.#creditAt = now;
    return this.#credit;
  }
}
