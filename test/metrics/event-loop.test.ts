import assert from 'node:assert/strict';
import { execa } from 'execa';
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

  it('wakes an idle process up at most 40 times a second, with the metrics of the process', async () => {
    const module = (name: string) =>
      JSON.stringify(new URL(`../../metrics/${name}`, import.meta.url));
    const { stdout } = await execa(process.execPath, [
      '--input-type=module',
      '--eval',
      `import { createRegistry } from ${module('define.ts')};
       import { watchEventLoop } from ${module('event-loop.ts')};
       createRegistry();
       const switches = () => process.resourceUsage().voluntaryContextSwitches;
       let [reports, before, started] = [0, 0, 0];
       watchEventLoop(() => {
         reports += 1;
         if (reports === 1) [before, started] = [switches(), performance.now()];
         if (reports < 4) return;
         console.log((switches() - before) / ((performance.now() - started) / 1000));
         process.exit();
       });
       setInterval(() => {}, 60_000);`,
    ]);
    assert.ok(Number(stdout) <= 40, stdout);
  });
});
