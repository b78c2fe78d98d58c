import assert from 'node:assert/strict';
import { RequestBudget, TooManyRequests } from '../../status/http/request-budget.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

describe('request-budget: the share of time of requests', () => {
  /** A request that takes some milliseconds of the fake clock. */
  const taking = (timers: FakeTimers, milliseconds: number, done: number[]) => () => {
    timers.advance(milliseconds);
    done.push(timers.now());
  };
  const turn = () => new Promise(setImmediate);

  it('runs a burst at once, then as much as a tenth of the time', async () => {
    const timers = new FakeTimers();
    const budget = new RequestBudget(timers);
    const done: number[] = [];
    const start = timers.now();
    const all = Array.from({ length: 40 }, () => budget.run(taking(timers, 20, done)));
    for (let step = 0; step < 1000 && done.length < 40; step++) {
      await turn();
      timers.advance(10);
    }
    await Promise.all(all);
    const burst = done.filter((time) => time - start <= 400).length;
    assert.ok(burst >= 15 && burst <= 22, `burst of ${burst}`);
    // 800 ms of work: 300 ms at once, 500 ms at a tenth of the time.
    const seconds = (timers.now() - start) / 1000;
    assert.ok(seconds > 4 && seconds < 6, `${seconds} s`);
  });

  it('refuses more than 100 waiting requests', async () => {
    const timers = new FakeTimers();
    const budget = new RequestBudget(timers);
    const first = Promise.withResolvers<void>();
    const run = () => budget.run(() => first.promise);
    // Four run, a hundred wait.
    const all = Array.from({ length: 104 }, run);
    await turn();
    await assert.rejects(run(), TooManyRequests);
    first.resolve();
    await Promise.all(all);
    assert.equal(await budget.run(() => 1), 1);
  });

  it('goes on after a request that fails', async () => {
    const budget = new RequestBudget(new FakeTimers());
    await assert.rejects(
      budget.run(() => {
        throw new Error('no');
      }),
      /no/,
    );
    assert.equal(await budget.run(() => 2), 2);
  });
});
