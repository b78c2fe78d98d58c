/** Reads subscriptions periodically. */
import type { Timers } from '../../sync/timers.ts';

/**
 * Calls `read` every `period` milliseconds, and again in the next turn of the event loop while it leaves something.
 * @param read reads for at most one time slice. @returns whether something may be left. Its argument is how many
 * milliseconds late the call is, because the process was stopped or busy.
 * @returns a function that stops it.
 */
export function pollSubscription(
  timers: Timers,
  period: number,
  read: (late: number) => boolean,
): () => void {
  let handle: unknown;
  let isOver = false;
  const next = (delay: number) => {
    const due = timers.now() + delay;
    handle = timers.set(() => {
      const isLeft = read(timers.now() - due);
      if (!isOver) next(isLeft ? 0 : period);
    }, delay);
  };
  next(period);
  return () => {
    isOver = true;
    timers.clear(handle);
  };
}
