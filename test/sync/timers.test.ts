import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { every, systemTimers } from '../../sync/timers.ts';
import { FakeTimers } from './fake-timers.ts';

describe('timers: the timers of the system', () => {
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

describe('timers: a period', () => {
  it('calls back each time it is over, until it is ended', () => {
    const timers = new FakeTimers();
    const calls: number[] = [];
    const end = every(timers, 100, () => calls.push(timers.now()));
    timers.advance(350);
    end();
    timers.advance(1000);
    assert.deepEqual(calls, [100, 200, 300]);
    assert.equal(timers.pending, 0);
  });

  it('can be ended by what it calls', () => {
    const timers = new FakeTimers();
    const end = every(timers, 100, () => end());
    timers.advance(100);
    assert.equal(timers.pending, 0);
  });
});
