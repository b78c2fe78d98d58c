/** Answers of the status API that take long to find. */
import { systemTimers } from '../sync/timers.ts';

/** Part of the time that runs may take: after a slow one the answer is kept longer. */
const SHARE = 1 / 50;
/** Most milliseconds for which an answer is kept. */
const MAX_AGE = 120_000;

/** @param maxAge milliseconds since a run began after which its answer is not good enough; default: any kept answer is. */
type Kept<T> = (maxAge?: number) => Promise<T>;

/**
 * Keeps an answer for a while. One run at a time serves all callers, and an error is kept, too: a program that fails is
 * not started again and again.
 * @param minAge milliseconds after the end of a run for which its answer is kept at least.
 * @param now milliseconds of a monotonic clock: setting the clock of the node must not change what is kept.
 */
export function keepAnswer<T>(
  run: () => Promise<T>,
  minAge: number,
  now: () => number = systemTimers.now,
): Kept<T> {
  let kept:
    | { readonly answer: Promise<T>; readonly startedAt: number; endedAt?: number }
    | undefined;
  const start = () => {
    const current: NonNullable<typeof kept> = { startedAt: now(), answer: run() };
    kept = current;
    const onEnd = () => {
      current.endedAt = now();
    };
    current.answer.then(onEnd, onEnd);
    return current.answer;
  };
  return async (maxAge = Number.POSITIVE_INFINITY) => {
    const at = now();
    const isOld = () => kept !== undefined && kept.startedAt < at - maxAge;
    if (isOld() && kept?.endedAt === undefined) await Promise.allSettled([kept?.answer]);
    // A caller that also waited may have begun a run.
    if (kept === undefined || isOld()) return start();
    const { startedAt, endedAt = at } = kept;
    const wanted = Math.max(minAge, (endedAt - startedAt) / SHARE);
    return at - endedAt < Math.min(wanted, MAX_AGE) ? kept.answer : start();
  };
}

/**
 * Like `keepAnswer`, for answers about the kernel.
 * @returns also the milliseconds since the run began: the answer may miss changes since then.
 */
export function keepAgedAnswer<T>(
  run: () => Promise<T>,
  minAge: number,
  now: () => number = systemTimers.now,
): Kept<{ readonly value: T; readonly age: number }> {
  const read = async () => {
    const startedAt = now();
    return { value: await run(), startedAt };
  };
  const get = keepAnswer(read, minAge, now);
  return async (maxAge) => {
    const { value, startedAt } = await get(maxAge);
    return { value, age: now() - startedAt };
  };
}
