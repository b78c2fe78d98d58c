/** Syncs go before long computations that only answer questions. */
import { TimeSlice } from './time-slice.ts';

/** Most milliseconds that one slice waits for syncs: a full sync may take seconds, and questions are answered meanwhile. */
const MAX_HOLD = 50;

/** Background work that waits for its next slice. */
interface Waiter {
  readonly resume: () => void;
  /** When it no longer waits for syncs. */
  readonly heldUntil: number;
}

/**
 * Holds up background work while a sync runs. In each turn of the event loop only one slice of all background work runs.
 * Slices of several requests in one turn would delay a sync by all of them.
 */
export class Precedence {
  #running = 0;
  #ended = Promise.withResolvers<void>();
  readonly #busyListeners: (() => void)[] = [];
  #isExpected = false;
  readonly #waiting: Waiter[] = [];
  /** Clears the timer or immediate that starts the next slice. */
  #clear: (() => void) | undefined;

  /** Whether a sync runs. A sync that waits for its rate limit or backoff does not. */
  get isBusy(): boolean {
    return this.#running > 0;
  }

  /** Calls back just before `isBusy` changes, from now on. */
  beforeBusyChange(listener: () => void): void {
    this.#busyListeners.push(listener);
  }

  /** A sync begins in this turn of the event loop, so the next slice runs a turn later. */
  expect(): void {
    this.#isExpected = true;
  }

  /** Runs a sync. @throws whatever `sync` throws. */
  async run<T>(sync: () => Promise<T>): Promise<T> {
    if (this.#running === 0) this.#announceChange();
    this.#running += 1;
    try {
      return await sync();
    } finally {
      if (this.#running === 1) this.#announceChange();
      this.#running -= 1;
      if (this.#running === 0) {
        this.#ended.resolve();
        this.#ended = Promise.withResolvers();
        this.#schedule();
      }
    }
  }

  /** Gives the event loop a turn, and waits up to 50 ms until no sync runs. */
  async yield(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#waiting.push({ resume: resolve, heldUntil: performance.now() + MAX_HOLD });
    if (this.#clear === undefined) this.#schedule();
    await promise;
  }

  /** Waits until no sync runs. @param most milliseconds to wait. */
  async idle(most: number): Promise<void> {
    if (this.#running === 0) return;
    let timer: NodeJS.Timeout | undefined;
    const timeout = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, most);
    });
    await Promise.race([this.#ended.promise, timeout]);
    clearTimeout(timer);
  }

  #announceChange(): void {
    for (const listener of this.#busyListeners) listener();
  }

  #schedule(milliseconds = 0): void {
    this.#clear?.();
    this.#clear = undefined;
    if (this.#waiting.length === 0) return;
    const next = () => this.#next();
    if (milliseconds > 0) {
      const timer = setTimeout(next, milliseconds);
      this.#clear = () => clearTimeout(timer);
    } else {
      const immediate = setImmediate(next);
      this.#clear = () => clearImmediate(immediate);
    }
  }

  #next(): void {
    const isExpected = this.#isExpected;
    this.#isExpected = false;
    const [first] = this.#waiting;
    const hold = this.#running > 0 && first !== undefined ? first.heldUntil - performance.now() : 0;
    if (!isExpected && hold <= 0) this.#waiting.shift()?.resume();
    this.#schedule(hold);
  }
}

/** Of the syncs of this thread. */
export const syncPrecedence = new Precedence();

/** Milliseconds of a slice: a sync that begins waits for at most one. */
export const BACKGROUND_SLICE = 1;

/** A time slice of a computation that answers a question, such as a comparison with the kernel. */
export class BackgroundSlice extends TimeSlice {
  readonly #signal: AbortSignal | undefined;

  /** @param signal stops the computation: `yield` then throws the reason. */
  constructor(signal?: AbortSignal) {
    super(BACKGROUND_SLICE);
    this.#signal = signal;
  }

  override async yield(): Promise<void> {
    await syncPrecedence.yield();
    this.#signal?.throwIfAborted();
    this.restart();
  }
}
