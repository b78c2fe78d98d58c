/**
 * sync/ has what brings the kernel to the desired state step by step: loop, serial queue, timers, time slices.
 * This is the one loop; Services, network policy and the rules of the DNS queue are instances of it.
 */
import { type Backoff, backoffMs } from './backoff.ts';
import type { Timers } from './timers.ts';

export interface LoopOptions {
  /**
   * One run; a rejection makes the next one come after a backoff, and be full.
   * @param full compare everything with the kernel: nobody knows what it has, or that is due.
   * @returns milliseconds that it took; undefined when there was nothing to do: then the run does not count for
   * `minPeriod`, and if it was to be full, the next one is.
   */
  readonly run: (full: boolean) => Promise<number | undefined>;
  /** The rate limit: milliseconds a run, on average; two may follow each other at once, as in kube-proxy. */
  readonly minPeriod: number;
  /** Milliseconds that a request waits for others, so that a burst of them is one run; default: none. */
  readonly delay?: number;
  readonly backoff: Backoff;
  readonly timers: Timers;
  /** Default: a full run comes only when it is asked for. */
  readonly driftCheck?: DriftCheck;
}

/** Looks whether what a loop has written still stands. A full run comes when it does not, and when one is due. */
export interface DriftCheck {
  /** Milliseconds from one look to the next. */
  readonly period: number;
  /** What others took away, as far as a cheap look can tell, in words for the log. */
  findDrift(): Promise<string | undefined>;
  /** Whether all that others do is heard of, so that there is little to find by comparing. */
  watchesChanges(): boolean;
  /** The look is over, whatever it found. */
  onChecked(): void;
  /** Something was found missing; a full run follows. */
  onDrift(what: string): void;
  onError(error: unknown): void;
}

/** kube-proxy's burst of syncs. */
const BURST = 2;
/** Milliseconds from a full run to the next, as in kube-proxy. */
const FULL_SYNC_PERIOD = 60 * 60 * 1000;
/**
 * Less, as long as full runs take no more than one part in so many of the time, where what others do is
 * not heard of: changes have to wait meanwhile.
 */
const FULL_SYNC_SHARE = 100;
/** Milliseconds between two resyncs, should somebody change what is ours over and over. */
const RESYNC_PERIOD = 1000;

/**
 * Runs one thing at a time, when asked: at once when it rested, about once a `minPeriod` under a
 * storm, and again by itself after a failure. A request is never lost: one that comes in the middle
 * of a run makes another follow.
 */
export class Loop {
  readonly #options: LoopOptions;
  #timer: unknown;
  #running: Promise<void> | undefined;
  /** Before `#running` is known: a run may ask for the next one before it waits for anything. */
  #isRunning = false;
  #requested = false;
  #urgent = false;
  #stopped = false;
  /** Runs that may start without a wait: grows by one a `minPeriod`, up to `BURST`. */
  #tokens = BURST;
  #tokensAt = -Infinity;
  /** Whether the next run is full. */
  #full = true;
  /** When a full run is due again; undefined before the first. */
  #nextFull: number | undefined;
  #driftTimer: unknown;
  #driftChecking: Promise<void> | undefined;
  #resyncTimer: unknown;
  #resyncedAt = -Infinity;
  #failures = 0;

  constructor(options: LoopOptions) {
    this.#options = options;
    this.#scheduleDriftCheck();
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

  /** Others changed what was written: a full and urgent run follows at once, unless one just did. */
  resync(): void {
    const { timers } = this.#options;
    this.#full = true;
    timers.clear(this.#resyncTimer);
    const wait = Math.max(this.#resyncedAt + RESYNC_PERIOD - timers.now(), 0);
    this.#resyncTimer = timers.set(() => {
      this.#resyncedAt = timers.now();
      this.request({ urgent: true });
    }, wait);
  }

  /** Looks at once whether everything stands; before the first full run that is not known. */
  async checkDrift(): Promise<void> {
    const { driftCheck: checks, timers } = this.#options;
    if (checks === undefined || this.#nextFull === undefined || this.#stopped) return;
    try {
      if (timers.now() < this.#nextFull) {
        const lost = await checks.findDrift();
        checks.onChecked();
        if (lost === undefined) return;
        checks.onDrift(lost);
      }
      this.#full = true;
      this.request();
    } catch (error) {
      checks.onError(error);
    }
  }

  /** No run starts any more; resolves when the current one has ended. */
  async stop(): Promise<void> {
    const { timers } = this.#options;
    this.#stopped = true;
    for (const timer of [this.#timer, this.#driftTimer, this.#resyncTimer]) timers.clear(timer);
    await Promise.all([this.#running, this.#driftChecking]);
  }

  #schedule(): void {
    if (this.#stopped || this.#isRunning || this.#timer !== undefined) return;
    const { minPeriod, delay = 0, backoff, timers } = this.#options;
    const pause = Math.max(delay, backoffMs(this.#failures, backoff));
    const wait = this.#urgent ? 0 : Math.max((1 - this.#availableTokens()) * minPeriod, pause);
    // Also without a wait by timer: what arrives in the same turn goes into the same run.
    this.#timer = timers.set(() => {
      this.#timer = undefined;
      this.#isRunning = true;
      this.#running = this.#runOnce();
    }, wait);
  }

  #availableTokens(): number {
    const { minPeriod, timers } = this.#options;
    if (minPeriod === 0) return BURST;
    return Math.min(BURST, this.#tokens + (timers.now() - this.#tokensAt) / minPeriod);
  }

  async #runOnce(): Promise<void> {
    const { run, driftCheck: checks, timers } = this.#options;
    this.#requested = false;
    this.#urgent = false;
    const full = this.#full;
    this.#full = false;
    const credit = this.#availableTokens();
    const start = timers.now();
    // What was done before others are heard of is found by the full run after this.
    const hearsOthers = checks?.watchesChanges() === true;
    try {
      const took = await run(full);
      if (took === undefined) this.#full ||= full;
      else {
        this.#tokens = Math.max(credit - 1, 0);
        this.#tokensAt = start;
        const rest = hearsOthers
          ? FULL_SYNC_PERIOD
          : Math.min(took * FULL_SYNC_SHARE, FULL_SYNC_PERIOD);
        if (full) this.#nextFull = timers.now() + rest;
      }
      this.#failures = 0;
    } catch {
      // `run` has reported it; what is left to do here is to come again.
      this.#failures += 1;
      this.#full = true;
      this.#requested = true;
    }
    this.#running = undefined;
    this.#isRunning = false;
    if (this.#requested) this.#schedule();
  }

  /** By itself: where a command hangs, a look takes minutes. */
  #scheduleDriftCheck(): void {
    const { driftCheck: checks, timers } = this.#options;
    if (checks === undefined || this.#stopped) return;
    this.#driftTimer = timers.set(() => {
      this.#driftChecking = this.checkDrift().then(() => this.#scheduleDriftCheck());
    }, checks.period);
  }
}
