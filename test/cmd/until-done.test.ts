import assert from 'node:assert/strict';
import { untilDone } from '../../cmd/until-done.ts';

/** Attempts end one after the other as told: with an error, or with whether it is done. */
async function run(...ends: readonly (Error | boolean)[]) {
  const warnings: string[] = [];
  let attempts = 0;
  const log = {
    info: assert.fail,
    error: assert.fail,
    warn: (details: object, message: string) => {
      warnings.push(`${message}: ${(details as { err: Error }).err.message}`);
    },
  };
  // The timer alone would not keep the process.
  const alive = setInterval(() => {}, 1000);
  await untilDone(
    'cannot',
    log,
    async () => {
      const end = ends[attempts++];
      if (end instanceof Error) throw end;
      return end ?? assert.fail('it was done');
    },
    1,
  );
  clearInterval(alive);
  return { warnings, attempts };
}

describe('attempts until something is done', () => {
  it('end when it is', async () => {
    assert.deepEqual(await run(true), { warnings: [], attempts: 1 });
    assert.deepEqual(await run(false, false, true), { warnings: [], attempts: 3 });
  });

  it('go on after failures, which are warned of when they are new', async () => {
    const [busy, denied] = [new Error('busy'), new Error('denied')];
    assert.deepEqual(await run(busy, busy, denied, denied, false, busy, true), {
      warnings: ['busy', 'denied', 'busy'].map((reason) => `cannot; trying again: ${reason}`),
      attempts: 7,
    });
  });
});
