/** Exponential backoff: milliseconds after the first failure, and the maximum. */
export interface Backoff {
  readonly first: number;
  readonly max: number;
}

/**
 * Milliseconds to wait after `failures` consecutive failures. Doubles with each failure, up to
 * `max`; 0 without failures.
 */
export function backoffMs(failures: number, { first, max }: Backoff): number {
  return failures === 0 ? 0 : Math.min(first * 2 ** (failures - 1), max);
}
