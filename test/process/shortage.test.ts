import assert from 'node:assert/strict';
import { execa } from 'execa';

/** Runs a script in a process that survives shortages. @returns its exit status and its log. */
async function run(script: string) {
  const setUp = `
    const { pino } = await import('pino');
    const { surviveShortages } = await import('./process/shortage.ts');
    surviveShortages(pino({ base: null }, pino.destination({ dest: 1, sync: true })));
    const fail = (code) => Object.assign(new Error('failed on demand'), { code });
  `;
  const args = ['--input-type=module', '--eval', setUp + script];
  const { exitCode, stdout } = await execa(process.execPath, args, { reject: false });
  const lines = stdout.split('\n').filter((line) => line !== '');
  return { exitCode, messages: lines.map((line) => String(JSON.parse(line).msg)) };
}

describe('shortage: surviveShortages', () => {
  it('goes on when a timer or a listener has no file descriptor', async () => {
    const { exitCode, messages } = await run(`
      setTimeout(() => { throw fail('EMFILE'); });
      setImmediate(() => { throw fail('ENFILE'); });
      setTimeout(() => process.exit(7), 20);
    `);
    assert.deepEqual([exitCode, messages], [7, ['short of file descriptors']]);
  });

  for (const code of ['EMFILE', 'ENFILE']) {
    it(`exits when nothing handles the rejection of a promise, with ${code}`, async () => {
      const { exitCode, messages } = await run(`
        void Promise.reject(fail('${code}'));
        setTimeout(() => process.exit(7), 1000);
      `);
      assert.deepEqual([exitCode, messages], [1, ['internal error; exiting']]);
    });
  }

  for (const code of ['ENOBUFS', 'ENOMEM']) {
    it(`exits with ${code}, after which the outcome of an operation is unknown`, async () => {
      const { exitCode, messages } = await run(`
        setTimeout(() => { throw fail('${code}'); });
        setTimeout(() => process.exit(7), 1000);
      `);
      assert.deepEqual([exitCode, messages], [1, ['internal error; exiting']]);
    });
  }

  it('exits when anything else fails', async () => {
    const { exitCode, messages } = await run(`
      setTimeout(() => { throw new TypeError('failed on demand'); });
      setTimeout(() => process.exit(7), 1000);
    `);
    assert.deepEqual([exitCode, messages], [1, ['internal error; exiting']]);
  });
});
