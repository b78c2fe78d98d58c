import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { Runner } from '../../sync/loop.ts';
import { systemTimers } from '../../sync/timers.ts';
import { FakeTimers } from './fake-timers.ts';

/** A runner whose runs the test ends by hand. */
function start(options: { minPeriod?: number } = {}) {
  const timers = new FakeTimers();
  const starts: number[] = [];
  const ends: ((outcome: boolean | Error) => void)[] = [];
  const runner = new Runner({
    run: () => {
      starts.push(timers.now());
      const { promise, resolve, reject } = Promise.withResolvers<boolean>();
      ends.push((outcome) => (outcome instanceof Error ? reject(outcome) : resolve(outcome)));
      return promise;
    },
    minPeriod: options.minPeriod ?? 1000,
    backoff: { first: 500, max: 4000 },
    timers,
  });
  const end = async (outcome: boolean | Error = true) => {
    ends.shift()?.(outcome);
    await nextTurn();
  };
  return { timers, starts, runner, end };
}

describe('the runner', () => {
  it('runs at once at rest, twice if need be, then no oftener than the least period', async () => {
    const { timers, starts, runner, end } = start();
    runner.request();
    runner.request();
    timers.advance(0);
    await end();
    runner.request();
    timers.advance(0);
    await end();
    for (let index = 0; index < 10; index++) {
      runner.request();
      timers.advance(10);
    }
    timers.advance(2000);
    await end();
    timers.advance(5000);
    assert.deepEqual(starts, [0, 0, 1000]);
  });

  it('does not run twice at a time when a run asks for the next one before it waits', async () => {
    const timers = new FakeTimers();
    let [running, most, runs] = [0, 0, 0];
    const runner = new Runner({
      run: async () => {
        running += 1;
        runs += 1;
        most = Math.max(most, running);
        if (runs < 3) runner.request();
        timers.advance(0);
        await nextTurn();
        running -= 1;
        return true;
      },
      minPeriod: 0,
      backoff: { first: 500, max: 4000 },
      timers,
    });
    runner.request();
    for (let turn = 0; turn < 10; turn++) {
      timers.advance(0);
      await nextTurn();
    }
    assert.deepEqual([runs, most], [3, 1]);
  });

  it('runs again when asked in the middle of a run, and never two at a time', async () => {
    const { timers, starts, runner, end } = start({ minPeriod: 0 });
    runner.request();
    timers.advance(0);
    runner.request();
    timers.advance(100);
    assert.equal(starts.length, 1);
    await end();
    timers.advance(0);
    assert.equal(starts.length, 2);
  });

  it('comes again after a failure, ever later, and not before', async () => {
    const { timers, starts, runner, end } = start({ minPeriod: 0 });
    runner.request();
    timers.advance(0);
    for (const wait of [500, 1000, 2000, 4000, 4000]) {
      await end(new Error('no'));
      timers.advance(wait - 1);
      const before = starts.length;
      timers.advance(1);
      assert.equal(starts.length, before + 1);
    }
    await end();
    timers.advance(100_000);
    assert.equal(starts.length, 6);
  });

  it('does not wait when it is urgent', async () => {
    const { timers, starts, runner, end } = start();
    runner.request();
    timers.advance(0);
    await end();
    runner.request();
    timers.advance(0);
    await end();
    runner.request();
    timers.advance(10);
    runner.request({ urgent: true });
    timers.advance(0);
    assert.deepEqual(starts, [0, 0, 10]);
  });

  it('a run that had nothing to do does not hold up the next', async () => {
    const { timers, starts, runner, end } = start();
    runner.request();
    timers.advance(0);
    await end(false);
    timers.advance(5);
    runner.request();
    timers.advance(0);
    assert.deepEqual(starts, [0, 5]);
  });

  it('stops for good, after the run that is under way', async () => {
    const { timers, starts, runner, end } = start();
    runner.request();
    timers.advance(0);
    runner.request();
    const stopped = runner.stop();
    await end();
    await stopped;
    timers.advance(10_000);
    assert.deepEqual(starts, [0]);
  });
});

describe('the timers of the system', () => {
  it('take a thousand hours for long', async () => {
    const warnings: string[] = [];
    const hear = ({ name }: Error) => warnings.push(name);
    process.on('warning', hear);
    // Node warns where it makes a millisecond of it.
    const timer = systemTimers.set(() => {}, 1000 * 3_600_000);
    await nextTurn();
    process.off('warning', hear);
    systemTimers.clear(timer);
    assert.deepEqual(warnings, []);
  });
});
