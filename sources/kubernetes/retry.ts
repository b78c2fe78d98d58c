/** Decides whether to relist or to rewatch after an attempt, and how long to wait. */
import { jitteredBackoffMs, retryDelayMs } from './backoff.ts';
import { ApiError, type ApiServerFailure, MalformedResponse, StaleResponse } from './errors.ts';

/** Result of an attempt to list and watch. */
export interface AttemptOutcome {
  /** Undefined when the watch became silent or the server ended it normally. */
  readonly failure: ApiServerFailure | undefined;
  /** Whether the watch is open, but was silent for the silence period or marked as silent. */
  readonly isSilent: boolean;
  /** Whether a list was complete or a watch was opened, so the server works. */
  readonly hasResponse: boolean;
  /** Whether the watch delivered an event or a bookmark. */
  readonly hasEvents: boolean;
  /** Whether the watch was very short: it ended within a second without any event. */
  readonly watchEndedAtOnce: boolean;
}

/** State carried from attempt to attempt. */
export interface RetryState {
  /** Consecutive failed attempts; a complete list or an opened watch restarts the count. */
  readonly failures: number;
  /** Consecutive relists caused by a 410 or a malformed response. */
  readonly relists: number;
  /** Consecutive very short watches. */
  readonly shortWatches: number;
}

export interface RetryStep {
  readonly state: RetryState;
  /** Whether to relist, because the resource version of the last watch is unusable. */
  readonly mustRelist: boolean;
  readonly waitMs: number;
  /**
   * Consecutive attempts that failed or whose watch ended without events; 0 when the attempt
   * succeeded or failed with a first 410.
   */
  readonly failures: number;
}

export const INITIAL_RETRY_STATE: RetryState = { failures: 0, relists: 0, shortWatches: 0 };
/**
 * Maximum milliseconds before the first relist. Jitter, because all nodes of a cluster may learn at
 * the same moment that a version has expired.
 */
const RELIST_JITTER_MS = 800;
/**
 * Relist after this many consecutive very short watches, because such watches deliver no changes.
 */
const RELIST_AFTER_SHORT_WATCHES = 3;

/**
 * Decides whether a relist or a new watch follows an attempt, and after which wait. As in
 * client-go, an outage does not cause a relist: the next watch continues from the last version, and
 * only a 410 for that version causes a relist. A server with an older version than the agent sends
 * no error; `etcd-history.ts` detects such a server. A malformed response causes a relist.
 *
 * The first 410 causes a relist at once, apart from jitter. If no event arrives before the next
 * 410, the waits grow. Without these waits, a server that rejects the version of its own last list
 * would be listed without a pause. client-go waits 0.8 to 1.6 s before each list.
 *
 * Very short watches increase the waits and eventually cause relists, as in client-go: a proxy may
 * accept watches and forward nothing.
 * @param random from 0 (inclusive) to 1 (exclusive).
 */
export function nextRetry(
  before: RetryState,
  outcome: AttemptOutcome,
  random: () => number,
): RetryStep {
  const { failure, isSilent, hasResponse, hasEvents, watchEndedAtOnce } = outcome;
  const failures = hasResponse ? 0 : before.failures;
  const relists = hasEvents || isSilent ? 0 : before.relists;
  const shortWatches = watchEndedAtOnce
    ? before.shortWatches + 1
    : hasResponse
      ? 0
      : before.shortWatches;
  if (isSilent || (failure === undefined && hasEvents)) {
    return { state: INITIAL_RETRY_STATE, mustRelist: false, waitMs: 0, failures: 0 };
  }
  if (failure instanceof StaleResponse) {
    const { consecutive } = failure;
    const retry = { failures, relists, shortWatches: before.shortWatches };
    return {
      state: retry,
      mustRelist: false,
      waitMs: jitteredBackoffMs(consecutive, random),
      failures: consecutive,
    };
  }
  if (failure instanceof ApiError && failure.isExpired) {
    const isFirst = relists === 0;
    const wait = isFirst
      ? Math.round(RELIST_JITTER_MS * random())
      : jitteredBackoffMs(relists, random);
    const retry = { failures, relists: relists + 1, shortWatches: 0 };
    return { state: retry, mustRelist: true, waitMs: wait, failures: isFirst ? 0 : relists };
  }
  const isMalformed = failure instanceof MalformedResponse;
  const retry = {
    failures: failures + 1,
    relists: isMalformed ? relists + 1 : relists,
    shortWatches,
  };
  const tries = Math.max(retry.failures, isMalformed ? retry.relists : 0, shortWatches);
  const retryAfterMs = failure instanceof ApiError ? failure.retryAfterMs : 0;
  const mustRelist =
    isMalformed || (watchEndedAtOnce && shortWatches % RELIST_AFTER_SHORT_WATCHES === 0);
  return {
    state: retry,
    mustRelist,
    waitMs: retryDelayMs(tries, retryAfterMs, random),
    failures: tries,
  };
}
