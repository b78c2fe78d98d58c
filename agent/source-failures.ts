/** The log of a source whose lists and watches keep failing. */
import type { DebugLog } from '../process/log.ts';
import { RepeatedFailures } from '../process/repeated-failures.ts';
import { ConnectionError, failureCause, isApiServerFailure } from '../sources/kubernetes/errors.ts';
import type { Resource } from '../sources/kubernetes/resources.ts';
import type { SourceObserver } from '../sources/kubernetes/source.ts';
import type { SourceLog } from '../sources/source.ts';
import { systemTimers, type Timers } from '../sync/timers.ts';

/**
 * Wraps the log and the observer of a source so that lists and watches that keep failing are logged by
 * `RepeatedFailures`, per cause, with the kinds that it concerns. A watch that opens, or a CRD that is not
 * installed, ends the failure of its kind.
 */
export function aggregateFailures(
  log: DebugLog,
  observer: SourceObserver,
  resources: readonly Resource[],
  timers: Timers = systemTimers,
): { log: SourceLog; observer: SourceObserver } {
  const kinds = [...new Set(resources.map(({ kind }) => kind))];
  const failures = new FailureAggregator(log, kinds, timers);
  return {
    log: {
      info: (details, message) => log.info(details, message),
      warn: (details, message) => {
        if ('kind' in details && 'err' in details) {
          failures.failed(String(details.kind), details.err, message);
        } else {
          log.warn(details, message);
        }
      },
    },
    observer: {
      ...observer,
      watchOpen: (kind, isOpen) => {
        observer.watchOpen(kind, isOpen);
        if (isOpen) failures.works(kind);
      },
      notInstalled: (kind) => {
        observer.notInstalled(kind);
        failures.works(kind);
      },
    },
  };
}

/**
 * Milliseconds from the first failure of a cause to its first line. What ends the watches of all kinds does so
 * at once; their next attempts are spread over 0.8 s (`sources/kubernetes/backoff.ts`).
 */
const COLLECT_MS = 1000;

interface Attempt {
  readonly kind: string;
  readonly err: unknown;
  readonly message: string;
}

/** A cause, and what it has to do with each kind. */
interface Cause {
  readonly key: string;
  /** Fail for this cause now. */
  readonly failing: Set<string>;
  /** Have failed for it, and work again. */
  readonly recovered: Set<string>;
  /** Attempts before the first line, and the timer of that line. */
  collected: Attempt[] | undefined;
  timer: unknown;
}

/** Collects failures of several kinds that have one cause. */
class FailureAggregator {
  readonly #failures: RepeatedFailures;
  /** In the order in which they are logged. */
  readonly #kinds: readonly string[];
  readonly #timers: Timers;
  /** Causes for which any kind fails now. */
  readonly #causes = new Map<string, Cause>();
  /** Keys of the causes for which a kind failed since it worked last. */
  readonly #seen = new Map<string, Set<string>>();

  constructor(log: DebugLog, kinds: readonly string[], timers: Timers) {
    this.#failures = new RepeatedFailures(log, () => timers.now());
    this.#kinds = kinds;
    this.#timers = timers;
  }

  failed(kind: string, err: unknown, message: string): void {
    const key = isApiServerFailure(err) ? failureCause(err) : '';
    const attempt = { kind, err, message };
    const cause = this.#causes.get(key) ?? this.#begin(key);
    for (const other of this.#causes.values()) {
      if (other !== cause && other.failing.delete(kind)) this.#endIfOver(other);
    }
    cause.failing.add(kind);
    cause.recovered.delete(kind);
    this.#seen.set(kind, (this.#seen.get(kind) ?? new Set()).add(key));
    if (cause.collected === undefined) this.#tell(cause, attempt, cause.failing);
    else cause.collected.push(attempt);
  }

  works(kind: string): void {
    for (const cause of this.#causes.values()) {
      if (!cause.failing.delete(kind)) continue;
      cause.recovered.add(kind);
      this.#endIfOver(cause);
    }
    for (const key of this.#seen.get(kind) ?? []) {
      if (!this.#causes.has(key)) this.#failures.succeeded(key, {}, '');
    }
    this.#seen.delete(kind);
  }

  #begin(key: string): Cause {
    const cause: Cause = {
      key,
      failing: new Set(),
      recovered: new Set(),
      collected: [],
      timer: this.#timers.set(() => this.#tellCollected(cause), COLLECT_MS),
    };
    this.#causes.set(key, cause);
    return cause;
  }

  #tellCollected(cause: Cause): void {
    const { collected = [], timer } = cause;
    this.#timers.clear(timer);
    cause.collected = undefined;
    const kinds = new Set(collected.map(({ kind }) => kind));
    for (const attempt of collected) this.#tell(cause, attempt, kinds);
  }

  #tell({ key }: Cause, { err, message }: Attempt, kinds: ReadonlySet<string>): void {
    // What an API server answers differs in words from kind to kind.
    const reason = err instanceof ConnectionError ? err.message : key;
    this.#failures.failed(key, { kinds: this.#inOrder(kinds), err }, message, reason);
  }

  #endIfOver(cause: Cause): void {
    const { key, failing, recovered } = cause;
    if (failing.size > 0) return;
    if (cause.collected !== undefined) this.#tellCollected(cause);
    this.#causes.delete(key);
    const kinds = this.#inOrder(recovered);
    if (kinds.length === 0) this.#failures.keyChanged(key);
    else this.#failures.succeeded(key, { kinds }, 'list and watch work again');
  }

  #inOrder(kinds: ReadonlySet<string>): string[] {
    return this.#kinds.filter((kind) => kinds.has(kind));
  }
}
