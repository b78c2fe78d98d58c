import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { type DriftCheck, Loop } from '../../sync/loop.ts';
import { FakeTimers } from './fake-timers.ts';

/** A loop whose runs the test ends by hand. */
function start(options: { minPeriod?: number; delay?: number; checks?: DriftCheck } = {}) {
  const timers = new FakeTimers();
  const starts: number[] = [];
  const full: boolean[] = [];
  const ends: ((outcome: number | undefined | Error) => void)[] = [];
  const { minPeriod = 1000, delay = 0, checks } = options;
  const loop = new Loop({
    run: (isFull) => {
      starts.push(timers.now());
      full.push(isFull);
      const { promise, resolve, reject } = Promise.withResolvers<number | undefined>();
      ends.push((outcome) => (outcome instanceof Error ? reject(outcome) : resolve(outcome)));
      return promise;
    },
    minPeriod,
    delay,
    backoff: { first: 500, max: 4000 },
    timers,
    ...(checks && { driftCheck: checks }),
  });
  /** @param outcome milliseconds that it took, or `NOTHING`. */
  const end = async (outcome: number | typeof NOTHING | Error = 1) => {
    ends.shift()?.(outcome === NOTHING ? undefined : outcome);
    await nextTurn();
  };
  return { timers, starts, full, loop, end };
}

const NOTHING = 'nothing to do';

