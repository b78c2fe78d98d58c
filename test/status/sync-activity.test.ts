import assert from 'node:assert/strict';
import type { ProxierObserver } from '../../proxier/proxier.ts';
import { SyncActivity } from '../../status/sync-activity.ts';

const nothing = () => {};
const OBSERVER: ProxierObserver = {
  refusals: nothing,
  checkFailed: nothing,
  checked: nothing,
  nodeAddresses: nothing,
  queued: nothing,
  unchanged: nothing,
  synced: nothing,
  syncFailed: nothing,
  driftDetected: nothing,
};

describe('sync activity: whether syncs are busy', () => {
  it('says so before each change, once for all families', () => {
    const syncs = new SyncActivity(() => 0);
    const seen: boolean[] = [];
    syncs.beforeBusyChange(() => seen.push(syncs.isBusy));
    const observer = syncs.observing(OBSERVER);
    observer.queued('IPv4');
    observer.queued('IPv4');
    observer.queued('IPv6');
    observer.unchanged('IPv4', []);
    assert.deepEqual([seen, syncs.isBusy], [[false], true]);
    observer.unchanged('IPv6', []);
    observer.unchanged('IPv6', []);
    assert.deepEqual([seen, syncs.isBusy], [[false, true], false]);
  });
});
