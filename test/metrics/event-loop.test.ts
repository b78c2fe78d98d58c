import assert from 'node:assert/strict';
import { execa } from 'execa';
import { watchEventLoop } from '../../metrics/event-loop.ts';
import { waitFor } from '../lab/wait.ts';

/** The URL of a module of `metrics/`, as a literal. */
const module = (name: string) => JSON.stringify(new URL(`../../metrics/${name}`, import.meta.url));

describe('event-loop: watchEventLoop()', () => {
  it('reports a stall once, at least as long as it was', async () => {
    const seen: number[] = [];
    const stop = watchEventLoop((seconds) => seen.push(seconds));
    try {
      await waitFor('the first second has passed', () => seen.length > 0);
      const count = seen.length;
      // Blocks this thread. A busy machine causes other stalls, but hardly such long ones.
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1500);
      await waitFor('two more seconds have passed', () => seen.length >= count + 2);
      assert.equal(seen.slice(count).filter((seconds) => seconds >= 1.499).length, 1, `${seen}`);
    } finally {
      stop();
    }
  });

  it('reports that the process got no CPU time while it waited', async () => {
    const child = execa(
      process.execPath,
      [
        '--input-type=module',
        '--eval',
        `import { watchEventLoop } from ${module('event-loop.ts')};
         watchEventLoop((seconds) => console.log(seconds));
         setInterval(() => {}, 60_000);`,
      ],
      { reject: false, buffer: false },
    );
    const seen: number[] = [];
    child.stdout.on('data', (text) => seen.push(...String(text).trim().split('\n').map(Number)));
    try {
      await waitFor('the first second has passed', () => seen.length > 0);
      child.kill('SIGSTOP');
      const stopped = performance.now();
      await waitFor('the process stands still', () => performance.now() - stopped > 2000);
      child.kill('SIGCONT');
      await waitFor('the pause is reported', () => seen.some((seconds) => seconds >= 1.8));
    } finally {
      child.kill('SIGKILL');
      await child;
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
