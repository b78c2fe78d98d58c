import assert from 'node:assert/strict';
import {
  jitteredBackoffMs,
  RETRY_CLOCK,
  retryDelayMs,
} from '../../../sources/kubernetes/backoff.ts';

describe('backoff', () => {
  it('doubles from 0.8 s to 30 s, plus up to 100 % jitter', () => {
    const waits = [1, 2, 3, 6, 7, 1000].map((failures) => jitteredBackoffMs(failures, () => 0));
    assert.deepEqual(waits, [800, 1600, 3200, 25600, 30000, 30000]);
    assert.equal(
      jitteredBackoffMs(1, () => 0.999),
      1599,
    );
  });

  it('waits at least Retry-After, plus jitter', () => {
    const wait = (failures: number, askedMs: number, chance: number) =>
      retryDelayMs(failures, askedMs, () => chance);
    assert.equal(wait(1, 0, 0.5), 1200);
    assert.equal(wait(1, 10_000, 0), 10_000);
    assert.equal(wait(1, 10_000, 0.999), 14_995);
    assert.equal(wait(6, 10_000, 0), 25_600);
  });

  it('ends a wait when aborted', async () => {
    const controller = new AbortController();
    const waiting = RETRY_CLOCK.delay(3_600_000, controller.signal);
    controller.abort();
    await waiting;
    await RETRY_CLOCK.delay(3_600_000, controller.signal);
  });
});
