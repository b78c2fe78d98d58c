import assert from 'node:assert/strict';
import { LiveIndex } from '../../../status/traffic/live-index.ts';
import { route } from '../../fixtures.ts';
import { FakeTimers } from '../../sync/fake-timers.ts';
import { FakeRoutes, VIP } from './fake-traffic.ts';

describe('LiveIndex: the index while a client looks', () => {
  it('is built on first use, follows changes, and is dropped after a minute without use', async () => {
    const timers = new FakeTimers();
    const routes = new FakeRoutes();
    const live = new LiveIndex(routes, timers);
    assert.equal(routes.listeners.size, 0);
    const [index, same] = await Promise.all([live.acquire(), live.acquire()]);
    assert.equal(index, same);
    const destination = { protocol: 'TCP', address: VIP, port: 80 } as const;
    assert.equal(index.findByVip(destination), routes.list[0]);
    for (const listener of routes.listeners) listener(routes.list[0], undefined);
    assert.equal(index.findByVip(destination), undefined);
    live.release();
    timers.advance(600_000);
    assert.equal(live.isBuilt, true);
    live.release();
    timers.advance(50_000);
    assert.equal(live.isBuilt, true);
    timers.advance(20_000);
    assert.equal(live.isBuilt, false);
    assert.equal(routes.listeners.size, 0);
    assert.equal(timers.pending, 0);
  });

  it('prefers a change that arrives during the build', async () => {
    const routes = new FakeRoutes();
    // More steps than one time slice reads the clock for.
    const many = Array.from({ length: 50_000 }, (_, index) =>
      route({ id: `r${index}`, clusterIP: `10.97.${index >> 8}.${index & 255}` }),
    );
    routes.list = many;
    const building = new LiveIndex(routes, new FakeTimers()).acquire();
    const last = many.at(-1);
    for (const listener of routes.listeners) listener(last, undefined);
    const index = await building;
    const address = last?.clusterIP ?? '';
    assert.equal(index.findByVip({ protocol: 'TCP', address, port: 80 }), undefined);
    assert.equal([...index.vips].length, many.length - 1);
  });
});
