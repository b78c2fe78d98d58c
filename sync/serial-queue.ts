/** Runs asynchronous tasks one at a time, in the order of calls. */
export class SerialQueue {
  #last: Promise<unknown> = Promise.resolve();

  /** Enqueues a task. A failed task rejects only its own promise; later tasks still run. */
  run<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#last.then(work);
    this.#last = result.catch(() => undefined);
    return result;
  }

  /** Resolves when all tasks enqueued so far have completed or failed. */
  async idle(): Promise<void> {
    await this.#last;
  }
}
