import assert from 'node:assert/strict';
import { SyncOverlap } from '../../proxier/sync-overlap.ts';

describe('sync overlap: syncs beside a comparison', () => {
  it('counts a change between syncs as a sync', () => {
    const syncs = new SyncOverlap();
    const comparison = syncs.watch();
    syncs.changed();
    assert.deepEqual(comparison(), { ended: 0, begun: 1 });
    assert.deepEqual(syncs.watch()(), { ended: 1, begun: 1 });
  });

  it('takes a change during a sync for no end of that sync', async () => {
    const syncs = new SyncOverlap();
    const { promise, resolve } = Promise.withResolvers<void>();
    const sync = syncs.run(() => promise);
    const first = syncs.watch()();
    syncs.changed();
    const last = syncs.watch()();
    assert.deepEqual([first, last], Array(2).fill({ ended: 0, begun: 1 }));
    resolve();
    await sync;
    assert.deepEqual(syncs.watch()(), { ended: 1, begun: 1 });
  });
});
