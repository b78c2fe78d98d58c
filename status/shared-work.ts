/** Runs expensive work one at a time, and shares one run among callers that want the same. */
import { SerialQueue } from '../sync/serial-queue.ts';
import type { Timers } from '../sync/timers.ts';

/** A run begins after a rest of this many times the duration of the last one, so that runs take a fifth of the time. */
const REST = 4;

interface SharedRun<Result> {
  readonly result: Promise<Result>;
  /** Aborted when all callers are gone. */
  readonly gone: AbortController;
  callers: number;
}

/** Work that answers questions of clients about one moment. */
export class SharedWork<Result> {
  readonly #timers: Timers;
  readonly #maxRest: number;
  readonly #queue = new SerialQueue();
  #restsUntil = -Infinity;
  /** Runs that have not begun, by key. A caller joins no run that has begun: it may have missed a change already. */
  readonly #waiting = new Map<string, SharedRun<Result>>();

  /** @param maxRest milliseconds. */
  constructor(timers: Timers, maxRest: number) {
    this.#timers = timers;
    this.#maxRest = maxRest;
  }

  /**
   * Runs work after the work in the queue and a rest. Callers with the same key share the next run.
   * @param work its signal is aborted when all callers of this run are gone.
   * @param signal aborted when the caller is gone: the promise then rejects with the reason.
   * @throws errors of the work.
   */
  async run(
    key: string,
    work: (signal: AbortSignal) => Promise<Result>,
    signal: AbortSignal,
  ): Promise<Result> {
    signal.throwIfAborted();
    const run = this.#waiting.get(key) ?? this.#enqueue(key, work);
    run.callers += 1;
    const left = Promise.withResolvers<never>();
    const leave = () => {
      run.callers -= 1;
      if (run.callers === 0) {
        this.#forget(key, run);
        run.gone.abort(signal.reason);
      }
      left.reject(signal.reason);
    };
    signal.addEventListener('abort', leave, { once: true });
    try {
      return await Promise.race([run.result, left.promise]);
    } finally {
      signal.removeEventListener('abort', leave);
    }
  }

  #enqueue(key: string, work: (signal: AbortSignal) => Promise<Result>): SharedRun<Result> {
    const gone = new AbortController();
    const result = this.#queue.run(async () => {
      await this.#rest(gone.signal);
      this.#forget(key, run);
      gone.signal.throwIfAborted();
      const started = this.#timers.now();
      try {
        return await work(gone.signal);
      } finally {
        const now = this.#timers.now();
        this.#restsUntil = now + Math.min((now - started) * REST, this.#maxRest);
      }
    });
    const run: SharedRun<Result> = { result, gone, callers: 0 };
    this.#waiting.set(key, run);
    return run;
  }

  /** @param gone ends the rest. */
  async #rest(gone: AbortSignal): Promise<void> {
    const milliseconds = this.#restsUntil - this.#timers.now();
    if (milliseconds <= 0 || gone.aborted) return;
    await new Promise<void>((resolve) => {
      const handle = this.#timers.set(resolve, milliseconds);
      gone.addEventListener(
        'abort',
        () => {
          this.#timers.clear(handle);
          resolve();
        },
        { once: true },
      );
    });
  }

  #forget(key: string, run: SharedRun<Result>): void {
    if (this.#waiting.get(key) === run) this.#waiting.delete(key);
  }
}
