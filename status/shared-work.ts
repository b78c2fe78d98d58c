/** Runs expensive work one at a time, and shares one run among callers that want the same. */
import { SerialQueue } from '../sync/serial-queue.ts';

interface SharedRun<Result> {
  readonly result: Promise<Result>;
  /** Aborted when all callers are gone. */
  readonly gone: AbortController;
  callers: number;
}

/** Work that answers questions of clients about one moment. */
export class SharedWork<Result> {
  readonly #queue = new SerialQueue();
  /** Runs that have not begun, by key. A caller joins no run that has begun: it may have missed a change already. */
  readonly #waiting = new Map<string, SharedRun<Result>>();

  /**
   * Runs work after the work in the queue. Callers with the same key share the next run.
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
      this.#forget(key, run);
      gone.signal.throwIfAborted();
      return await work(gone.signal);
    });
    const run: SharedRun<Result> = { result, gone, callers: 0 };
    this.#waiting.set(key, run);
    return run;
  }

  #forget(key: string, run: SharedRun<Result>): void {
    if (this.#waiting.get(key) === run) this.#waiting.delete(key);
  }
}
