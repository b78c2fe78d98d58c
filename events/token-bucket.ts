/** Size and refill rate of a token bucket. */
export interface TokenBucketOptions {
  /** Number of tokens when full. */
  readonly burst: number;
  readonly perSecond: number;
}

/** A token bucket rate limit. */
export class TokenBucket {
  readonly #options: TokenBucketOptions;
  #tokens: number;
  #at: number;

  /** @param now milliseconds. */
  constructor(options: TokenBucketOptions, now: number) {
    this.#options = options;
    this.#tokens = options.burst;
    this.#at = now;
  }

  /**
   * Takes a token.
   * @returns 0 on success, otherwise milliseconds until a token is available; then none was taken.
   */
  take(now: number): number {
    const { burst, perSecond } = this.#options;
    // The wall clock may be set back.
    const elapsed = Math.max(0, now - this.#at);
    this.#tokens = Math.min(burst, this.#tokens + (elapsed / 1000) * perSecond);
    this.#at = now;
    if (this.#tokens < 1) return Math.ceil(((1 - this.#tokens) / perSecond) * 1000);
    this.#tokens -= 1;
    return 0;
  }
}
