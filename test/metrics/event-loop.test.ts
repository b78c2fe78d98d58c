import assert from 'node:assert/strict';
import { takeMaxStall, watchEventLoop } from '../../metrics/event-loop.ts';
import { waitFor } from '../lab/wait.ts';

describe('event-loop: watchEventLoop()', () => {
  it('subtracts the sampling interval, and reports seconds', () => {
    for (const [max, expected] of [
      [260e6, 0.25],
      [10e6, 0],
      [9e6, 0],
      [0, 0],
    ] as const) {
      let resets = 0;
      const monitor = { max, reset: () => (resets += 1) };
      assert.equal(takeMaxStall(monitor), expected);
      assert.equal(resets, 1);
    }
  });

  it('reports a stall in one second only', async () => {
    const seen: number[] = [];
    const stop = watchEventLoop((seconds) => seen.push(seconds));
    try {
      await waitFor('the first second has passed', () => seen.length > 0);
      // Blocks this thread.
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 200);
      const count = seen.length;
      await waitFor('two more seconds have passed', () => seen.length >= count + 2);
      const long = seen.slice(count).filter((seconds) => seconds >= 0.18);
      assert.ok(long.length >= 1, `${seen}`);
    } finally {
      stop();
    }
  });
});
