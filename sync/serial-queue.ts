/** Work of which one piece is done at a time, in the order of calls. */
export class SerialQueue {
  #last: Promise<unknown> = Promise.resolve();

  /** A failure is its caller's: what was asked for later is done all the same. */
  run<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#last.then(work);
    this.#last = result.catch(() => undefined);
    return result;
  }

  /** Resolves when all that was asked for by now has been done, or has failed. */
  async idle(): Promise<void> {
    await this.#last;
  }
}
