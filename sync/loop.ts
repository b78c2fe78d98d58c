/**
 * The rate-limited sync loop of each proxy mode and IP family, of network policy, and of the watch of
 * node addresses. The folder sync/ contains the parts of
 * reconciliation: loop, backoff, serial queue, timers, time slices, precedence.
 */
import { type Backoff, backoffMs } from './backoff.ts';
import { type Precedence, syncPrecedence } from './precedence.ts';
import type { Timers } from './timers.ts';

export interface LoopOptions {
  /**
   * Runs one sync. If it rejects, the next run is a full sync after the backoff.
   * @param full Compare everything with the kernel: its state is unknown, or a periodic full sync
   * is due.
   * @returns duration in milliseconds, or undefined if there was nothing to do. A run with nothing
   * to do does not count against `minPeriod`, and a full sync that was due remains due.
   */
  readonly run: (full: boolean) => Promise<number | undefined>;
  /**
   * The rate limit: average milliseconds between runs. As in kube-proxy, two runs may follow each
   * other immediately. Unlike there, runs shorter than RUN_SHARE of it may be more frequent, as long
   * as they take that share of the time.
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
  /** Holds up background work during a run. Default: all background work of this thread. */
  readonly precedence?: Precedence;
}

/**
 * Looks for drift: rules of the agent that another program removed or changed. Drift triggers a
 * full sync.
 */
export interface DriftCheck {
  /** Milliseconds between the end of a drift check and the next drift check. */
  readonly period: number;
  /**
   * Finds missing rules by a cheap check, which does not find every change.
   * @returns a description for the log, or undefined without drift.
   */
  findDrift(): Promise<string | undefined>;
  /**
   * Whether the kernel's notifications report all external changes. Periodic full syncs are then
   * rare.
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
/**
 * Share of the time that runs may take whatever `minPeriod` is. The rate limit exists to save CPU:
 * it need not delay a change behind a run that cost almost nothing. A Service and its EndpointSlice
 * come as two events.
 */
const RUN_SHARE = 1 / 20;
/** Maximum milliseconds between two periodic full syncs, as in kube-proxy. */
const FULL_SYNC_PERIOD = 60 * 60 * 1000;
/**
 * Without change notifications, the next periodic full sync is due after FULL_SYNC_SHARE times the
 * duration of the last full sync, at most FULL_SYNC_PERIOD. Changes wait while a full sync runs.
 */
const FULL_SYNC_SHARE = 100;
/**
 * Minimum milliseconds between two resyncs, in case another program changes the rules repeatedly.
 */
const RESYNC_PERIOD = 1000;

/**
 * Runs one sync at a time, on request. An idle loop runs after `delay`; under load it runs about
 * once per `minPeriod`. After a failure it retries with backoff. A request during a run causes
 * another run, so no request is lost. Works like kube-proxy's BoundedFrequencyRunner.
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

  /** Requests a run. @param options.urgent Ignore `minPeriod`, `delay` and the backoff. */
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
   * Reacts to an external change of the rules: an urgent full sync runs now, but not earlier than
   * RESYNC_PERIOD after the last resync.
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
   * Requests a full sync if a periodic full sync is due. Otherwise checks for drift, and requests a
   * full sync if the check finds drift. Does nothing before the first full sync.
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

  /** Prevents further runs. Resolves when the current run and drift check have ended. */
  async stop(): Promise<void> {
    const { timers } = this.#options;
    this.#stopped = true;
    for (const timer of [this.#timer, this.#driftTimer, this.#resyncTimer]) timers.clear(timer);
    await Promise.all([this.#running, this.#driftChecking]);
  }

  #schedule(): void {
    if (this.#stopped || this.#isRunning || this.#timer !== undefined) return;
    const { minPeriod, delay = 0, backoff, timers, precedence = syncPrecedence } = this.#options;
    const pause = Math.max(delay, backoffMs(this.#failures, backoff));
    const wait = this.#urgent ? 0 : Math.max((1 - this.#availableTokens()) * minPeriod, pause);
    if (wait <= 0) precedence.expect();
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
    const { run, minPeriod, driftCheck, timers, precedence = syncPrecedence } = this.#options;
    this.#requested = false;
    this.#urgent = false;
    const full = this.#full;
    this.#full = false;
    const tokens = this.#availableTokens();
    const start = timers.now();
    // Read before the run: if notifications start during the run, an external change before their
    // start may be missed, so the next periodic full sync must be soon.
    const watchesChanges = driftCheck?.watchesChanges() === true;
    try {
      const duration = await precedence.run(() => run(full));
      if (duration === undefined) this.#full ||= full;
      else {
        const whole = minPeriod * RUN_SHARE;
        const cost = duration < whole ? duration / whole : 1;
        this.#tokens = Math.max(tokens - cost, 0);
        this.#tokensAt = start;
        const untilNextFull = watchesChanges
          ? FULL_SYNC_PERIOD
          : Math.min(duration * FULL_SYNC_SHARE, FULL_SYNC_PERIOD);
        if (full) this.#nextFull = timers.now() + untilNextFull;
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

  /** Drift checks run separately from syncs: a check takes minutes if a command hangs. */
  #scheduleDriftCheck(): void {
    const { driftCheck, timers } = this.#options;
    if (driftCheck === undefined || this.#stopped) return;
    this.#driftTimer = timers.set(() => {
      this.#driftChecking = this.checkDrift().then(() => this.#scheduleDriftCheck());
    }, driftCheck.period);
  }
}
