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

  it('runs a burst at once, then as much as a twentieth of the time', async () => {
    const timers = new FakeTimers();
    const budget = new RequestBudget(timers, { isBusy: false });
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
    // 800 ms of work: 300 ms at once, 500 ms at a twentieth of the time.
    const seconds = (timers.now() - start) / 1000;
    assert.ok(seconds > 8 && seconds < 11, `${seconds} s`);
  });

  it('starts no request while a sync runs or waits, but not for long', async () => {
    const timers = new FakeTimers();
    const syncs = { isBusy: true };
    const budget = new RequestBudget(timers, syncs);
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
    const timers = new FakeTimers();
    const budget = new RequestBudget(timers, { isBusy: false });
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
    // The requests took a second, which is more than their share.
    for (let step = 0; step < 100; step++) {
      await turn();
      timers.advance(100);
    }
    await Promise.all(all);
    assert.equal(await budget.run(() => 1), 1);
  });

  it('goes on after a request that fails', async () => {
    const budget = new RequestBudget(new FakeTimers(), { isBusy: false });
    await assert.rejects(
      budget.run(() => {
        throw new Error('no');
      }),
      /no/,
    );
    assert.equal(await budget.run(() => 2), 2);
  });
});
