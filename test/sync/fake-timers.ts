import type { Timers } from '../../sync/timers.ts';

/** Timers whose clock only `advance` moves. */
export class FakeTimers implements Timers {
  #now = 0;
  #last = 0;
  readonly #pending = new Map<number, { at: number; callback: () => void }>();

  now(): number {
    return this.#now;
  }

  /** Number of pending timers. */
  get pending(): number {
    return this.#pending.size;
  }

  set(callback: () => void, milliseconds: number): number {
    this.#last += 1;
    this.#pending.set(this.#last, { at: this.#now + milliseconds, callback });
    return this.#last;
  }

  clear(handle: unknown): void {
    this.#pending.delete(handle as number);
  }

  /** Advances the clock, as while a process is stopped: due timers fire late, at the next `advance`. */
  skip(milliseconds: number): void {
    this.#now += milliseconds;
  }

  /** Advances the clock and fires due timers in order. */
  advance(milliseconds: number): void {
    const end = this.#now + milliseconds;
    for (;;) {
      const due = [...this.#pending].filter(([, { at }]) => at <= end);
      const [next] = due.sort(([a, x], [b, y]) => x.at - y.at || a - b);
      if (next === undefined) break;
      const [handle, { at, callback }] = next;
      this.#pending.delete(handle);
      this.#now = Math.max(this.#now, at);
      callback();
    }
    this.#now = end;
  }
}
