/** The rate limit of Events. */
export interface TokenBucketOptions {
  /** As many may go at once. */
  readonly burst: number;
  readonly perSecond: number;
}

/** Limits how often something is done. */
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

  /** Takes a token. @returns 0, or how many milliseconds there is none; then none was taken. */
  take(now: number): number {
    const { burst, perSecond } = this.#options;
    // A wall clock may be set back.
    const passed = Math.max(0, now - this.#at);
    this.#tokens = Math.min(burst, this.#tokens + (passed / 1000) * perSecond);
    this.#at = now;
    if (this.#tokens < 1) return Math.ceil(((1 - this.#tokens) / perSecond) * 1000);
    this.#tokens -= 1;
    return 0;
  }
}
