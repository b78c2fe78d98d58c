import assert from 'node:assert/strict';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import { createNamespace, type Namespace } from './namespace.ts';

const EXITING = fileURLToPath(new URL('exiting.ts', import.meta.url));

describe('exit: a process that watches addresses', () => {
  let namespace: Namespace;

  before(async () => {
    namespace = await createNamespace();
  });
  after(() => namespace[Symbol.asyncDispose]());

  for (const way of ['close', 'exit', 'exit while dumping', 'worker']) {
    it(`leaves at once: ${way}`, async () => {
      const args = ['netns', 'exec', namespace.name, process.execPath, EXITING, way];
      const process_ = execa('ip', args, { timeout: 20_000, forceKillAfterDelay: 1000 });
      let leaving = Number.NaN;
      for await (const line of process_) {
        if (line === 'leaving') leaving = performance.now();
      }
      await process_;
      const took = performance.now() - leaving;
      assert(took < 1000, `${took} ms`);
    });
  }
});
