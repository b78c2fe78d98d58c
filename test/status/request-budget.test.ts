import assert from 'node:assert/strict';
import { RequestBudget, TooManyRequests } from '../../status/http/request-budget.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

/** Syncs of a fake clock. */
function fakeSyncs(isBusy = false) {
  const listeners: (() => void)[] = [];
  const syncs = {
    isBusy,
    beforeBusyChange: (listener: () => void) => void listeners.push(listener),
    become: (busy: boolean) => {
      for (const listener of listeners) listener();
      syncs.isBusy = busy;
    },
  };
  return syncs;
}

describe('request-budget: the share of time of requests', () => {
  /** A budget whose requests work some milliseconds of the fake clock, or wait for them. */
  const build = (syncs = fakeSyncs()) => {
    const timers = new FakeTimers();
    let worked = 0;
    const budget = new RequestBudget(timers, syncs, () => worked);
    const done: number[] = [];
    const wait = (milliseconds: number) => () => {
      timers.advance(milliseconds);
      done.push(timers.now());
    };
    const work = (milliseconds: number) => () => {
      worked += milliseconds;
      wait(milliseconds)();
    };
    const start = timers.now();
    /** Lets time pass in steps of 10 ms until so many requests are done. @returns seconds since the start. */
    const until = async (count: number, most = 60_000) => {
      for (let step = 0; step < most && done.length < count; step++) {
        await turn();
        timers.advance(10);
      }
      assert.equal(done.length, count);
      return (timers.now() - start) / 1000;
    };
    /** Works so many milliseconds, a tick each, while other things happen. */
    const workOn = async (milliseconds: number) => {
      for (let rest = milliseconds; rest > 0; rest -= 10) {
        worked += 10;
        timers.advance(10);
        await turn();
      }
    };
    return { timers, budget, done, start, wait, work, workOn, until };
  };
  const turn = () => new Promise(setImmediate);

  it('runs a burst at once, then as much as a twentieth of the time', async () => {
    const { budget, done, start, work, until } = build();
    const all = Array.from({ length: 40 }, () => budget.run(work(20)));
    const seconds = await until(40);
    await Promise.all(all);
    const burst = done.filter((time) => time - start <= 400).length;
    assert.ok(burst >= 15 && burst <= 22, `burst of ${burst}`);
    // 800 ms of work: 300 ms at once, 500 ms at a twentieth of the time.
    assert.ok(seconds > 8 && seconds < 11, `${seconds} s`);
  });

  it('does not count the time in which requests wait for the kernel', async () => {
    const { budget, wait, until } = build();
    const all = Array.from({ length: 5 }, () => budget.run(wait(2000)));
    const seconds = await until(5);
    await Promise.all(all);
    assert.ok(seconds < 10.5, `${seconds} s`);
  });

  it('lets no request wait longer than 2 s for an expensive one before it', async () => {
    const { budget, done, work, until } = build();
    const all = Array.from({ length: 5 }, () => budget.run(work(2000)));
    await until(5);
    await Promise.all(all);
    const waits = done.slice(1).map((time, index) => time - (done[index] ?? 0) - 2000);
    assert.ok(Math.max(...waits) <= 2010, waits.join(' '));
    assert.ok(Math.max(...waits) > 1900, waits.join(' '));
  });

  it('lets no request wait longer than 2 s while an expensive one runs', async () => {
    const { timers, budget, workOn } = build();
    const expensive = Promise.withResolvers<void>();
    const first = budget.run(() => expensive.promise);
    await workOn(1000);
    const starts: number[] = [];
    const [begin, next] = [timers.now(), () => starts.push(timers.now() - begin)];
    const others = [budget.run(next), budget.run(next)];
    await workOn(6000);
    assert.deepEqual(starts, [2000, 4000]);
    expensive.resolve();
    await Promise.all([first, ...others]);
  });

  it('does not charge a request for what syncs do meanwhile', async () => {
    const syncs = fakeSyncs();
    const { timers, budget, work } = build(syncs);
    await budget.run(() => {
      work(100)();
      syncs.become(true);
      work(5000)();
      syncs.become(false);
      work(100)();
    });
    let ran = 0;
    // 200 of 300 ms are used, and some time has passed.
    void budget.run(() => (ran += 1));
    await turn();
    assert.equal(ran, 1);
    await budget.run(work(400));
    void budget.run(() => (ran += 1));
    await turn();
    assert.equal(ran, 1);
    timers.advance(2000);
    await turn();
    assert.equal(ran, 2);
  });

  /** Whether a request must wait after one that did something, with the meter of the agent. */
  const waitsAfter = async (first: () => void) => {
    const timers = new FakeTimers();
    const budget = new RequestBudget(timers, fakeSyncs());
    await budget.run(first);
    let ran = false;
    const second = budget.run(() => {
      ran = true;
    });
    await turn();
    const hasWaited = !ran;
    timers.advance(2000);
    await second;
    return hasWaited;
  };

  it('charges the time of this thread, and none in which it waits', async () => {
    const worked = () => process.threadCpuUsage().user / 1000;
    const work = () => {
      for (const start = worked(); worked() - start < 330; );
    };
    assert.equal(await waitsAfter(work), true);
    const wait = () => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 400);
    assert.equal(await waitsAfter(wait), false);
  });

  it('starts no request whose client has gone while it waited', async () => {
    const { timers, budget, work } = build();
    await budget.run(work(1000));
    const [gone, ran] = [new AbortController(), [] as number[]];
    const left = Array.from({ length: 100 }, (_, index) =>
      budget.run(() => ran.push(index), gone.signal),
    );
    await turn();
    gone.abort();
    assert.deepEqual(new Set(await Promise.all(left)), new Set([undefined]));
    // There is room again, at once.
    const next = budget.run(() => ran.push(100), new AbortController().signal);
    timers.advance(2000);
    await next;
    assert.deepEqual(ran, [100]);
    assert.equal(await budget.run(() => 1, gone.signal), undefined);
  });

  it('starts no request while a sync runs, but not for long', async () => {
    const syncs = fakeSyncs(true);
    const { timers, budget } = build(syncs);
    let ran = 0;
    const request = () => budget.run(() => (ran += 1));
    const first = request();
    await turn();
    timers.advance(20);
    await turn();
    assert.equal(ran, 0);
    syncs.become(false);
    timers.advance(2);
    await first;
    syncs.become(true);
    const second = request();
    timers.advance(48);
    await turn();
    assert.equal(ran, 1);
    timers.advance(2);
    await second;
    assert.equal(ran, 2);
  });

  it('runs others while requests wait for something else, and lets these go on first', async () => {
    const { budget } = build();
    const outside = Promise.withResolvers<void>();
    const [inside, seen] = [Promise.withResolvers<void>(), [] as string[]];
    const waiting = Array.from({ length: 4 }, () =>
      budget.run(async (waitOutside) => {
        await waitOutside(() => outside.promise);
        seen.push('goes on');
      }),
    );
    await turn();
    const others = Array.from({ length: 4 }, () => budget.run(() => inside.promise));
    await turn();
    const last = budget.run(() => seen.push('last'));
    outside.resolve();
    await turn();
    assert.deepEqual(seen, []);
    inside.resolve();
    await Promise.all([...waiting, ...others, last]);
    assert.deepEqual(seen, ['goes on', 'goes on', 'goes on', 'goes on', 'last']);
  });

  it('lets 100 requests wait for something else, which keep no others out', async () => {
    const { timers, budget } = build();
    const outside = Promise.withResolvers<void>();
    const wait = () => budget.run((waitOutside) => waitOutside(() => outside.promise));
    const all = Array.from({ length: 100 }, wait);
    await turn();
    const refused = wait();
    await turn();
    assert.equal(await budget.run(() => 1), 1);
    timers.advance(1000);
    await assert.rejects(refused, TooManyRequests);
    outside.resolve();
    await Promise.all(all);
  });

  it('passes on the error of what a request waited for', async () => {
    const { budget } = build();
    const failed = () => Promise.reject(new Error('exit status 1'));
    await assert.rejects(
      budget.run((waitOutside) => waitOutside(failed)),
      /exit status 1/,
    );
    assert.equal(await budget.run(() => 1), 1);
  });

  it('refuses more than 100 waiting requests, after a second', async () => {
    const { timers, budget } = build();
    const first = Promise.withResolvers<void>();
    const run = () => budget.run(() => first.promise);
    // Four run, a hundred wait.
    const all = Array.from({ length: 104 }, run);
    await turn();
    const refused = run();
    let isRefused = false;
    refused.catch(() => {
      isRefused = true;
    });
    timers.advance(999);
    await turn();
    assert.equal(isRefused, false);
    timers.advance(1);
    await assert.rejects(refused, TooManyRequests);
    first.resolve();
    for (let step = 0; step < 100; step++) {
      await turn();
      timers.advance(100);
    }
    await Promise.all(all);
    assert.equal(await budget.run(() => 1), 1);
  });

  it('names in a refusal the wait until there is room', async () => {
    const { timers, budget, work } = build();
    await budget.run(work(5000));
    const all = Array.from({ length: 100 }, () => budget.run(work(0)));
    const refused = budget.run(() => {});
    refused.catch(() => {});
    await turn();
    timers.advance(1000);
    await assert.rejects(refused, { message: /try again in 1 s/, retryAfter: 1 });
    timers.advance(2000);
    await Promise.all(all);
  });

  it('goes on after a request that fails', async () => {
    const { budget } = build();
    await assert.rejects(
      budget.run(() => {
        throw new Error('no');
      }),
      /no/,
    );
    assert.equal(await budget.run(() => 2), 2);
  });
});
