/** Reads subscriptions periodically. */
import type { Timers } from '../../sync/timers.ts';

/**
 * Calls `read` every `period` milliseconds, and again in the next turn of the event loop while it leaves something.
 * @param read reads for at most one time slice. @returns whether something may be left.
 * @returns a function that stops it.
 */
export function pollSubscription(timers: Timers, period: number, read: () => boolean): () => void {
  let handle: unknown;
  let isOver = false;
  const next = (delay: number) => {
    handle = timers.set(() => {
      const isLeft = read();
      if (!isOver) next(isLeft ? 0 : period);
    }, delay);
  };
  next(period);
  return () => {
    isOver = true;
    timers.clear(handle);
  };
}
