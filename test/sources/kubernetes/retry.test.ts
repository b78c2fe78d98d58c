import assert from 'node:assert/strict';
import {
  ApiError,
  ConnectionError,
  MalformedResponse,
  StaleResponse,
} from '../../../sources/kubernetes/errors.ts';
import {
  type AttemptOutcome,
  INITIAL_RETRY_STATE,
  nextRetry,
  type RetryState,
} from '../../../sources/kubernetes/retry.ts';

const refused = new ConnectionError(new Error('refused'));
const gone = new ApiError(410, 'Expired', 'too old');
const expired = new ApiError(500, 'Expired', 'too old');
const ahead = new ApiError(504, 'Timeout', 'Too large resource version', 1000);
const busy = new ApiError(429, 'TooManyRequests', 'later', 7000);
const nonsense = new MalformedResponse('what?');
const stale = new StaleResponse('5', '9', 2);

const FAILED: AttemptOutcome = {
  failure: refused,
  isSilent: false,
  hasResponse: false,
  hasEvents: false,
  watchEndedAtOnce: false,
};
const ENDED: AttemptOutcome = { ...FAILED, failure: undefined, hasResponse: true };
const SHORT: AttemptOutcome = { ...ENDED, watchEndedAtOnce: true };

type Row = readonly [
  what: string,
  before: readonly [failures: number, relists: number],
  outcome: AttemptOutcome,
  after: readonly [failures: number, relists: number, waitMs: number, list?: 'list'],
];
const ROWS: readonly Row[] = [
  ['a silent watch is renewed at once', [0, 0], { ...ENDED, isSilent: true }, [0, 0, 0]],
  ['and ends all counting', [3, 2], { ...ENDED, isSilent: true }, [0, 0, 0]],
  ['a watch that brought events goes on at once', [3, 2], { ...ENDED, hasEvents: true }, [0, 0, 0]],
  ['one that brought nothing and ended waits', [0, 0], ENDED, [1, 0, 1200]],
  ['an opened watch ends the counting of failures', [6, 0], ENDED, [1, 0, 1200]],
  ['so it does when it breaks', [6, 0], { ...FAILED, hasResponse: true }, [1, 0, 1200]],
  ['a failure waits', [0, 0], FAILED, [1, 0, 1200]],
  ['the third failure in a row costs no list', [2, 0], FAILED, [3, 0, 4800]],
  ['nor does the hundredth', [99, 0], FAILED, [100, 0, 45_000]],
  ['a 410 lists after a jitter', [0, 0], { ...FAILED, failure: gone }, [0, 1, 400, 'list']],
  ['whatever was waited for', [6, 0], { ...FAILED, failure: gone }, [6, 1, 400, 'list']],
  [
    'Expired with another code is one',
    [0, 0],
    { ...FAILED, failure: expired },
    [0, 1, 400, 'list'],
  ],
  [
    'a second one without an event between them waits',
    [0, 1],
    { ...ENDED, failure: gone },
    [0, 2, 1200, 'list'],
  ],
  ['the third one waits longer', [0, 2], { ...ENDED, failure: gone }, [0, 3, 2400, 'list']],
  [
    'an event between them ends that',
    [0, 3],
    { ...ENDED, failure: gone, hasEvents: true },
    [0, 1, 400, 'list'],
  ],
  ['nonsense is listed anew', [0, 0], { ...FAILED, failure: nonsense }, [1, 1, 1200, 'list']],
  [
    'again and again, it is so more and more rarely',
    [0, 4],
    { ...ENDED, failure: nonsense },
    [1, 5, 19_200, 'list'],
  ],
  // What the server is at is found by the check before the next watch.
  [
    'a server at an older version costs no list',
    [0, 0],
    { ...FAILED, failure: ahead },
    [1, 0, 1250],
  ],
  ['an overloaded server is left alone', [0, 0], { ...FAILED, failure: busy }, [1, 0, 8750]],
  ['an older answer waits by its own count', [5, 0], { ...FAILED, failure: stale }, [5, 0, 2400]],
];

describe('next-step: what to do after an attempt to list and watch', () => {
  for (const [what, [failures, relists], outcome, [after, relisted, waitMs, list]] of ROWS) {
    it(what, () => {
      const before: RetryState = { failures, relists, shorts: 0 };
      const step = nextRetry(before, outcome, () => 0.5);
      assert.deepEqual(step.state, { failures: after, relists: relisted, shorts: 0 });
      assert.deepEqual([step.waitMs, step.mustRelist], [waitMs, list === 'list']);
    });
  }

  it('waits longer, and lists now and then, while watches end as soon as they open', () => {
    let { state: retry } = nextRetry({ ...INITIAL_RETRY_STATE, failures: 6 }, SHORT, () => 0.5);
    assert.deepEqual(retry, { failures: 1, relists: 0, shorts: 1 });
    for (const [failure, waitMs, list] of [
      [undefined, 2400, false],
      [refused, 4800, true],
      [undefined, 9600, false],
      [refused, 19_200, false],
      [undefined, 38_400, true],
    ] as const) {
      const step = nextRetry(retry, { ...SHORT, failure }, () => 0.5);
      assert.deepEqual([step.waitMs, step.mustRelist], [waitMs, list]);
      ({ state: retry } = step);
    }
    assert.equal(nextRetry(retry, ENDED, () => 0.5).state.shorts, 0);
  });
});
