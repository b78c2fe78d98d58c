import assert from 'node:assert/strict';
import { QUEUE_LENGTH_LIMITS, QueueLength } from '../../../policy/fqdn/queue-length.ts';

describe('queue-length: the length of the queue', () => {
  it('is short, for an agent that hangs holds up so many packets', () => {
    assert.equal(new QueueLength().length(0, 0), 128);
    assert.ok(QUEUE_LENGTH_LIMITS.max >= 2000);
  });

  it('is short as long as that does, and four times what waits otherwise', () => {
    const queue = new QueueLength({ min: 128, max: 4096, shrinkDelay: 5000 });
    const lengths = [0, 1, 32, 33, 64, 65, 3, 900, 5000].map((each) => queue.length(each, 0));
    assert.deepEqual(lengths, [128, 128, 128, 256, 256, 512, 512, 4096, 4096]);
  });

  it('is short again after a while', () => {
    const queue = new QueueLength({ min: 128, max: 4096, shrinkDelay: 5000 });
    assert.equal(queue.length(200, 1000), 1024);
    assert.equal(queue.length(0, 5000), 1024);
    assert.equal(queue.length(200, 6000), 1024);
    assert.equal(queue.length(50, 11_000), 1024);
    assert.equal(queue.length(50, 11_001), 256);
    assert.equal(queue.length(0, 16_002), 128);
  });
});
