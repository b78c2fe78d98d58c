import assert from 'node:assert/strict';
import { watchEventLoop } from '../../metrics/event-loop.ts';
import { waitFor } from '../lab/wait.ts';

describe('event-loop: watchEventLoop()', () => {
  it('reports a stall once, and none of an idle event loop', async () => {
    const seen: number[] = [];
    const stop = watchEventLoop((seconds) => seen.push(seconds));
    try {
      await waitFor('the first second has passed', () => seen.length > 0);
      // Blocks this thread.
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 200);
      const count = seen.length;
      await waitFor('two more seconds have passed', () => seen.length >= count + 2);
      const long = seen.slice(count).filter((seconds) => seconds >= 0.199);
      assert.ok(long.length >= 1, `${seen}`);
      await waitFor('a second without work is reported', () =>
        seen.some((seconds) => seconds < 0.1),
      );
    } finally {
      stop();
    }
  });
});
