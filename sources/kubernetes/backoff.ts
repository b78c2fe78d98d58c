/** Wait times: backoff after failures, `Retry-After`, and the silence period of watches. */
import { setTimeout as sleep } from 'node:timers/promises';
import { type Backoff, backoffMs } from '../../sync/backoff.ts';

/** Randomness and time for waits; tests substitute their own. */
export type RetryClock = typeof RETRY_CLOCK;

export const RETRY_CLOCK = {
  /** From 0 (inclusive) to 1 (exclusive). */
  random: Math.random,
  /** Milliseconds of a monotonic clock. */
  now: () => performance.now(),
  /** Resolves after the given milliseconds, or at once when the signal is aborted. */
  delay: (milliseconds: number, signal: AbortSignal): Promise<void> =>
    sleep(milliseconds, undefined, { signal }).catch((error: unknown) => {
      if (!signal.aborted) throw error;
    }),
};

const BACKOFF: Backoff = { first: 800, max: 30_000 };

/**
 * Milliseconds to wait after the given number of consecutive failures, starting at 1. The backoff
 * doubles from 0.8 to 30 seconds, as in client-go's reflector. Jitter of up to 100 % keeps the
 * nodes of a cluster from reconnecting to a restarted API server at the same time.
 */
export function jitteredBackoffMs(failures: number, random: () => number): number {
  return Math.round(backoffMs(Math.max(1, failures), BACKOFF) * (1 + random()));
}

/**
 * Milliseconds to wait before a retry: the result of `jitteredBackoffMs`, but at least the
 * `Retry-After` of the server plus up to 50 % jitter. The server may have sent the same
 * `Retry-After` to many clients.
 */
export function retryDelayMs(failures: number, retryAfterMs: number, random: () => number): number {
  return Math.max(
    jitteredBackoffMs(failures, random),
    Math.round(retryAfterMs * (1 + random() / 2)),
  );
}

/**
 * Milliseconds that a watch may be silent: `leastMs` plus up to 50 % jitter. After an API server
 * restart all nodes open their watches at about the same time. Without jitter, all nodes would also
 * renew their idle watches at the same time.
 */
export function jitteredSilenceMs(leastMs: number, random: () => number): number {
  return Math.round(leastMs * (1 + random() / 2));
}
