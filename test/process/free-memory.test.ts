import assert from 'node:assert/strict';
import {
  CHECK_PERIOD,
  COMPACTION_TIME,
  IDLE_CPU_SHARE,
  MIN_GROWTH,
  releaseFreeMemory,
} from '../../process/free-memory.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

describe('free-memory: releaseFreeMemory', () => {
  const timers = new FakeTimers();
  let size = 0;
  let used = 0;
  let cpu = 0;
  let collections = 0;
  let finished = 0;
  const begin = () =>
    releaseFreeMemory({
      rss: () => size,
      cpu: () => cpu,
      release: () => {
        collections += 1;
        size = used;
      },
      finish: () => {
        finished += 1;
      },
      timers,
    });

  beforeEach(() => {
    used = 100 << 20;
    size = used + 3 * MIN_GROWTH;
    cpu = 0;
    collections = 0;
    finished = 0;
  });

  /** @param share CPU share of the process during the period. */
  const wait = (share: number) => {
    cpu += share * CHECK_PERIOD;
    timers.advance(CHECK_PERIOD);
  };

  it('releases memory at the start, and again after a burst of queries', () => {
    const stop = begin();
    assert.equal(collections, 1);
    size += 2 * MIN_GROWTH;
    wait(0.5);
    assert.equal(collections, 1, 'no collection during the burst');
    wait(IDLE_CPU_SHARE / 2);
    assert.equal(collections, 2);
    wait(0);
    assert.equal(collections, 2, 'no growth since the collection');
    stop();
    assert.equal(timers.pending, 0);
  });

  it('finishes each collection when V8 has had time to compact the heap', () => {
    const stop = begin();
    timers.advance(COMPACTION_TIME - 1);
    assert.equal(finished, 0);
    timers.advance(1);
    assert.equal(finished, 1);
    timers.advance(CHECK_PERIOD);
    assert.equal(finished, 1);
    stop();
  });

  it('leaves V8 with its normal settings', () => {
    begin()();
    assert.equal(finished, 1);
  });

  it('does nothing while growth is small', () => {
    const stop = begin();
    size += MIN_GROWTH - 1;
    wait(1);
    wait(0);
    assert.equal(collections, 1);
    stop();
  });

  it('releases memory once per burst under constant light load', () => {
    const stop = begin();
    for (const share of [0, 1, 0, 1]) {
      wait(share);
      for (let period = 0; period < 5; period++) {
        size += MIN_GROWTH;
        wait(IDLE_CPU_SHARE / 2);
      }
    }
    assert.equal(collections, 3);
    stop();
  });

  it('measures growth from the lowest size so far', () => {
    const stop = begin();
    size -= MIN_GROWTH;
    wait(1);
    size += MIN_GROWTH;
    wait(0);
    assert.equal(collections, 2);
    stop();
  });

  it('measures this process by default', () => {
    releaseFreeMemory()();
  });
});
