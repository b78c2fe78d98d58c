/** Rate-limited logging of operations that are retried. */
import { asError } from '../api/errors.ts';
import type { DebugLog } from './log.ts';

/**
 * Milliseconds between the first and the second log line of a failure. The interval doubles after
 * each line, up to MAX_INTERVAL.
 */
const FIRST_INTERVAL = 10_000;
const MAX_INTERVAL = 600_000;
/** Milliseconds of failure after which lines are logged at level error. */
const ERROR_AFTER = 60_000;
/**
 * A failure that returns within this many milliseconds after a success continues the previous
 * failure. Otherwise a flapping operation would fill the log.
 */
const FLAP_INTERVAL = 60_000;
/** Upper bound on remembered failures; the oldest is dropped first. */
const MAX_FAILURES = 1000;
/**
 * Upper bound on the reasons of one failure that are logged immediately. A reason may contain a
 * value that always differs, such as a port.
 */
const MAX_REASONS = 5;

interface Failure {
  /** Time of the first failed attempt since the last success. */
  since: number;
  /** Time of the last success or of the last `keyChanged`; undefined while the operation fails. */
  endedAt: number | undefined;
  /**
   * Whether `keyChanged` ended the failure, not a success. If the failure returns, the duration
   * still counts from `since`.
   */
  hasKeyChanged: boolean;
  readonly reasons: Set<string>;
  /** Failed attempts since the last success. */
  attempts: number;
  /** Failed attempts since the last log line. */
  suppressed: number;
  /** Milliseconds between the next log line and the line after it. */
  interval: number;
  nextLine: number;
  isError: boolean;
  /** Whether a failure line was logged, but no recovery line yet. */
  isLogged: boolean;
}

/**
 * Logs retried operations without filling the log. The first failure is logged at level warn.
 * Repetitions are summed up in one line with a count, at growing intervals, and become level error
 * after a minute. Recovery is logged once at level info. A new reason is logged immediately.
 * Suppressed attempts are logged at level debug.
 */
export class RepeatedFailures {
  readonly #log: DebugLog;
  readonly #now: () => number;
  readonly #failures = new Map<string, Failure>();

  /** @param now Monotonic clock in milliseconds. */
  constructor(log: DebugLog, now: () => number = () => performance.now()) {
    this.#log = log;
    this.#now = now;
  }

  /**
   * Records a failed attempt.
   * @param key Identifies the operation.
   * @param details Fields of the log line; `err` is the reason.
   * @param reason Distinguishes reasons; default: the message of `err`.
   * @returns whether this is the first failure since the last success.
   */
  failed(
    key: string,
    details: Readonly<Record<string, unknown>>,
    message: string,
    reason = asError(details.err).message,
  ): boolean {
    const isFirst = !this.isFailing(key);
    const now = this.#now();
    const failure = this.#current(key, now);
    failure.attempts += 1;
    failure.suppressed += 1;
    const duration = now - failure.since;
    const isNewReason = failure.reasons.size < MAX_REASONS && !failure.reasons.has(reason);
    const becomesError = duration >= ERROR_AFTER && !failure.isError;
    if (!isNewReason && !becomesError && now < failure.nextLine) {
      this.#log.debug(details, message);
      return isFirst;
    }
    if (isNewReason) failure.reasons.add(reason);
    failure.isError ||= becomesError;
    const { suppressed, attempts, isError } = failure;
    const count =
      suppressed === 1 && attempts === 1
        ? {}
        : { repeated: suppressed, seconds: inSeconds(duration) };
    this.#log[isError ? 'error' : 'warn']({ ...details, ...count }, message);
    failure.suppressed = 0;
    failure.isLogged = true;
    failure.nextLine = now + failure.interval;
    failure.interval = Math.min(2 * failure.interval, MAX_INTERVAL);
    return isFirst;
  }

  /**
   * Records that the operation succeeded or was abandoned.
   * @param message Logged if a failure line was logged since the last recovery.
   */
  succeeded(key: string, details: object, message: string): void {
    const failure = this.#failures.get(key);
    if (failure === undefined) return;
    failure.hasKeyChanged = false;
    if (failure.endedAt !== undefined) return;
    const now = this.#now();
    failure.endedAt = now;
    if (!failure.isLogged) return;
    failure.isLogged = false;
    const { attempts, since } = failure;
    this.#log.info({ ...details, failures: attempts, seconds: inSeconds(now - since) }, message);
  }

  /** Records that the operation still fails, but under another key. Logs nothing. */
  keyChanged(key: string): void {
    const failure = this.#failures.get(key);
    if (failure === undefined || failure.endedAt !== undefined) return;
    failure.endedAt = this.#now();
    failure.hasKeyChanged = true;
  }

  /** Whether the last attempt of the operation failed. */
  isFailing(key: string): boolean {
    const failure = this.#failures.get(key);
    return failure !== undefined && failure.endedAt === undefined;
  }

  /** The current failure, a failure that ended recently, or a new failure. */
  #current(key: string, now: number): Failure {
    const known = this.#failures.get(key);
    if (known !== undefined && known.endedAt === undefined) return known;
    if (known !== undefined && now - (known.endedAt ?? 0) < FLAP_INTERVAL) {
      if (known.hasKeyChanged)
        return Object.assign(known, { endedAt: undefined, hasKeyChanged: false });
      Object.assign(known, { since: now, endedAt: undefined, attempts: 0, isError: false });
      return known;
    }
    const fresh: Failure = {
      since: now,
      endedAt: undefined,
      hasKeyChanged: false,
      reasons: new Set(),
      attempts: 0,
      suppressed: 0,
      interval: FIRST_INTERVAL,
      nextLine: now,
      isError: false,
      isLogged: false,
    };
    // Reinsert at the end, so that the first entry is the oldest.
    this.#failures.delete(key);
    this.#failures.set(key, fresh);
    const [oldest] = this.#failures.keys();
    if (this.#failures.size > MAX_FAILURES && oldest !== undefined) this.#failures.delete(oldest);
    return fresh;
  }
}

function inSeconds(milliseconds: number): number {
  return Math.round(milliseconds / 1000);
}
