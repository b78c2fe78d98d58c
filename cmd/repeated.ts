import type { DebugLog } from './log.ts';

/** Milliseconds from the first line of a failure to the next; each time twice as many, up to the second. */
const FIRST_INTERVAL = 10_000;
const LONGEST_INTERVAL = 600_000;
/** Milliseconds without success after which a failure is an error. */
const LASTING = 60_000;
/** Milliseconds after a success within which a failure is the same one again. */
const RELAPSE = 60_000;
/** Failures that are remembered; of more, those that began last. */
const MAX_FAILURES = 1000;
/** Different reasons of one failure that are told at once; of more, such as ports in a message, no more. */
const MAX_REASONS = 5;

interface Failure {
  /** Of the first attempt since the last success. */
  since: number;
  /** When it last succeeded; undefined while it fails. */
  over: number | undefined;
  readonly reasons: Set<string>;
  /** Failed attempts since the last success. */
  attempts: number;
  /** Failed attempts since the last line. */
  untold: number;
  /** From the next line to the one after it. */
  interval: number;
  nextLine: number;
  isError: boolean;
  /** A line said that it fails, and none yet that it is over. */
  isTold: boolean;
}

/**
 * Keeps what is tried again and again from filling the log. The first failure is a warning at once; what
 * repeats it is one line with a count, in intervals that grow; after a minute it is an error; one line says
 * when it is over. A new reason is told at once. Each attempt is shown at level debug.
 */
export class RepeatedFailures {
  readonly #log: DebugLog;
  readonly #now: () => number;
  readonly #failures = new Map<string, Failure>();

  /** @param now milliseconds of a clock that never goes back. */
  constructor(log: DebugLog, now: () => number = () => performance.now()) {
    this.#log = log;
    this.#now = now;
  }

  /**
   * An attempt failed.
   * @param key names what is attempted.
   * @param details of the log line; `err` is the reason.
   */
  failed(key: string, details: Readonly<Record<string, unknown>>, message: string): void {
    const now = this.#now();
    const failure = this.#current(key, now);
    failure.attempts += 1;
    failure.untold += 1;
    const lasted = now - failure.since;
    const reason = details.err instanceof Error ? details.err.message : String(details.err);
    const isNews = failure.reasons.size < MAX_REASONS && !failure.reasons.has(reason);
    const becomesError = lasted >= LASTING && !failure.isError;
    if (!isNews && !becomesError && now < failure.nextLine) {
      this.#log.debug(details, message);
      return;
    }
    if (isNews) failure.reasons.add(reason);
    failure.isError ||= becomesError;
    const { untold, attempts, isError } = failure;
    const count =
      untold === 1 && attempts === 1 ? {} : { repeated: untold, seconds: inSeconds(lasted) };
    this.#log[isError ? 'error' : 'warn']({ ...details, ...count }, message);
    failure.untold = 0;
    failure.isTold = true;
    failure.nextLine = now + failure.interval;
    failure.interval = Math.min(2 * failure.interval, LONGEST_INTERVAL);
  }

  /** It worked, or is not attempted any more. @param message for the log, if it had failed before. */
  succeeded(key: string, details: object, message: string): void {
    const failure = this.#failures.get(key);
    if (failure === undefined || failure.over !== undefined) return;
    const now = this.#now();
    failure.over = now;
    if (!failure.isTold) return;
    failure.isTold = false;
    const { attempts, since } = failure;
    this.#log.info({ ...details, failures: attempts, seconds: inSeconds(now - since) }, message);
  }

  /** Whether the last attempt failed. */
  isFailing(key: string): boolean {
    const failure = this.#failures.get(key);
    return failure !== undefined && failure.over === undefined;
  }

  /** The failure that is under way; one that just ended, begun again; or a new one. */
  #current(key: string, now: number): Failure {
    const known = this.#failures.get(key);
    if (known !== undefined && known.over === undefined) return known;
    if (known !== undefined && now - (known.over ?? 0) < RELAPSE) {
      Object.assign(known, { since: now, over: undefined, attempts: 0, isError: false });
      return known;
    }
    const fresh: Failure = {
      since: now,
      over: undefined,
      reasons: new Set(),
      attempts: 0,
      untold: 0,
      interval: FIRST_INTERVAL,
      nextLine: now,
      isError: false,
      isTold: false,
    };
    // To the end: the first is the one to forget.
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
