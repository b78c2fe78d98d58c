/** Size and refill rate of a token bucket. */
export interface TokenBucketOptions {
  /** Number of tokens when full. */
  readonly burst: number;
  readonly perSecond: number;
}

/** A rate limiter. */
export class TokenBucket {
  readonly #options: TokenBucketOptions;
  #tokens: number;
  #refilledAt: number;

  /** @param now milliseconds. */
  constructor(options: TokenBucketOptions, now: number) {
    this.#options = options;
    this.#tokens = options.burst;
    this.#refilledAt = now;
  }

  /**
   * Takes a token if there is one.
   * @returns 0 if a token was taken, otherwise milliseconds until a token is available.
   */
  take(now: number): number {
    const { burst, perSecond } = this.#options;
    // The wall clock may be set back.
    const elapsed = Math.max(0, now - this.#refilledAt);
    this.#tokens = Math.min(burst, this.#tokens + (elapsed / 1000) * perSecond);
    this.#refilledAt = now;
    if (this.#tokens < 1) return Math.ceil(((1 - this.#tokens) / perSecond) * 1000);
    this.#tokens -= 1;
    return 0;
  }
}
