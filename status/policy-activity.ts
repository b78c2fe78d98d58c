/** Remembers what the policy enforcer did, for the status API. */
import type { IpFamily } from '../api/objects.ts';
import type { EnforcerObserver } from '../policy/enforce/enforcer.ts';
import { failureText } from '../process/failure-text.ts';

/** Where changes of the rules are logged. */
interface PolicyChanges {
  policiesDrifted(family: IpFamily, change: string): void;
  /** The whole table was written. */
  policiesRestored(family: IpFamily, seconds: number): void;
}

export class PolicyActivity {
  readonly #now: () => number;
  readonly #changes: PolicyChanges | undefined;
  #drift: { at: number; message: string; count: number } | undefined;
  #lastSync: number | undefined;
  #failure: { at: number; message: string; count: number } | undefined;

  /** @param now milliseconds since 1970. */
  constructor(changes?: PolicyChanges, now: () => number = Date.now) {
    this.#changes = changes;
    this.#now = now;
  }

  /** The last change of the rules by another program; `count` counts all since the start. */
  get drift() {
    return this.#drift;
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
        if (isFull) this.#changes?.policiesRestored(family, milliseconds / 1000);
      },
      driftDetected: (family, reason, isExternal) => {
        observer.driftDetected(family, reason, isExternal);
        if (!isExternal) return;
        this.#drift = { at: this.#now(), message: reason, count: (this.#drift?.count ?? 0) + 1 };
        this.#changes?.policiesDrifted(family, reason);
      },
      failed: (family, error) => {
        observer.failed(family, error);
        const message = failureText(error);
        this.#failure = { at: this.#now(), message, count: (this.#failure?.count ?? 0) + 1 };
      },
    };
  }
}
