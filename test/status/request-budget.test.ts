import assert from 'node:assert/strict';
import { RequestBudget, TooManyRequests } from '../../status/http/request-budget.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

describe('request-budget: the share of time of requests', () => {
  /** A budget whose requests work some milliseconds of the fake clock, or wait for them. */
  const build = (maxWait?: number, syncs = { isBusy: false }) => {
    const timers = new FakeTimers();
    let worked = 0;
    const budget = new RequestBudget(timers, syncs, { maxWait, worked: () => worked });
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
    return { timers, budget, done, start, wait, work, until };
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

  it('keeps the share for requests that take seconds of work', async () => {
    const { budget, work, until } = build();
    const all = Array.from({ length: 5 }, () => budget.run(work(2000)));
    const seconds = await until(5);
    await Promise.all(all);
    // The fifth waits until four have taken their share, after a burst of 300 ms.
    assert.ok(seconds > 150 && seconds < 165, `${seconds} s`);
  });

  it('does not count the time in which requests wait for the kernel', async () => {
    const { budget, wait, until } = build();
    const all = Array.from({ length: 5 }, () => budget.run(wait(2000)));
    const seconds = await until(5);
    await Promise.all(all);
    assert.ok(seconds < 10.5, `${seconds} s`);
  });

  it('lets no request of root wait longer than the bound', async () => {
    const { budget, done, work, until } = build(5000);
    const all = Array.from({ length: 5 }, () => budget.run(work(2000)));
    await until(5);
    await Promise.all(all);
    const waits = done.slice(1).map((time, index) => time - (done[index] ?? 0) - 2000);
    assert.ok(Math.max(...waits) <= 5010, waits.join(' '));
    assert.ok(Math.max(...waits) > 4900, waits.join(' '));
  });

  it('starts no request while a sync runs or waits, but not for long', async () => {
    const syncs = { isBusy: true };
    const { timers, budget } = build(undefined, syncs);
    let ran = 0;
    const request = () => budget.run(() => (ran += 1));
    const first = request();
    await turn();
    timers.advance(20);
    await turn();
    assert.equal(ran, 0);
    syncs.isBusy = false;
    timers.advance(2);
    await first;
    syncs.isBusy = true;
    const second = request();
    timers.advance(48);
    await turn();
    assert.equal(ran, 1);
    timers.advance(2);
    await second;
    assert.equal(ran, 2);
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
