import assert from 'node:assert/strict';
import { QUEUE_LENGTH_LIMITS, QueueLength } from '../../../policy/fqdn/queue-length.ts';

describe('queue-length: maximum length of the NFQUEUE', () => {
  it('is short at the start, because a hanging agent delays that many packets', () => {
    assert.equal(new QueueLength().length(0, 0), 128);
    assert.ok(QUEUE_LENGTH_LIMITS.max >= 2000);
  });

  it('grows to four times the waiting packets', () => {
    const queue = new QueueLength({ min: 128, max: 4096, shrinkDelay: 5000 });
    const lengths = [0, 1, 32, 33, 64, 65, 3, 900, 5000].map((each) => queue.length(each, 0));
    assert.deepEqual(lengths, [128, 128, 128, 256, 256, 512, 512, 4096, 4096]);
  });

  it('shrinks after a delay', () => {
    const queue = new QueueLength({ min: 128, max: 4096, shrinkDelay: 5000 });
    assert.equal(queue.length(200, 1000), 1024);
    assert.equal(queue.length(0, 5000), 1024);
    assert.equal(queue.length(200, 6000), 1024);
    assert.equal(queue.length(50, 11_000), 1024);
    assert.equal(queue.length(50, 11_001), 256);
    assert.equal(queue.length(0, 16_002), 128);
  });
});
