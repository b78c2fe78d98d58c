/** Clock and timers, injected so that tests can be their master. */
export interface Timers {
  now(): number;
  set(callback: () => void, milliseconds: number): unknown;
  clear(handle: unknown): void;
}

/** Largest delay that setTimeout takes, 24 days; it makes 1 ms of more, so that who sets it again would spin. */
const MAX_DELAY = 2 ** 31 - 1;

/** A timer of more than 24 days comes early. */
export const systemTimers: Timers = {
  now: () => performance.now(),
  set: (callback, milliseconds) => {
    // A timer waits for a millisecond at least.
    if (milliseconds <= 0) {
      const immediate = setImmediate(callback);
      return () => clearImmediate(immediate);
    }
    const timer = setTimeout(callback, Math.min(milliseconds, MAX_DELAY));
    return () => clearTimeout(timer);
  },
  clear: (handle) => (handle as (() => void) | undefined)?.(),
};

/** Calls back each `period` milliseconds. @returns what ends that. */
export function every(timers: Timers, period: number, callback: () => void): () => void {
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
