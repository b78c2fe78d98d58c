/** Syncs go before long computations that only answer questions. */
import { setImmediate as nextTurn } from 'node:timers/promises';
import { TimeSlice } from './time-slice.ts';

/** Most milliseconds that one slice waits for syncs: a full sync may take seconds, and questions are answered meanwhile. */
const MAX_HOLD = 50;

/** Holds up background work while a sync runs. */
export class Precedence {
  #running = 0;
  #ended = Promise.withResolvers<void>();
  readonly #busyListeners: (() => void)[] = [];

  /** Whether a sync runs. A sync that waits for its rate limit or backoff does not. */
  get isBusy(): boolean {
    return this.#running > 0;
  }

  /** Calls back just before `isBusy` changes, from now on. */
  beforeBusyChange(listener: () => void): void {
    this.#busyListeners.push(listener);
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
      }
    }
  }

  /** Gives the event loop a turn, and waits up to 50 ms until no sync runs. */
  async yield(): Promise<void> {
    await nextTurn();
    await this.idle(MAX_HOLD);
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
