/** What to do after an attempt to list and watch, and when. */
import { jitteredBackoffMs, retryDelayMs } from './backoff.ts';
import { ApiError, type ApiServerFailure, MalformedResponse, StaleResponse } from './errors.ts';

/** How an attempt to list and watch ended. */
export interface AttemptOutcome {
  /** Undefined for a watch that fell silent, or was ended by the server in due form. */
  readonly failure: ApiServerFailure | undefined;
  /** The watch is still open, and has brought nothing for the silence period. */
  readonly isSilent: boolean;
  /** A complete list was read, or a watch was opened: the server is there and serves. */
  readonly hasResponse: boolean;
  /** The watch brought an event or a bookmark. */
  readonly hasEvents: boolean;
  /** The watch ended as soon as it was open, and brought nothing. */
  readonly watchEndedAtOnce: boolean;
}

/** What is remembered from attempt to attempt. */
export interface RetryState {
  /** Attempts in a row without an answer that is of use. */
  readonly failures: number;
  /** Lists in a row that were asked for because of what a watch brought or was refused for. */
  readonly relists: number;
  /** Watches in a row that ended as soon as they were open, and brought nothing. */
  readonly shorts: number;
}

export interface RetryStep {
  readonly state: RetryState;
  /** The version that was watched from is of no use any more: list. */
  readonly mustRelist: boolean;
  readonly waitMs: number;
  /** 0 when the attempt did not fail. */
  readonly failures: number;
}

export const INITIAL_RETRY_STATE: RetryState = { failures: 0, relists: 0, shorts: 0 };
/** The nodes of a cluster may hear at the same moment that a version has expired. */
const RELIST_JITTER_MS = 800;
/** So many watches in a row that end at once cost a list: nothing else tells of changes then. */
const RELIST_AFTER_SHORT_WATCHES = 3;

/**
 * What to do after an attempt. As client-go, an outage costs no list: the next watch goes on from the
 * last version, and only a server that refuses that version (410) is asked for a list. A server
 * that is at an older version than the agent refuses nothing; `etcd-history.ts` finds it.
 *
 * A list is asked for at once after the first 410, but for a jitter; if no event comes between one 410
 * and the next, the waits grow, for a server that refuses what it has just listed would be asked
 * for lists without a pause. client-go waits 0.8 to 1.6 s before each list.
 *
 * Watches that end as soon as they are open make the waits grow, and lists follow (as after client-go's
 * "very short watch"): a proxy may take watches and hand nothing on.
 * @param random from 0 up to and without 1.
 */
export function nextRetry(
  before: RetryState,
  outcome: AttemptOutcome,
  random: () => number,
): RetryStep {
  const {
    failure,
    isSilent,
    hasResponse,
    hasEvents,
    watchEndedAtOnce,
  } = outcome;
  const failures = hasResponse ? 0 : before.failures;
  const relists = hasEvents || isSilent ? 0 : before.relists;
  const shorts = watchEndedAtOnce ? before.shorts + 1 : hasResponse ? 0 : before.shorts;
  if (isSilent || (failure === undefined && hasEvents)) {
    return { state: INITIAL_RETRY_STATE, mustRelist: false, waitMs: 0, failures: 0 };
  }
  if (failure instanceof StaleResponse) {
    const { consecutive: times } = failure;
    const retry = { failures, relists, shorts: before.shorts };
    return {
      state: retry,
      mustRelist: false,
      waitMs: jitteredBackoffMs(times, random),
      failures: times,
    };
  }
  if (failure instanceof ApiError && failure.isExpired) {
    const isFirst = relists === 0;
    const wait = isFirst
      ? Math.round(RELIST_JITTER_MS * random())
      : jitteredBackoffMs(relists, random);
    const retry = { failures, relists: relists + 1, shorts: 0 };
    return { state: retry, mustRelist: true, waitMs: wait, failures: isFirst ? 0 : relists };
  }
  const isMalformed = failure instanceof MalformedResponse;
  const retry = { failures: failures + 1, relists: isMalformed ? relists + 1 : relists, shorts };
  const tries = Math.max(retry.failures, isMalformed ? retry.relists : 0, shorts);
  const asked = failure instanceof ApiError ? failure.retryAfterMs : 0;
  const list = isMalformed || (watchEndedAtOnce && shorts % RELIST_AFTER_SHORT_WATCHES === 0);
  return {
    state: retry,
    mustRelist: list,
    waitMs: retryDelayMs(tries, asked, random),
    failures: tries,
  };
}
