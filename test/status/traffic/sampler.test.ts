import assert from 'node:assert/strict';
import { LiveIndex } from '../../../status/traffic/live-index.ts';
import { TrafficSampler } from '../../../status/traffic/sampler.ts';
import { FakeTimers } from '../../sync/fake-timers.ts';
import { entry, FakeRoutes } from './fake-traffic.ts';

/** Lets pending promises run. */
const turns = async () => {
  for (let count = 0; count < 10; count++) await new Promise(setImmediate);
};

describe('TrafficSampler: samples while a client looks', () => {
  function sampled() {
    const timers = new FakeTimers();
    const routes = new FakeRoutes();
    const state = {
      dumps: 0,
      open: 0,
      cpu: 0,
      entries: [entry()],
      /** Ends between two reads; the latest share in `samples` is read. */
      ends: 0,
      samples: [] as number[],
    };
    const errors: unknown[] = [];
    const index = new LiveIndex(routes, timers);
    const sampler = new TrafficSampler({
      index,
      conntrack: {
        openEnds() {
          state.open += 1;
          return {
            dropped: 3,
            read(onEnd) {
              const kept = state.ends / (state.samples.at(-1) ?? 1);
              for (let end = 0; end < kept; end++) onEnd(entry({ id: 1000 + end }));
              return false;
            },
            sample: (oneOf) => state.samples.push(oneOf),
            close: () => {
              state.open -= 1;
            },
          };
        },
        async visit(visit) {
          state.dumps += 1;
          for (const each of state.entries) {
            state.cpu += 1 / 256;
            visit(each);
          }
        },
        isCounting: async () => true,
      },
      isNodeAddress: () => false,
      timers,
      now: () => timers.now(),
      cpu: () => state.cpu,
      onError: (error) => errors.push(error),
    });
    return { timers, state, sampler, errors, index };
  }

  it('opens and dumps nothing before the first look and after 15 s without one', async () => {
    const { timers, state, sampler } = sampled();
    timers.advance(60_000);
    assert.equal(state.dumps, 0);
    const { counters, sample } = await sampler.look();
    assert.equal(counters.service('default/web')?.sampled.connections, 1);
    assert.equal(counters.endpoint('default/web', '10.244.1.11:8080')?.sampled.connections, 1);
    assert.match(sample.notes.join(), /^3 ends of connections/);
    for (let second = 0; second < 5; second++) {
      timers.advance(1000);
      await turns();
    }
    assert.equal(state.dumps, 6);
    assert.equal(state.open, 1);
    timers.advance(15_000);
    await turns();
    assert.equal(sampler.isRunning, false);
    assert.equal(state.open, 0);
    const { dumps } = state;
    timers.advance(300_000);
    await turns();
    assert.equal(state.dumps, dumps);
    assert.equal(timers.pending, 0);
  });

  it('spends 0.3 % of a core on dumps, at most 60 s apart', async () => {
    const { timers, state, sampler } = sampled();
    // About 4 µs each.
    state.entries = Array.from({ length: 3750 }, (_, id) => entry({ id }));
    await sampler.look();
    const keepLooking = async (seconds: number) => {
      for (let second = 0; second < seconds; second++) {
        const { pending } = timers;
        timers.advance(1000);
        await turns();
        // A sample of many entries takes several slices of work, and sets its timer at the end.
        while (timers.pending < pending) await turns();
        await sampler.look();
      }
    };
    await keepLooking(1);
    assert.equal(state.dumps, 2);
    await keepLooking(4);
    assert.equal(state.dumps, 2);
    await keepLooking(1);
    assert.equal(state.dumps, 3);
    state.entries = Array.from({ length: 100_000 }, (_, id) => entry({ id }));
    await keepLooking(5);
    assert.equal(state.dumps, 4);
    await keepLooking(59);
    assert.equal(state.dumps, 4);
    await keepLooking(1);
    assert.equal(state.dumps, 5);
    await sampler.close();
  });

  it('reads a part of the ends above 2,500 a second, estimates the others, and says so', async () => {
    const { timers, state, sampler } = sampled();
    await sampler.look();
    const lookAfter = async (seconds: number) => {
      for (let quarter = 0; quarter < 4 * seconds; quarter++) {
        timers.advance(250);
        await turns();
      }
      return await sampler.look();
    };
    // Four reads a second, and one with each sample.
    state.ends = 150;
    const exact = await lookAfter(3);
    assert.deepEqual(state.samples, []);
    assert.doesNotMatch(exact.sample.notes.join(), /estimates/);
    state.ends = 1900;
    await lookAfter(3);
    // 9,500 a second: less than 625 are read.
    assert.equal(state.samples[0], 16);
    const before = (await lookAfter(2)).counters.service('default/web')?.sampled.opened ?? 0;
    const { counters, sample } = await lookAfter(5);
    const opened = (counters.service('default/web')?.sampled.opened ?? 0) - before;
    assert.ok(Math.abs(opened / 47_500 - 1) < 0.05, `${opened} in 5 s`);
    assert.match(sample.notes.join(), /values are estimates: .* 1 of /);
    state.ends = 10;
    await lookAfter(3);
    assert.equal(state.samples.at(-1), 1);
    await sampler.close();
  });

  it('goes on after a dump failed, and lets the next look try again if the first fails', async () => {
    const { timers, state, sampler, errors, index } = sampled();
    const failing = { entries: state.entries };
    Object.defineProperty(state, 'entries', {
      get() {
        if (failing.entries.length === 0) throw new Error('dump failed');
        return failing.entries;
      },
    });
    failing.entries = [];
    await assert.rejects(sampler.look(), /dump failed/);
    assert.equal(state.open, 0);
    failing.entries = [entry()];
    await sampler.look();
    failing.entries = [];
    timers.advance(1000);
    await turns();
    assert.equal(errors.length, 1);
    assert.equal(sampler.isRunning, true);
    await sampler.close();
    index.close();
    assert.equal(timers.pending, 0);
  });
});
