/** Remembers what the policy enforcer did, for the status API. */
import { asError } from '../api/errors.ts';
import type { EnforcerObserver } from '../policy/enforce/enforcer.ts';

export class PolicyActivity {
  readonly #now: () => number;
  #lastSync: number | undefined;
  #failure: { at: number; message: string; count: number } | undefined;

  /** @param now milliseconds since 1970. */
  constructor(now: () => number = Date.now) {
    this.#now = now;
  }

  /** End of the last successful write, in milliseconds since 1970; undefined before the first. */
  get lastSync(): number | undefined {
    return this.#lastSync;
  }

  /** The last failure, with the number of consecutive failures; undefined once a write succeeds. */
  get failure() {
    return this.#failure;
  }

  /** Wraps an observer. Forwards all calls. */
  observing(observer: EnforcerObserver): EnforcerObserver {
    const succeeded = () => {
      this.#lastSync = this.#now();
      this.#failure = undefined;
    };
    return {
      ...observer,
      unchanged: (family) => {
        observer.unchanged(family);
        succeeded();
      },
      applied: (family, isFull, milliseconds) => {
        observer.applied(family, isFull, milliseconds);
        succeeded();
      },
      failed: (family, error) => {
        observer.failed(family, error);
        const { message } = asError(error);
        this.#failure = { at: this.#now(), message, count: (this.#failure?.count ?? 0) + 1 };
      },
    };
  }
}
