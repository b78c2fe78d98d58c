import assert from 'node:assert/strict';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import { createNamespace, type Namespace } from './namespace.ts';

const SCRIPT = fileURLToPath(new URL('watching-process.ts', import.meta.url));

describe('exit: a process that watches addresses', () => {
  let namespace: Namespace;

  before(async () => {
    namespace = await createNamespace();
  });
  after(() => namespace[Symbol.asyncDispose]());

  for (const way of ['close', 'exit', 'exit during a dump', 'worker thread']) {
    it(`exits within a second: ${way}`, async () => {
      const args = ['netns', 'exec', namespace.name, process.execPath, SCRIPT, way];
      const process_ = execa('ip', args, { timeout: 20_000, forceKillAfterDelay: 1000 });
      let exitStart = Number.NaN;
      for await (const line of process_) {
        if (line === 'exiting') exitStart = performance.now();
      }
      await process_;
      const duration = performance.now() - exitStart;
      assert(duration < 1000, `${duration} ms`);
    });
  }
});
