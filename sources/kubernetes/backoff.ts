/** How long to wait: after failures, as a server asks, and for a silent watch. */
import { setTimeout as sleep } from 'node:timers/promises';
import { type Backoff, backoffMs } from '../../sync/backoff.ts';

/** What makes waiting depend on chance and time; tests put their own in. */
export type RetryClock = typeof RETRY_CLOCK;

export const RETRY_CLOCK = {
  /** From 0 up to and without 1. */
  random: Math.random,
  /** Milliseconds of a clock that never goes back. */
  now: () => performance.now(),
  /** Resolves after so many milliseconds, or at once when the signal is aborted. */
  delay: (milliseconds: number, signal: AbortSignal): Promise<void> =>
    sleep(milliseconds, undefined, { signal }).catch((error: unknown) => {
      if (!signal.aborted) throw error;
    }),
};

const BACKOFF: Backoff = { first: 800, max: 30_000 };

/**
 * Milliseconds to wait after the given number of failures in a row, from 1: doubling from 0.8 to 30
 * seconds, as client-go's reflector does, and up to twice that by chance, so that the nodes of a
 * cluster do not come back to a restarted API server all at once.
 */
export function jitteredBackoffMs(failures: number, random: () => number): number {
  return Math.round(backoffMs(Math.max(1, failures), BACKOFF) * (1 + random()));
}

/**
 * As `retryMs`, but at least what the server asks for (`Retry-After`), and up to half of that more
 * by chance: it may have asked many at once.
 */
export function retryDelayMs(failures: number, askedMs: number, random: () => number): number {
  return Math.max(jitteredBackoffMs(failures, random), Math.round(askedMs * (1 + random() / 2)));
}

/**
 * How long a watch may be silent, in milliseconds: up to half more than `leastMs` by chance. A restarted API
 * server gets the watches of all nodes within a second; without this they would be renewed all at once, too, as
 * long as nothing changes.
 */
export function jitteredSilenceMs(leastMs: number, random: () => number): number {
  return Math.round(leastMs * (1 + random() / 2));
}
