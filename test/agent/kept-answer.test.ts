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

  it('are found again for a caller that wants a younger one, by one run at a time', async () => {
    let [at, runs, atOnce] = [0, 0, 0];
    let end = () => {};
    const get = keepAgedAnswer(
      async () => {
        runs += 1;
        atOnce += 1;
        assert.equal(atOnce, 1);
        await new Promise<void>((resolve) => {
          end = resolve;
        });
        atOnce -= 1;
        return runs;
      },
      60_000,
      () => at,
    );
    const turn = () => new Promise((resolve) => setImmediate(resolve));
    const first = get();
    at = 5000;
    const [second, third] = [get(1000), get(1000)];
    await turn();
    end();
    await first;
    await turn();
    end();
    assert.deepEqual([(await first).value, (await second).value, (await third).value], [1, 2, 2]);
    at = 5900;
    assert.deepEqual(await get(1000), { value: 2, age: 900 });
    at = 9000;
    assert.equal((await get()).value, 2);
    const fourth = get(1000);
    await turn();
    end();
    assert.equal((await fourth).value, 3);
  });
});
