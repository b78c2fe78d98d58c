/**
 * The rate-limited sync loop of each proxy mode and IP family, of network policy, and of the rules
 * for the DNS queue. The folder sync/ contains the parts of reconciliation: loop, serial queue,
 * timers, time slices.
 */
import { type Backoff, backoffMs } from './backoff.ts';
import type { Timers } from './timers.ts';

export interface LoopOptions {
  /**
   * Runs one sync. If it rejects, the next run is a full sync after the backoff.
   * @param full Compare everything with the kernel: its state is unknown, or a periodic full sync
   * is due.
   * @returns duration in milliseconds, or undefined if there was nothing to do. Such a run does not
   * count against `minPeriod`, and a full sync remains due.
   */
  readonly run: (full: boolean) => Promise<number | undefined>;
  /**
   * The rate limit: average milliseconds between runs. As in kube-proxy, two runs may follow each
   * other immediately.
   */
  readonly minPeriod: number;
  /** Milliseconds to wait for further requests, so that a burst causes one run. Default: 0. */
  readonly delay?: number;
  readonly backoff: Backoff;
  readonly timers: Timers;
  /**
   * Default: no drift check. Full syncs are then the first run, the run after a failure, and the
   * run after `resync`.
   */
  readonly driftCheck?: DriftCheck;
}

/**
 * Looks for drift: rules of the agent that another program removed or changed. Drift triggers a
 * full sync.
 */
export interface DriftCheck {
  /** Milliseconds between two driftCheck. */
  readonly period: number;
  /**
   * Finds missing rules by a cheap check, which does not find every change.
   * @returns a description for the log, or undefined without drift.
   */
  findDrift(): Promise<string | undefined>;
  /**
   * Whether notifications report all external changes. A periodic full sync then has little to
   * find.
   */
  watchesChanges(): boolean;
  /** Called after each completed check, with or without drift. */
  onChecked(): void;
  /** Called when the check found drift. A full sync follows. */
  onDrift(drift: string): void;
  onError(error: unknown): void;
}

/** Runs that may follow each other immediately, as in kube-proxy. */
const BURST = 2;
/** Milliseconds between two periodic full syncs, as in kube-proxy. */
const FULL_SYNC_PERIOD = 60 * 60 * 1000;
/**
 * Without change notifications, periodic full syncs run more often than FULL_SYNC_PERIOD, as long
 * as they take less than 1/FULL_SYNC_SHARE of the time. Other changes wait while a full sync runs.
 */
const FULL_SYNC_SHARE = 100;
/**
 * Minimum milliseconds between two resyncs, in case another program changes the rules repeatedly.
 */
const RESYNC_PERIOD = 1000;

/**
 * Runs one sync at a time, on request. An idle loop runs immediately; under load it runs about once
 * per `minPeriod`. After a failure it retries with backoff. A request during a run causes another
 * run, so no request is lost. Works like kube-proxy's BoundedFrequencyRunner.
 */
export class Loop {
  readonly #options: LoopOptions;
  #timer: unknown;
  #running: Promise<void> | undefined;
  /**
   * Whether a run is in progress. Set before `#running`, because a run may request the next run
   * synchronously.
   */
  #isRunning = false;
  #requested = false;
  #urgent = false;
  #stopped = false;
  /** Tokens of the rate limiter: one is added per `minPeriod`, up to `BURST`. */
  #tokens = BURST;
  #tokensAt = -Infinity;
  /** Whether the next run is a full sync. */
  #full = true;
  /** Time of the next periodic full sync; undefined before the first full sync. */
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

  /** Requests a run. @param options.urgent Ignore `minPeriod` and the backoff. */
  request(options: { urgent?: boolean } = {}): void {
    this.#requested = true;
    if (options.urgent === true) {
      this.#urgent = true;
      this.#options.timers.clear(this.#timer);
      this.#timer = undefined;
    }
    this.#schedule();
  }

  /**
   * Reacts to an external change of the rules: an urgent full sync runs now, or RESYNC_PERIOD after
   * the last resync.
   */
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

  /**
   * Checks for drift now, and requests a full sync if there is any or a periodic one is due. Does
   * nothing before the first full sync.
   */
  async checkDrift(): Promise<void> {
    const { driftCheck, timers } = this.#options;
    if (driftCheck === undefined || this.#nextFull === undefined || this.#stopped) return;
    try {
      if (timers.now() < this.#nextFull) {
        const drift = await driftCheck.findDrift();
        driftCheck.onChecked();
        if (drift === undefined) return;
        driftCheck.onDrift(drift);
      }
      this.#full = true;
      this.request();
    } catch (error) {
      driftCheck.onError(error);
    }
  }

  /** Prevents further runs. Resolves when the current run has ended. */
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
    // Always a timer, even without a wait, so that requests of the same event loop turn share a
    // run.
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
    const { run, driftCheck, timers } = this.#options;
    this.#requested = false;
    this.#urgent = false;
    const full = this.#full;
    this.#full = false;
    const tokens = this.#availableTokens();
    const start = timers.now();
    // Read before the run: changes made before the subscription are found by the next full sync.
    const watchesChanges = driftCheck?.watchesChanges() === true;
    try {
      const duration = await run(full);
      if (duration === undefined) this.#full ||= full;
      else {
        this.#tokens = Math.max(tokens - 1, 0);
        this.#tokensAt = start;
        const rest = watchesChanges
          ? FULL_SYNC_PERIOD
          : Math.min(duration * FULL_SYNC_SHARE, FULL_SYNC_PERIOD);
        if (full) this.#nextFull = timers.now() + rest;
      }
      this.#failures = 0;
    } catch {
      // `run` has reported the error. Only schedule the retry.
      this.#failures += 1;
      this.#full = true;
      this.#requested = true;
    }
    this.#running = undefined;
    this.#isRunning = false;
    if (this.#requested) this.#schedule();
  }

  /** Checks run separately from syncs, because a check takes minutes if a command hangs. */
  #scheduleDriftCheck(): void {
    const { driftCheck, timers } = this.#options;
    if (driftCheck === undefined || this.#stopped) return;
    this.#driftTimer = timers.set(() => {
      this.#driftChecking = this.checkDrift().then(() => this.#scheduleDriftCheck());
    }, driftCheck.period);
  }
}
