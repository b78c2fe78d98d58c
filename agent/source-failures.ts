/** Aggregates the log lines of lists and watches that keep failing. */
import type { DebugLog } from '../process/log.ts';
import { RepeatedFailures } from '../process/repeated-failures.ts';
import { ConnectionError, failureCause, isApiServerFailure } from '../sources/kubernetes/errors.ts';
import type { Resource } from '../sources/kubernetes/resources.ts';
import type { SourceObserver } from '../sources/kubernetes/source.ts';
import type { SourceLog } from '../sources/source.ts';
import { systemTimers, type Timers } from '../sync/timers.ts';

/**
 * Wraps the log and the observer of a source. Repeated failures of lists and watches are logged by
 * `RepeatedFailures`, one line per cause with the affected kinds. The failure of a kind ends when its watch opens, or
 * when the API server reports that its CRD is not installed.
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
        if (isOpen) failures.recovered(kind);
      },
      notInstalled: (kind) => {
        observer.notInstalled(kind);
        failures.recovered(kind);
      },
    },
  };
}

/**
 * Milliseconds from the first failure of a cause to its first log line, to collect all affected kinds. The watches of
 * all kinds end together, and their next attempts are spread over 0.8 s (`sources/kubernetes/backoff.ts`).
 */
const COLLECT_MS = 1000;

interface Attempt {
  readonly kind: string;
  readonly err: unknown;
  readonly message: string;
}

/** A cause of failures and the affected kinds. */
interface Cause {
  readonly key: string;
  /** Kinds that currently fail for this cause. */
  readonly failing: Set<string>;
  /** Kinds that failed for this cause and have recovered. */
  readonly recovered: Set<string>;
  /** Failed attempts before the first log line; undefined afterwards. */
  collected: Attempt[] | undefined;
  /** Timer of the first log line. */
  timer: unknown;
}

/** Aggregates the failures of several kinds by cause. */
class FailureAggregator {
  readonly #failures: RepeatedFailures;
  /** All kinds, in the order in which a log line lists them. */
  readonly #kinds: readonly string[];
  readonly #timers: Timers;
  /** Causes for which a kind currently fails, by key. */
  readonly #causes = new Map<string, Cause>();
  /** Keys of the causes for which each kind has failed since it last succeeded. */
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
    if (cause.collected === undefined) this.#logFailure(cause, attempt, cause.failing);
    else cause.collected.push(attempt);
  }

  recovered(kind: string): void {
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
      timer: this.#timers.set(() => this.#logCollected(cause), COLLECT_MS),
    };
    this.#causes.set(key, cause);
    return cause;
  }

  #logCollected(cause: Cause): void {
    const { collected = [], timer } = cause;
    this.#timers.clear(timer);
    cause.collected = undefined;
    const kinds = new Set(collected.map(({ kind }) => kind));
    for (const attempt of collected) this.#logFailure(cause, attempt, kinds);
  }

  #logFailure({ key }: Cause, { err, message }: Attempt, kinds: ReadonlySet<string>): void {
    // The API server's message contains the kind, so it does not identify a reason.
    const reason = err instanceof ConnectionError ? err.message : key;
    this.#failures.failed(key, { kinds: this.#inOrder(kinds), err }, message, reason);
  }

  #endIfOver(cause: Cause): void {
    const { key, failing, recovered } = cause;
    if (failing.size > 0) return;
    if (cause.collected !== undefined) this.#logCollected(cause);
    this.#causes.delete(key);
    const kinds = this.#inOrder(recovered);
    if (kinds.length === 0) this.#failures.keyChanged(key);
    else this.#failures.succeeded(key, { kinds }, 'list and watch succeed again');
  }

  #inOrder(kinds: ReadonlySet<string>): string[] {
    return this.#kinds.filter((kind) => kinds.has(kind));
  }
}
