import assert from 'node:assert/strict';
import { RepeatedFailures } from '../../process/repeated-failures.ts';

const MESSAGE = 'sync failed';

describe('repeated-failures: a repeated failure', () => {
  let now = 0;
  let lines: [level: string, message: string, details: Record<string, unknown>][];
  let failures: RepeatedFailures;
  beforeEach(() => {
    now = 1_000_000;
    lines = [];
    const at = (level: string) => (details: object, message: string) => {
      lines.push([level, message, details as Record<string, unknown>]);
    };
    const log = { debug: at('debug'), info: at('info'), warn: at('warn'), error: at('error') };
    failures = new RepeatedFailures(log, () => now);
  });
  const fail = (reason = 'no', key = 'a') =>
    failures.failed(key, { key, err: new Error(reason) }, MESSAGE);
  /** One failed attempt per second. */
  const failFor = (seconds: number) => {
    for (let second = 0; second < seconds; second++) {
      fail();
      now += 1000;
    }
  };
  /** Lines above level debug. */
  const loggedLines = () => lines.filter(([level]) => level !== 'debug');

  it('logs the first failure as a warning', () => {
    fail();
    assert.deepEqual(loggedLines(), [['warn', MESSAGE, { key: 'a', err: new Error('no') }]]);
  });

  it('logs a count at growing intervals, and level error after a minute', () => {
    failFor(300);
    assert.deepEqual(
      loggedLines().map(([level, , { repeated, seconds }]) => [level, repeated, seconds]),
      [
        ['warn', undefined, undefined],
        ['warn', 10, 10],
        ['warn', 20, 30],
        ['error', 30, 60],
        ['error', 80, 140],
      ],
    );
  });

  it('logs suppressed attempts at level debug', () => {
    failFor(5);
    assert.deepEqual(
      lines.map(([level, message]) => [level, message]),
      [['warn', MESSAGE], ...Array(4).fill(['debug', MESSAGE])],
    );
  });

  it('logs a new reason immediately, up to a limit', () => {
    fail('refused');
    fail('403');
    assert.deepEqual(
      loggedLines().map(([, , { err }]) => (err as Error).message),
      ['refused', '403'],
    );
    for (let port = 0; port < 100; port++) fail(`from port ${port}`);
    assert.equal(loggedLines().length, 5);
  });

  it('logs one line on recovery, and none without a failure', () => {
    failures.succeeded('a', { key: 'a' }, 'again');
    failFor(3);
    failures.succeeded('a', { key: 'a' }, 'again');
    failures.succeeded('a', { key: 'a' }, 'again');
    assert.deepEqual(loggedLines().slice(1), [
      ['info', 'again', { key: 'a', failures: 3, seconds: 3 }],
    ]);
  });

  it('limits the lines of a flapping failure, without level error', () => {
    for (let second = 0; second < 120; second++) {
      fail();
      failures.succeeded('a', {}, 'again');
      now += 1000;
    }
    assert.ok(loggedLines().length <= 10, `${loggedLines().length} lines`);
    assert.deepEqual(
      loggedLines().filter(([level]) => level === 'error'),
      [],
    );
    assert.equal(loggedLines().at(-1)?.[0], 'info', 'the last line is the recovery');
  });

  it('treats a failure after a minute of success as new', () => {
    failFor(100);
    failures.succeeded('a', {}, 'again');
    now += 61_000;
    fail();
    assert.equal(loggedLines().at(-1)?.[0], 'warn');
    assert.equal(loggedLines().at(-1)?.[2].repeated, undefined);
  });

  it('tracks each key separately', () => {
    fail('no', 'a');
    fail('no', 'b');
    failures.succeeded('a', {}, 'again');
    assert.deepEqual([failures.isFailing('a'), failures.isFailing('b')], [false, true]);
    assert.equal(loggedLines().length, 3);
  });
});
