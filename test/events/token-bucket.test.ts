import assert from 'node:assert/strict';
import fc from 'fast-check';
import { TokenBucket } from '../../events/token-bucket.ts';

describe('token-bucket: a token bucket', () => {
  it('limits tokens to burst and rate, and predicts when the next is available', () => {
    const waits = fc.array(fc.integer({ min: 0, max: 3000 }), { maxLength: 60 });
    fc.assert(
      fc.property(waits, (steps) => {
        const bucket = new TokenBucket({ burst: 5, perSecond: 2 }, 1000);
        const given: number[] = [];
        let now = 1000;
        for (const step of steps) {
          now += step;
          const wait = bucket.take(now);
          if (wait === 0) given.push(now);
          else {
            now += wait;
            assert.equal(bucket.take(now), 0);
            given.push(now);
          }
        }
        for (const [index, first] of given.entries()) {
          for (let next = index + 5; next < given.length; next++) {
            const passed = (given[next] ?? 0) - first;
            assert.ok(next - index + 1 <= 5 + (passed * 2) / 1000 + 1e-6);
          }
        }
      }),
      { seed: 42, numRuns: 500 },
    );
  });

  it('still refills after the clock is set back', () => {
    const bucket = new TokenBucket({ burst: 1, perSecond: 1 }, 5000);
    assert.equal(bucket.take(5000), 0);
    assert.equal(bucket.take(0), 1000);
    assert.equal(bucket.take(1000), 0);
  });
});
