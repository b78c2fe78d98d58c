/** Clock and timers, injected so that tests can control time. */
export interface Timers {
  now(): number;
  set(callback: () => void, milliseconds: number): unknown;
  clear(handle: unknown): void;
}

/**
 * Largest delay that setTimeout accepts, about 24 days. Node treats larger values as 1 ms, so a
 * caller that re-arms the timer would spin.
 */
const MAX_DELAY = 2 ** 31 - 1;

/** Node's timers and monotonic clock. A timer of more than 24 days fires early. */
export const systemTimers: Timers = {
  now: () => performance.now(),
  set: (callback, milliseconds) => {
    // setTimeout waits for at least a millisecond.
    if (milliseconds <= 0) {
      const immediate = setImmediate(callback);
      return () => clearImmediate(immediate);
    }
    const timer = setTimeout(callback, Math.min(milliseconds, MAX_DELAY));
    return () => clearTimeout(timer);
  },
  clear: (handle) => (handle as (() => void) | undefined)?.(),
};

/** Calls `callback` every `period` milliseconds. @returns a function that stops the calls. */
export function callPeriodically(timers: Timers, period: number, callback: () => void): () => void {
  let handle: unknown;
  const next = () => {
    handle = timers.set(() => {
      next();
      callback();
    }, period);
  };
  next();
  return () => timers.clear(handle);
}
