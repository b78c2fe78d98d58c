import assert from 'node:assert/strict';
import {
  CHECK_PERIOD,
  IDLE_CPU_SHARE,
  MIN_GROWTH,
  releaseFreeMemory,
} from '../../process/free-memory.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

describe('spare memory of the DNS server', () => {
  const timers = new FakeTimers();
  let size = 0;
  let used = 0;
  let cpu = 0;
  let collections = 0;
  const begin = () =>
    releaseFreeMemory({
      rss: () => size,
      cpu: () => cpu,
      release: () => {
        collections += 1;
        size = used;
      },
      timers,
    });

  beforeEach(() => {
    used = 100 << 20;
    size = used + 3 * MIN_GROWTH;
    cpu = 0;
    collections = 0;
  });

  /** @param share of a CPU that the process took meanwhile. */
  const wait = (share: number) => {
    cpu += share * CHECK_PERIOD;
    timers.advance(CHECK_PERIOD);
  };

  it('is given back at the start, and again after a burst of queries, once that is over', () => {
    const stop = begin();
    assert.equal(collections, 1);
    size += 2 * MIN_GROWTH;
    wait(0.5);
    assert.equal(collections, 1, 'no query waits for the collector');
    wait(IDLE_CPU_SHARE / 2);
    assert.equal(collections, 2);
    wait(0);
    assert.equal(collections, 2, 'nothing has come since');
    stop();
    assert.equal(timers.pending, 0);
  });

  it('is let be while it is little', () => {
    const stop = begin();
    size += MIN_GROWTH - 1;
    wait(1);
    wait(0);
    assert.equal(collections, 1);
    stop();
  });

  it('is let be under a light load that never rests, but for once after each burst', () => {
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

  it('is what came since there was least, whatever has made it less', () => {
    const stop = begin();
    size -= MIN_GROWTH;
    wait(1);
    size += MIN_GROWTH;
    wait(0);
    assert.equal(collections, 2);
    stop();
  });

  it('is of the process itself by default', () => {
    releaseFreeMemory()();
  });
});
