import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { SerialQueue } from '../../sync/serial-queue.ts';

describe('serial-queue: a serial queue', () => {
  it('runs one task at a time, in the order of calls', async () => {
    const queue = new SerialQueue();
    const log: string[] = [];
    const work = (name: string) => async () => {
      log.push(`${name} begins`);
      await nextTurn();
      log.push(`${name} ends`);
      return name;
    };
    const done = [queue.run(work('a')), queue.run(work('b')), queue.run(work('c'))];
    assert.deepEqual(log, []);
    assert.deepEqual(await Promise.all(done), ['a', 'b', 'c']);
    assert.deepEqual(log, ['a begins', 'a ends', 'b begins', 'b ends', 'c begins', 'c ends']);
  });

  it('rejects only the failed task and runs the next', async () => {
    const queue = new SerialQueue();
    const failing = queue.run(() => Promise.reject(new Error('no')));
    const throwing = queue.run(() => {
      throw new Error('nor this');
    });
    const next = queue.run(async () => 'next');
    await assert.rejects(failing, /no/);
    await assert.rejects(throwing, /nor this/);
    assert.equal(await next, 'next');
  });

  it('is idle when all tasks have completed or failed', async () => {
    const queue = new SerialQueue();
    await queue.idle();
    const { promise, resolve } = Promise.withResolvers<void>();
    const failing = queue.run(async () => {
      await promise;
      throw new Error('no');
    });
    const idle = queue.idle().then(() => 'idle');
    assert.equal(await Promise.race([idle, nextTurn('busy')]), 'busy');
    resolve();
    assert.equal(await idle, 'idle');
    await assert.rejects(failing);
  });
});
