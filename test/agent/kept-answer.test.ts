import assert from 'node:assert/strict';
import { keepAgedAnswer, keepAnswer } from '../../agent/kept-answer.ts';

describe('kept answers of the status API', () => {
  const { now } = Date;
  afterEach(() => {
    Date.now = now;
  });

  it('do not age when the clock of the node is set', async () => {
    let [runs, set] = [0, 0];
    Date.now = () => now() + set;
    const get = keepAnswer(async () => {
      runs += 1;
    }, 60_000);
    await get();
    set = 3_600_000;
    await get();
    assert.equal(runs, 1);
  });

  it('have an age, from the beginning of the run', async () => {
    let at = 100;
    const get = keepAgedAnswer(
      async () => {
        at += 20;
        return 'x';
      },
      60_000,
      () => at,
    );
    assert.deepEqual(await get(), { value: 'x', age: 20 });
    at += 5000;
    assert.deepEqual(await get(), { value: 'x', age: 5020 });
  });
});
