/** Counts syncs, for comparisons that run beside them. */
import type { SyncSpan } from './compared-object.ts';

/** A sync changes the applied state first and the kernel afterwards: a comparison meanwhile finds differences. */
export class SyncOverlap {
  #begun = 0;
  #ended = 0;

  /** Runs a sync, or other work that changes the applied state or the kernel. @throws whatever `work` throws. */
  async run<T>(work: () => Promise<T>): Promise<T> {
    this.#begun += 1;
    try {
      return await work();
    } finally {
      this.#ended += 1;
    }
  }

  /**
   * Counts a change of the state, as a sync that took no time. A change during a sync does not count: it would seem to be
   * the end of that sync, and comparisons meanwhile are unstable anyway.
   */
  changed(): void {
    if (this.#begun > this.#ended) return;
    this.#begun += 1;
    this.#ended += 1;
  }

  /** Begins a comparison. @returns call it when the comparison ends. */
  watch(): () => SyncSpan {
    const ended = this.#ended;
    return () => ({ ended, begun: this.#begun });
  }
}
