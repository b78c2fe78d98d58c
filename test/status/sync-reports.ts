/** Reports of syncs, and an observer of them. */
import { IP_FAMILIES } from '../../api/objects.ts';
import { SyncActivity } from '../../status/sync-activity.ts';

export const syncReport = (family: 'IPv4' | 'IPv6', full = true) => ({
  family,
  full,
  changed: true,
  seconds: 0.01,
  applySeconds: 0.01,
  written: 3,
  rulesWritten: undefined,
  conntrackSeconds: undefined,
  deletedFlows: 0,
  conntrackError: undefined,
  healthChanges: [],
  localhostNodePorts: [],
  triggerTimes: [],
  services: new Set<string>(),
});

/** An observer that records the names of the calls. */
export function observerOf(calls: string[] = []) {
  const call = (name: string) => () => {
    calls.push(name);
  };
  return {
    refusals: call('refusals'),
    nodeAddresses: call('nodeAddresses'),
    queued: call('queued'),
    unchanged: call('unchanged'),
    synced: call('synced'),
    syncFailed: call('syncFailed'),
    driftDetected: call('driftDetected'),
    checkFailed: call('checkFailed'),
    checked: call('checked'),
  };
}

/** Both families have synced. */
export function syncedActivity(): SyncActivity {
  const syncs = new SyncActivity();
  const observer = syncs.observing(observerOf());
  for (const family of IP_FAMILIES) observer.synced(syncReport(family));
  return syncs;
}
