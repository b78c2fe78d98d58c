import assert from 'node:assert/strict';
import { execa } from 'execa';

const SCRIPT = `
  import { isLocked, tryLock } from ${JSON.stringify(new URL('../../process/lock.ts', import.meta.url))};
  const found = [await isLocked()];
  const lock = await tryLock();
  found.push(await isLocked(), await isLocked(), (await tryLock()) === undefined);
  lock.close();
  found.push(await isLocked());
  console.log(JSON.stringify(found));
`;

describe('node lock', () => {
  it('isLocked tells whether an agent holds it, and does not take it', async () => {
    // In its own network namespace, because the lock is scoped to it.
    const command = ['--net', process.execPath, '--input-type=module', '-e', SCRIPT];
    const { stdout } = await execa('unshare', command);
    assert.deepEqual(JSON.parse(stdout), [false, true, true, true, false]);
  });
});
