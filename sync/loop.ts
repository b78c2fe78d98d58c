import type { Timers } from './timers.ts';

/** kube-proxy's burst of syncs. */
const BURST = 2;

export interface RunnerOptions {
  /**
   * One run; a rejection makes the next one come after a backoff.
   * @returns whether there was something to do; if not, the run does not count for `minPeriod`.
   */
  readonly run: () => Promise<boolean>;
  /** Milliseconds a run, on average; two may follow each other at once, as in kube-proxy. */
  readonly minPeriod: number;
  /** First and greatest milliseconds to wait after a failure; doubled in between. */
  readonly backoff: { readonly first: number; readonly max: number };
  readonly timers: Timers;
}

/**
 * Runs one thing at a time, when asked: at once when it rested, about once a `minPeriod` under a
 * storm, and again by itself after a failure. A request is never lost: one that comes in the middle
 * of a run makes another follow.
 */
export class Runner {
  readonly #options: RunnerOptions;
  #timer: unknown;
  #running: Promise<void> | undefined;
  /** Before `#running` is known: a run may ask for the next one before it waits for anything. */
  #isRunning = false;
  #requested = false;
  #urgent = false;
  #stopped = false;
  /** Runs that may start without a wait: grows by one a `minPeriod`, up to `BURST`. */
  #credit = BURST;
  #creditAt = -Infinity;
  #failures = 0;

  constructor(options: RunnerOptions) {
    this.#options = options;
  }

  /** @param options.urgent does not wait for `minPeriod`, nor for a backoff. */
  request(options: { urgent?: boolean } = {}): void {
    this.#requested = true;
    if (options.urgent === true) {
      this.#urgent = true;
      this.#options.timers.clear(this.#timer);
      this.#timer = undefined;
    }
    this.#schedule();
  }

  /** No run starts any more; resolves when the current one has ended. */
  async stop(): Promise<void> {
    this.#stopped = true;
    this.#options.timers.clear(this.#timer);
    await this.#running;
  }

  #schedule(): void {
    if (this.#stopped || this.#isRunning || this.#timer !== undefined) return;
    const { minPeriod, timers } = this.#options;
    const rest = Math.max((1 - this.#creditNow()) * minPeriod, this.#pause(), 0);
    const wait = this.#urgent ? 0 : rest;
    // Also without a wait by timer: what arrives in the same turn goes into the same run.
    this.#timer = timers.set(() => {
      this.#timer = undefined;
      this.#isRunning = true;
      this.#running = this.#runOnce();
    }, wait);
  }

  #creditNow(): number {
    const { minPeriod, timers } = this.#options;
    if (minPeriod === 0) return BURST;
    return Math.min(BURST, this.#credit + (timers.now() - this.#creditAt) / minPeriod);
  }

  #pause(): number {
    if (this.#failures === 0) return 0;
    const { first, max } = this.#options.backoff;
    return Math.min(first * 2 ** (this.#failures - 1), max);
  }

  async #runOnce(): Promise<void> {
    this.#requested = false;
    this.#urgent = false;
    const credit = this.#creditNow();
    const start = this.#options.timers.now();
    try {
      if (await this.#options.run()) {
        this.#credit = Math.max(credit - 1, 0);
        this.#creditAt = start;
      }
      this.#failures = 0;
    } catch {
      // `run` has reported it; what is left to do here is to come again.
      this.#failures += 1;
      this.#requested = true;
    }
    this.#running = undefined;
    this.#isRunning = false;
    if (this.#requested) this.#schedule();
  }
}
