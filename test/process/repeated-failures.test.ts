import assert from 'node:assert/strict';
import { RepeatedFailures } from '../../process/repeated-failures.ts';

const MESSAGE = 'sync failed';

describe('repeated-failures: a failure that repeats', () => {
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
  /** One attempt a second. */
  const failFor = (seconds: number) => {
    for (let second = 0; second < seconds; second++) {
      fail();
      now += 1000;
    }
  };
  /** Without what only `-v 3` shows. */
  const told = () => lines.filter(([level]) => level !== 'debug');

  it('is a warning at once', () => {
    fail();
    assert.deepEqual(told(), [['warn', MESSAGE, { key: 'a', err: new Error('no') }]]);
  });

  it('is one line with a count in intervals that grow, and an error after a minute', () => {
    failFor(300);
    assert.deepEqual(
      told().map(([level, , { repeated, seconds }]) => [level, repeated, seconds]),
      [
        ['warn', undefined, undefined],
        ['warn', 10, 10],
        ['warn', 20, 30],
        ['error', 30, 60],
        ['error', 80, 140],
      ],
    );
  });

  it('shows each attempt below info', () => {
    failFor(5);
    assert.deepEqual(
      lines.map(([level, message]) => [level, message]),
      [['warn', MESSAGE], ...Array(4).fill(['debug', MESSAGE])],
    );
  });

  it('is told at once when its reason is a new one, unless there are too many', () => {
    fail('refused');
    fail('403');
    assert.deepEqual(
      told().map(([, , { err }]) => (err as Error).message),
      ['refused', '403'],
    );
    for (let port = 0; port < 100; port++) fail(`from port ${port}`);
    assert.equal(told().length, 5);
  });

  it('is over with one line, and no line when nothing had failed', () => {
    failures.succeeded('a', { key: 'a' }, 'again');
    failFor(3);
    failures.succeeded('a', { key: 'a' }, 'again');
    failures.succeeded('a', { key: 'a' }, 'again');
    assert.deepEqual(told().slice(1), [['info', 'again', { key: 'a', failures: 3, seconds: 3 }]]);
  });

  it('that comes and goes is told as rarely, and is no error', () => {
    for (let second = 0; second < 120; second++) {
      fail();
      failures.succeeded('a', {}, 'again');
      now += 1000;
    }
    assert.ok(told().length <= 10, `${told().length} lines`);
    assert.deepEqual(
      told().filter(([level]) => level === 'error'),
      [],
    );
    assert.equal(told().at(-1)?.[0], 'info', 'and the last line says that it is over');
  });

  it('that comes again later is a new one', () => {
    failFor(100);
    failures.succeeded('a', {}, 'again');
    now += 61_000;
    fail();
    assert.equal(told().at(-1)?.[0], 'warn');
    assert.equal(told().at(-1)?.[2].repeated, undefined);
  });

  it('of one thing says nothing of another', () => {
    fail('no', 'a');
    fail('no', 'b');
    failures.succeeded('a', {}, 'again');
    assert.deepEqual([failures.isFailing('a'), failures.isFailing('b')], [false, true]);
    assert.equal(told().length, 3);
  });
});
