import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { callPeriodically, systemTimers } from '../../sync/timers.ts';
import { FakeTimers } from './fake-timers.ts';

describe('timers: systemTimers', () => {
  it('accepts a delay of a thousand hours without a warning', async () => {
    const warnings: string[] = [];
    const record = ({ name }: Error) => warnings.push(name);
    process.on('warning', record);
    // Node warns when it replaces a delay by 1 ms.
    const timer = systemTimers.set(() => {}, 1000 * 3_600_000);
    await nextTurn();
    process.off('warning', record);
    systemTimers.clear(timer);
    assert.deepEqual(warnings, []);
  });
});

describe('timers: every', () => {
  it('calls back each period until stopped', () => {
    const timers = new FakeTimers();
    const calls: number[] = [];
    const end = callPeriodically(timers, 100, () => calls.push(timers.now()));
    timers.advance(350);
    end();
    timers.advance(1000);
    assert.deepEqual(calls, [100, 200, 300]);
    assert.equal(timers.pending, 0);
  });

  it('can be stopped by its callback', () => {
    const timers = new FakeTimers();
    const end = callPeriodically(timers, 100, () => end());
    timers.advance(100);
    assert.equal(timers.pending, 0);
  });
});
