/** How long to wait after a failure, doubled with each one in a row. */
export class Backoff {
  readonly #limits: BackoffLimits;
  #failures = 0;

  constructor(limits: BackoffLimits) {
    this.#limits = limits;
  }

  /** Milliseconds; 0 unless the last attempt failed. */
  get wait(): number {
    const { first, max } = this.#limits;
    return this.#failures === 0 ? 0 : Math.min(first * 2 ** (this.#failures - 1), max);
  }

  /** @returns milliseconds to wait now. */
  failed(): number {
    this.#failures += 1;
    return this.wait;
  }

  succeeded(): void {
    this.#failures = 0;
  }
}

/** Milliseconds after the first failure, and at most. */
export interface BackoffLimits {
  readonly first: number;
  readonly max: number;
}
