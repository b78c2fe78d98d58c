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
const malformed = new MalformedResponse('what?');
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
  ['renews a silent watch at once', [0, 0], { ...ENDED, isSilent: true }, [0, 0, 0]],
  ['resets all counters after a silent watch', [3, 2], { ...ENDED, isSilent: true }, [0, 0, 0]],
  ['rewatches at once after events', [3, 2], { ...ENDED, hasEvents: true }, [0, 0, 0]],
  ['waits after a watch without events', [0, 0], ENDED, [1, 0, 1200]],
  ['resets failures when a watch was opened', [6, 0], ENDED, [1, 0, 1200]],
  [
    'resets failures when an opened watch breaks',
    [6, 0],
    { ...FAILED, hasResponse: true },
    [1, 0, 1200],
  ],
  ['waits after a failure', [0, 0], FAILED, [1, 0, 1200]],
  ['does not relist after the third failure', [2, 0], FAILED, [3, 0, 4800]],
  ['does not relist after the hundredth failure', [99, 0], FAILED, [100, 0, 45_000]],
  ['relists with jitter after a 410', [0, 0], { ...FAILED, failure: gone }, [0, 1, 400, 'list']],
  [
    'relists with jitter after a 410 that follows failures',
    [6, 0],
    { ...FAILED, failure: gone },
    [6, 1, 400, 'list'],
  ],
  [
    'treats reason Expired with another code as a 410',
    [0, 0],
    { ...FAILED, failure: expired },
    [0, 1, 400, 'list'],
  ],
  [
    'waits after a second 410 without an event between them',
    [0, 1],
    { ...ENDED, failure: gone },
    [0, 2, 1200, 'list'],
  ],
  ['waits longer after the third 410', [0, 2], { ...ENDED, failure: gone }, [0, 3, 2400, 'list']],
  [
    'restarts with jitter after an event between two 410s',
    [0, 3],
    { ...ENDED, failure: gone, hasEvents: true },
    [0, 1, 400, 'list'],
  ],
  [
    'relists after a malformed response',
    [0, 0],
    { ...FAILED, failure: malformed },
    [1, 1, 1200, 'list'],
  ],
  [
    'waits longer after repeated malformed responses',
    [0, 4],
    { ...ENDED, failure: malformed },
    [1, 5, 19_200, 'list'],
  ],
  // The history check before the next watch detects the server's version.
  [
    'does not relist from a server with an older version',
    [0, 0],
    { ...FAILED, failure: ahead },
    [1, 0, 1250],
  ],
  [
    'honours Retry-After of an overloaded server',
    [0, 0],
    { ...FAILED, failure: busy },
    [1, 0, 8750],
  ],
  ['waits by the number of stale responses', [5, 0], { ...FAILED, failure: stale }, [5, 0, 2400]],
];

describe('retry: deciding what follows an attempt to list and watch', () => {
  for (const [what, [failures, relists], outcome, [after, relisted, waitMs, list]] of ROWS) {
    it(what, () => {
      const before: RetryState = { failures, relists, shortWatches: 0 };
      const step = nextRetry(before, outcome, () => 0.5);
      assert.deepEqual(step.state, { failures: after, relists: relisted, shortWatches: 0 });
      assert.deepEqual([step.waitMs, step.mustRelist], [waitMs, list === 'list']);
    });
  }

  it('increases the waits and sometimes relists after very short watches', () => {
    let { state } = nextRetry({ ...INITIAL_RETRY_STATE, failures: 6 }, SHORT, () => 0.5);
    assert.deepEqual(state, { failures: 1, relists: 0, shortWatches: 1 });
    for (const [failure, waitMs, list] of [
      [undefined, 2400, false],
      [refused, 4800, true],
      [undefined, 9600, false],
      [refused, 19_200, false],
      [undefined, 38_400, true],
    ] as const) {
      const step = nextRetry(state, { ...SHORT, failure }, () => 0.5);
      assert.deepEqual([step.waitMs, step.mustRelist], [waitMs, list]);
      ({ state } = step);
    }
    assert.equal(nextRetry(state, ENDED, () => 0.5).state.shortWatches, 0);
  });
});
