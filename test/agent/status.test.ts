import assert from 'node:assert/strict';
import { loadOnce } from '../../agent/status.ts';

describe('status: loading of the status API', () => {
  it('loads once for all requests', async () => {
    let loads = 0;
    const { load, loaded } = loadOnce(async () => {
      loads += 1;
      return loads;
    });
    assert.equal(await loaded(), undefined);
    assert.deepEqual(await Promise.all([load(), load()]), [1, 1]);
    assert.deepEqual([await load(), await loaded()], [1, 1]);
  });

  it('loads again at the next request after a failure', async () => {
    let loads = 0;
    const { load, loaded } = loadOnce(async () => {
      loads += 1;
      if (loads === 1) throw new Error('EMFILE: too many open files');
      return 'answers';
    });
    // Requests that arrive meanwhile share the failure.
    const results = await Promise.allSettled([load(), load()]);
    assert.deepEqual(
      results.map(({ status }) => status),
      ['rejected', 'rejected'],
    );
    assert.equal(await loaded(), undefined);
    assert.equal(await load(), 'answers');
    assert.deepEqual([await loaded(), loads], ['answers', 2]);
  });
});
