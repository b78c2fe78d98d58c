/** Logging what is tried again and again. */
import { asError } from '../api/errors.ts';
import type { DebugLog } from './log.ts';

/** Milliseconds from the first log line of a failure to the next; doubled after each line, up to the maximum. */
const FIRST_INTERVAL = 10_000;
const MAX_INTERVAL = 600_000;
/** Milliseconds without success after which the level becomes error. */
const ERROR_AFTER = 60_000;
/** A failure that returns within this many milliseconds after a success continues the old one, so flapping does not fill the log. */
const FLAP_INTERVAL = 60_000;
/** Limit of remembered failures; the oldest are forgotten first. */
const MAX_FAILURES = 1000;
/** Limit of reasons per failure that are logged at once: a reason may contain something that always differs, such as a port. */
const MAX_REASONS = 5;

interface Failure {
  /** Time of the first failed attempt since the last success. */
  since: number;
  /** Time of the last success, or of `replaced`; undefined while it fails. */
  endedAt: number | undefined;
  /** Not over by a success: if the failure returns, it has lasted since `since`. */
  hasKeyChanged: boolean;
  readonly reasons: Set<string>;
  /** Failed attempts since the last success. */
  attempts: number;
  /** Failed attempts since the last line. */
  suppressed: number;
  /** Milliseconds from the next line to the one after it. */
  interval: number;
  nextLine: number;
  isError: boolean;
  /** A failure line was logged and the line that ends it was not. */
  isLogged: boolean;
}

/**
 * Logs retried operations without filling the log. The first failure is a warning at once. Repeats are summed
 * up in one line with a count, in growing intervals, and become an error after a minute. The end of the failure is
 * one info line. A new reason is logged at once. Suppressed attempts are logged at level debug.
 */
export class RepeatedFailures {
  readonly #log: DebugLog;
  readonly #now: () => number;
  readonly #failures = new Map<string, Failure>();

  /** @param now monotonic clock in milliseconds. */
  constructor(log: DebugLog, now: () => number = () => performance.now()) {
    this.#log = log;
    this.#now = now;
  }

  /**
   * Records a failed attempt.
   * @param key identifies the operation.
   * @param details fields of the log line; `err` is the reason.
   * @param reason tells reasons apart; by default the message of `err`.
   * @returns whether it is the first since the last success.
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
    const lasted = now - failure.since;
    const isNews = failure.reasons.size < MAX_REASONS && !failure.reasons.has(reason);
    const becomesError = lasted >= ERROR_AFTER && !failure.isError;
    if (!isNews && !becomesError && now < failure.nextLine) {
      this.#log.debug(details, message);
      return isFirst;
    }
    if (isNews) failure.reasons.add(reason);
    failure.isError ||= becomesError;
    const { suppressed: untold, attempts, isError } = failure;
    const count =
      untold === 1 && attempts === 1 ? {} : { repeated: untold, seconds: inSeconds(lasted) };
    this.#log[isError ? 'error' : 'warn']({ ...details, ...count }, message);
    failure.suppressed = 0;
    failure.isLogged = true;
    failure.nextLine = now + failure.interval;
    failure.interval = Math.min(2 * failure.interval, MAX_INTERVAL);
    return isFirst;
  }

  /** Records a success, or that the operation is no longer tried. @param message logged if it was failing. */
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

  /** Records that the operation fails as before, but under another key. Nothing is logged. */
  keyChanged(key: string): void {
    const failure = this.#failures.get(key);
    if (failure === undefined || failure.endedAt !== undefined) return;
    failure.endedAt = this.#now();
    failure.hasKeyChanged = true;
  }

  /** Whether the last attempt failed. */
  isFailing(key: string): boolean {
    const failure = this.#failures.get(key);
    return failure !== undefined && failure.endedAt === undefined;
  }

  /** The current failure, the last one if it ended recently, or a new one. */
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
    // Reinsert at the end: the first entry is the one to forget.
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
