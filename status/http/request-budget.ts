/** Bounds the share of time that requests take from syncs. */
import { performance } from 'node:perf_hooks';
import type { Timers } from '../../sync/timers.ts';

/** Share of time that requests may take. */
const SHARE = 0.05;
/** Milliseconds of unused time to keep for a burst, such as the first load of the page. */
const MAX_CREDIT = 300;
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
  /** Whether a sync runs or waits to run. */
  readonly isBusy: boolean;
}

interface BudgetOptions {
  /**
   * Most milliseconds for which a request waits because of what earlier ones took; undefined: as long as the share
   * demands. Only for clients that can load the node in any other way.
   */
  readonly maxWait?: number | undefined;
  /**
   * Milliseconds that this process has worked. Default: the event loop, without the time in which it waits. That counts
   * other work while a request runs, too, but not the time of the kernel.
   */
  readonly worked?: () => number;
}

/**
 * Starts requests in order, as long as requests have taken less than their share of the time. Others wait, so that
 * syncs are not held up however many requests arrive. No request starts while a sync runs or waits.
 */
export class RequestBudget {
  readonly #timers: Timers;
  readonly #syncs: SyncState;
  readonly #maxDebt: number;
  readonly #worked: () => number;
  #refusals = 0;
  /** When the first waiting request began to wait for syncs. */
  #heldSince: number | undefined;
  #credit = MAX_CREDIT;
  #creditAt: number;
  #workedAt: number;
  #running = 0;
  readonly #waiting: (() => void)[] = [];
  #timer: unknown;

  constructor(
    timers: Timers,
    syncs: SyncState,
    { maxWait = Number.POSITIVE_INFINITY, worked = loopWork }: BudgetOptions = {},
  ) {
    this.#timers = timers;
    this.#syncs = syncs;
    this.#maxDebt = maxWait * SHARE;
    this.#worked = worked;
    this.#creditAt = timers.now();
    this.#workedAt = worked();
  }

  /** @throws TooManyRequests, and errors of the request. */
  async run<T>(request: () => Promise<T> | T): Promise<T> {
    if (this.#waiting.length >= MAX_WAITING) await this.#refuse();
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

  async #refuse(): Promise<never> {
    if (this.#refusals < MAX_REFUSALS) {
      this.#refusals += 1;
      await new Promise<void>((resolve) => this.#timers.set(resolve, REFUSAL_DELAY));
      this.#refusals -= 1;
    }
    throw new TooManyRequests();
  }

  #startNext(): void {
    if (this.#waiting.length === 0 || this.#running >= MAX_RUNNING) return;
    const wait = Math.max(Math.ceil(-this.#updateCredit() / SHARE), this.#holdMs());
    if (wait <= 0) {
      this.#heldSince = undefined;
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

  /** Milliseconds until the next look whether syncs have ended; 0 if they have, or if they take long. */
  #holdMs(): number {
    if (!this.#syncs.isBusy) return 0;
    const now = this.#timers.now();
    this.#heldSince ??= now;
    return now - this.#heldSince < MAX_HOLD ? HOLD_CHECK : 0;
  }

  /** Credit grows by the share of the time, and shrinks by the work while a request runs. */
  #updateCredit(): number {
    const [now, worked] = [this.#timers.now(), this.#worked()];
    const used = this.#running > 0 ? worked - this.#workedAt : 0;
    const credit = this.#credit + (now - this.#creditAt) * SHARE - used;
    this.#credit = Math.min(Math.max(credit, -this.#maxDebt), MAX_CREDIT);
    this.#creditAt = now;
    this.#workedAt = worked;
    return this.#credit;
  }
}

function loopWork(): number {
  return performance.eventLoopUtilization().active;
}
