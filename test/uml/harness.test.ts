import assert from 'node:assert/strict';
import { existsSync, globSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { waitFor } from '../lab/lab.ts';
import { type Run, runInside } from './run.ts';

const OUTCOMES = new URL('./fixtures/outcomes.uml.ts', import.meta.url).pathname;
const BOOT = new URL('./boot.ts', import.meta.url).href;

/** Processes with a directory in their command line. */
function processesOf(directory: string): string[] {
  return globSync('/proc/[0-9]*/cmdline').filter((file) => {
    try {
      return readFileSync(file, 'utf8').includes(directory);
    } catch {
      // The process has exited meanwhile.
      return false;
    }
  });
}

describe('harness: user-mode-linux', () => {
  let scratch: string;
  let run: Run | undefined;

  beforeEach(() => {
    scratch = mkdtempSync(join(tmpdir(), 'portwide-harness-'));
  });
  afterEach(async () => {
    await run?.stop();
    run = undefined;
    rmSync(scratch, { recursive: true });
  });

  /** A first process: a script with the given lines. */
  const initOf = (...lines: string[]): string => {
    const init = join(scratch, 'init');
    writeFileSync(init, ['#!/bin/sh', ...lines, ''].join('\n'), { mode: 0o755 });
    return init;
  };

  it('reports every outcome of a spec', async () => {
    const started = runInside({ specs: [OUTCOMES], timeoutSeconds: 60 });
    run = started;
    await started.began();
    await started.passed(['outcomes', 'passes']);
    await assert.rejects(started.passed(['outcomes', 'fails']), ({ message, stack }: Error) => {
      assert.match(message, /they differ/);
      assert.match(stack ?? '', /outcomes\.uml\.ts:7/);
      return true;
    });
    const hidden = started.passed(['outcomes', 'after a failing hook', 'never runs']);
    await assert.rejects(hidden, /the hook fails/);
    await assert.rejects(started.ended(), /the hook fails/s);
  });

  it('reports why a kernel ended before a spec ran', async () => {
    run = runInside({ init: initOf('echo no way', 'exit 3'), timeoutSeconds: 60 });
    await assert.rejects(run.began(), /has ended: .*no way.*Kernel panic/s);
    await assert.rejects(run.passed(['any']), /mocha has not ended.*in the first failure/s);
  });

  it('kills a kernel that hangs', async () => {
    run = runInside({ init: initOf('echo waiting', 'exec sleep 600'), timeoutSeconds: 10 });
    await assert.rejects(run.began(), /not finished within 10 s.*waiting/s);
  });

  it('leaves nothing when the booting process is killed, even by SIGKILL', async () => {
    const options = { command: ['true'], timeoutSeconds: 60, init: initOf('exec sleep 600') };
    for (const signal of ['SIGINT', 'SIGTERM', 'SIGKILL'] as const) {
      const program = `
        const { bootUml } = await import('${BOOT}');
        bootUml(${JSON.stringify(options)});`;
      const child = execa(process.execPath, ['--input-type=module', '--eval', program], {
        env: { TMPDIR: scratch },
        reject: false,
      });
      const [directory = ''] = await waitFor('the kernel runs', () => {
        const found = globSync(join(scratch, 'portwide-uml-*'));
        return found.some((each) => processesOf(each).length > 3) ? found : undefined;
      });
      child.kill(signal);
      await child;
      await waitFor('its directory is removed', () => !existsSync(directory));
      await waitFor('its processes have exited', () => processesOf(directory).length === 0);
    }
  });
});
