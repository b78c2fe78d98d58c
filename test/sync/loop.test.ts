import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { type DriftCheck, Loop, type LoopOptions } from '../../sync/loop.ts';
import { Precedence } from '../../sync/precedence.ts';
import { systemTimers } from '../../sync/timers.ts';
import { FakeTimers } from './fake-timers.ts';

/** A loop whose runs the test completes by hand. */
function start(
  options: Partial<Pick<LoopOptions, 'minPeriod' | 'delay' | 'driftCheck' | 'precedence'>> = {},
) {
  const timers = new FakeTimers();
  const starts: number[] = [];
  const full: boolean[] = [];
  const ends: ((outcome: number | undefined | Error) => void)[] = [];
  const { minPeriod = 1000, delay = 0, ...rest } = options;
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
    ...rest,
  });
  /** @param outcome Duration in milliseconds, `NOTHING` or an error. */
  const end = async (outcome: number | typeof NOTHING | Error = LONG) => {
    ends.shift()?.(outcome === NOTHING ? undefined : outcome);
    await nextTurn();
  };
  return { timers, starts, full, loop, end };
}

const NOTHING = 'no work';
/** Milliseconds of a run that counts as a whole. */
const LONG = 50;

describe('loop: the sync loop', () => {
  it('runs immediately up to the burst, then once per minPeriod', async () => {
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

  it('counts a short run by its duration, so that runs take a twentieth of the time', async () => {
    const { timers, starts, loop, end } = start({ minPeriod: 100 });
    for (let at = 0; at < 2000; at++) {
      loop.request();
      timers.advance(1);
      await end(1);
    }
    const [first = 0] = starts.slice(1).map((time, index) => time - (starts[index] ?? 0));
    assert.ok(first <= 1, 'the second run follows at once');
    const late = starts.filter((time) => time >= 1000);
    assert.ok(late.length >= 49 && late.length <= 51, `${late.length} runs of 1 ms in 1 s`);
  });

  it('has precedence over background work while it runs, not while it waits for its rate limit', async () => {
    const precedence = new Precedence();
    const { timers, starts, loop, end } = start({ precedence });
    for (let run = 0; run < 2; run++) {
      loop.request();
      timers.advance(0);
      assert.equal(precedence.isBusy, true);
      await end();
    }
    loop.request();
    timers.advance(900);
    assert.deepEqual([starts.length, precedence.isBusy], [2, false]);
    timers.advance(100);
    assert.deepEqual([starts.length, precedence.isBusy], [3, true]);
    await end();
  });

  it('runs before background work that waits for its turn', async () => {
    const order: string[] = [];
    const precedence = new Precedence();
    const loop = new Loop({
      precedence,
      run: async () => {
        order.push('sync');
        return 1;
      },
      minPeriod: 0,
      backoff: { first: 500, max: 4000 },
      timers: systemTimers,
    });
    const slice = precedence.yield().then(() => order.push('slice'));
    loop.request();
    await slice;
    await loop.stop();
    assert.deepEqual(order, ['sync', 'slice']);
  });

  it('does not run concurrently when a run requests the next synchronously', async () => {
    const timers = new FakeTimers();
    let [running, maxRunning, runs] = [0, 0, 0];
    const loop = new Loop({
      run: async () => {
        running += 1;
        runs += 1;
        maxRunning = Math.max(maxRunning, running);
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
    assert.deepEqual([runs, maxRunning], [3, 1]);
  });

  it('runs again after a request during a run, never concurrently', async () => {
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

  it('retries with backoff after a failure', async () => {
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

  it('runs an urgent request immediately', async () => {
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

  it('does not count a run without work against minPeriod', async () => {
    const { timers, starts, loop, end } = start();
    loop.request();
    timers.advance(0);
    await end(NOTHING);
    timers.advance(5);
    loop.request();
    timers.advance(0);
    assert.deepEqual(starts, [0, 5]);
  });

  it('coalesces a burst of requests during the delay', async () => {
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

  it('stops after the current run', async () => {
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

  it('runs a full sync first, after a failure, and until one had work to do', async () => {
    const { timers, full, loop, end } = start({ minPeriod: 0 });
    const runOnce = async (outcome: Parameters<typeof end>[0]) => {
      loop.request();
      timers.advance(4000);
      await end(outcome);
    };
    await runOnce(NOTHING);
    await runOnce(1);
    await runOnce(1);
    await runOnce(new Error('no'));
    await runOnce(1);
    await runOnce(NOTHING);
    assert.deepEqual(full, [true, true, false, false, true, false]);
  });

  describe('resync after an external change', () => {
    it('runs a full sync immediately, and at most one per second', async () => {
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

    it('runs another full sync when requested during a run', async () => {
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

  describe('drift check', () => {
    const HOUR = 3_600_000;

    function startWithDriftCheck(options: { duration: number; watches?: boolean }) {
      const log: string[] = [];
      const state = { drift: undefined as string | undefined, watches: options.watches ?? false };
      const driftCheck: DriftCheck = {
        period: 1000,
        findDrift: async () => {
          if (state.drift === 'unknown') throw new Error('check failed');
          return state.drift;
        },
        watchesChanges: () => state.watches,
        onChecked: () => log.push('checked'),
        onDrift: (drift) => log.push(`drift: ${drift}`),
        onError: (error) => log.push(String(error)),
      };
      const test = start({ minPeriod: 0, driftCheck });
      const advance = async (milliseconds: number) => {
        test.timers.advance(milliseconds);
        await nextTurn();
        test.timers.advance(0);
        await test.end(options.duration);
      };
      return { ...test, log, state, advance };
    }

    it('does not check before the first full sync', async () => {
      const { log, advance, loop } = startWithDriftCheck({ duration: 100 });
      await advance(5000);
      await loop.checkDrift();
      assert.deepEqual(log, []);
    });

    it('runs a full sync when a periodic or requested check finds drift', async () => {
      const { full, log, state, advance, loop } = startWithDriftCheck({ duration: 100_000 });
      loop.request();
      await advance(0);
      await advance(1000);
      assert.deepEqual([full, log], [[true], ['checked']]);
      state.drift = 'a chain';
      await advance(1000);
      assert.deepEqual(
        [full, log],
        [
          [true, true],
          ['checked', 'checked', 'drift: a chain'],
        ],
      );
      void loop.checkDrift();
      await advance(0);
      assert.deepEqual(full, [true, true, true]);
    });

    it('reports a failed check and checks again', async () => {
      const { full, log, state, advance, loop } = startWithDriftCheck({ duration: 100_000 });
      loop.request();
      await advance(0);
      state.drift = 'unknown';
      await advance(1000);
      await advance(1000);
      assert.deepEqual(log, ['Error: check failed', 'Error: check failed']);
      assert.deepEqual(full, [true]);
    });

    for (const [duration, watches, period, what] of [
      [5, false, 1000, 'each period while full syncs are fast'],
      [50, false, 5000, 'for at most 1/100 of the time when full syncs are slow'],
      [HOUR, false, HOUR, 'at least once an hour'],
      [5, true, HOUR, 'once an hour when external changes are watched'],
    ] as const) {
      it(`runs a full sync ${what}`, async () => {
        const { starts, full, advance, loop } = startWithDriftCheck({ duration, watches });
        loop.request();
        await advance(0);
        for (let at = 0; at < 2 * period; at += 1000) await advance(1000);
        assert.deepEqual(full, [true, true, true]);
        assert.deepEqual(starts, [0, period, 2 * period]);
      });
    }

    it('runs while a check hangs, and does not check after stop', async () => {
      const { timers, starts, loop, end } = start({
        minPeriod: 0,
        driftCheck: {
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