describe('loop: the loop', () => {
  it('runs at once at rest, twice if need be, then no oftener than the least period', async () => {
    const { timers, starts, loop, end } = start();
    loop.request();
    loop.request();
    timers.advance(0);
    await end();
    loop.request();
    timers.advance(0);
    await end();
    for (let index = 0; index < 10; index++) {
      loop.request();
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
    const loop = new Loop({
      run: async () => {
        running += 1;
        runs += 1;
        most = Math.max(most, running);
        if (runs < 3) loop.request();
        timers.advance(0);
        await nextTurn();
        running -= 1;
        return 1;
      },
      minPeriod: 0,
      backoff: { first: 500, max: 4000 },
      timers,
    });
    loop.request();
    for (let turn = 0; turn < 10; turn++) {
      timers.advance(0);
      await nextTurn();
    }
    assert.deepEqual([runs, most], [3, 1]);
  });

  it('runs again when asked in the middle of a run, and never two at a time', async () => {
    const { timers, starts, loop, end } = start({ minPeriod: 0 });
    loop.request();
    timers.advance(0);
    loop.request();
    timers.advance(100);
    assert.equal(starts.length, 1);
    await end();
    timers.advance(0);
    assert.equal(starts.length, 2);
  });

  it('comes again after a failure, ever later, and not before', async () => {
    const { timers, starts, loop, end } = start({ minPeriod: 0 });
    loop.request();
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
    const { timers, starts, loop, end } = start();
    loop.request();
    timers.advance(0);
    await end();
    loop.request();
    timers.advance(0);
    await end();
    loop.request();
    timers.advance(10);
    loop.request({ urgent: true });
    timers.advance(0);
    assert.deepEqual(starts, [0, 0, 10]);
  });

  it('a run that had nothing to do does not hold up the next', async () => {
    const { timers, starts, loop, end } = start();
    loop.request();
    timers.advance(0);
    await end(NOTHING);
    timers.advance(5);
    loop.request();
    timers.advance(0);
    assert.deepEqual(starts, [0, 5]);
  });

  it('puts a burst of requests together, and comes no sooner after one in the middle', async () => {
    const { timers, starts, loop, end } = start({ minPeriod: 0, delay: 50 });
    loop.request();
    timers.advance(40);
    loop.request();
    timers.advance(10);
    assert.deepEqual(starts, [50]);
    loop.request();
    await end();
    timers.advance(49);
    assert.deepEqual(starts, [50]);
    timers.advance(1);
    await end(new Error('no'));
    timers.advance(500);
    assert.deepEqual(starts, [50, 100, 600]);
  });

  it('stops for good, after the run that is under way', async () => {
    const { timers, starts, loop, end } = start();
    loop.request();
    timers.advance(0);
    loop.request();
    const stopped = loop.stop();
    await end();
    await stopped;
    timers.advance(10_000);
    assert.deepEqual(starts, [0]);
  });

  it('is full at first, after a failure, and until there was something to do', async () => {
    const { timers, full, loop, end } = start({ minPeriod: 0 });
    const round = async (outcome: Parameters<typeof end>[0]) => {
      loop.request();
      timers.advance(4000);
      await end(outcome);
    };
    await round(NOTHING);
    await round(1);
    await round(1);
    await round(new Error('no'));
    await round(1);
    await round(NOTHING);
    assert.deepEqual(full, [true, true, false, false, true, false]);
  });

  describe('when somebody changed what it wrote', () => {
    it('makes a full run at once, whatever it waits for, and one a second in a storm', async () => {
      const { timers, starts, full, loop, end } = start({ minPeriod: 60_000 });
      for (const outcome of [1, 1, new Error('no')]) {
        loop.request({ urgent: true });
        timers.advance(0);
        await end(outcome);
      }
      timers.advance(100);
      for (let change = 0; change < 30; change++) {
        loop.resync();
        timers.advance(100);
        await end();
      }
      assert.deepEqual(starts, [0, 0, 0, 100, 1100, 2100, 3100]);
      assert.deepEqual(full, [true, false, false, true, true, true, true]);
    });

    it('makes one more where that was in the middle of a run', async () => {
      const { timers, full, loop, end } = start({ minPeriod: 0 });
      loop.request();
      timers.advance(0);
      loop.resync();
      timers.advance(0);
      await end();
      timers.advance(0);
      await end();
      timers.advance(10_000);
      assert.deepEqual(full, [true, true]);
    });
  });

  describe('that looks after what it wrote', () => {
    const HOUR = 3_600_000;

    function looking(options: { took: number; hears?: boolean }) {
      const log: string[] = [];
      const state = { lost: undefined as string | undefined, hears: options.hears ?? false };
      const checks: DriftCheck = {
        period: 1000,
        findDrift: async () => {
          if (state.lost === 'unknown') throw new Error('cannot look');
          return state.lost;
        },
        watchesChanges: () => state.hears,
        onChecked: () => log.push('looked'),
        onDrift: (what) => log.push(`lost ${what}`),
        onError: (error) => log.push(String(error)),
      };
      const test = start({ minPeriod: 0, checks });
      const pass = async (milliseconds: number) => {
        test.timers.advance(milliseconds);
        await nextTurn();
        test.timers.advance(0);
        await test.end(options.took);
      };
      return { ...test, log, state, pass };
    }

    it('knows nothing before the first full run', async () => {
      const { log, pass, loop } = looking({ took: 100 });
      await pass(5000);
      await loop.checkDrift();
      assert.deepEqual(log, []);
    });

    it('runs in full when something is lost, found each period or when told to look', async () => {
      const { full, log, state, pass, loop } = looking({ took: 100_000 });
      loop.request();
      await pass(0);
      await pass(1000);
      assert.deepEqual([full, log], [[true], ['looked']]);
      state.lost = 'a chain';
      await pass(1000);
      assert.deepEqual(
        [full, log],
        [
          [true, true],
          ['looked', 'looked', 'lost a chain'],
        ],
      );
      void loop.checkDrift();
      await pass(0);
      assert.deepEqual(full, [true, true, true]);
    });

    it('tells of a look that failed, and looks again', async () => {
      const { full, log, state, pass, loop } = looking({ took: 100_000 });
      loop.request();
      await pass(0);
      state.lost = 'unknown';
      await pass(1000);
      await pass(1000);
      assert.deepEqual(log, ['Error: cannot look', 'Error: cannot look']);
      assert.deepEqual(full, [true]);
    });

    for (const [took, hears, period, what] of [
      [5, false, 1000, 'each period while that is cheap'],
      [50, false, 5000, 'for one part in a hundred of the time when it is not'],
      [HOUR, false, HOUR, 'each hour at least'],
      [5, true, HOUR, 'each hour where it hears of what others do'],
    ] as const) {
      it(`runs in full ${what}`, async () => {
        const { starts, full, pass, loop } = looking({ took, hears });
        loop.request();
        await pass(0);
        for (let at = 0; at < 2 * period; at += 1000) await pass(1000);
        assert.deepEqual(full, [true, true, true]);
        assert.deepEqual(starts, [0, period, 2 * period]);
      });
    }

    it('does not wait for a look that hangs to run, and looks no more once stopped', async () => {
      const { timers, starts, loop, end } = start({
        minPeriod: 0,
        checks: {
          period: 1000,
          findDrift: () => new Promise(() => {}),
          watchesChanges: () => false,
          onChecked: () => {},
          onDrift: () => {},
          onError: () => {},
        },
      });
      loop.request();
      timers.advance(0);
      await end(100_000);
      timers.advance(1000);
      await nextTurn();
      loop.request();
      timers.advance(0);
      await end();
      assert.deepEqual(starts, [0, 1000]);
      void loop.stop();
      assert.equal(timers.pending, 0);
    });
  });
});
