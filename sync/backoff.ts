/** Milliseconds to wait after the first failure, and at most. */
export interface Backoff {
  readonly first: number;
  readonly max: number;
}

/** Milliseconds to wait after so many failures in a row: doubled with each; 0 after none. */
export function backoffMs(failures: number, { first, max }: Backoff): number {
  return failures === 0 ? 0 : Math.min(first * 2 ** (failures - 1), max);
}
