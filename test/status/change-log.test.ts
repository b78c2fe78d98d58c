import assert from 'node:assert/strict';
import type { SyncReport } from '../../proxier/family-proxier.ts';
import { ChangeLog } from '../../status/change-log.ts';

const ATTEMPT = { full: true, seconds: 1 };

function report(fields: Partial<SyncReport> = {}): SyncReport {
  return {
    family: 'IPv4',
    full: false,
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
    services: new Set(),
    ...fields,
  };
}

/** A log after the first full sync. */
function started(): ChangeLog {
  const log = new ChangeLog();
  log.synced(report({ full: true }), undefined, 0);
  return log;
}

describe('change-log: changes of the kernel', () => {
  it('names the Services of a sync, and how long the change waited', () => {
    const log = started();
    const services = new Set(Array.from({ length: 30 }, (_, index) => `a/s${index}`));
    log.synced(report({ services, deletedFlows: 2 }), 1000, 1500);
    const change = log.changes.at(-1);
    assert.equal(change?.kind, 'sync');
    assert.equal(change.queuedSeconds, 0.5);
    assert.equal(change.services.length, 20);
    assert.equal(change.serviceCount, 30);
    assert.equal(change.deletedFlows, 2);
  });

  it('leaves out syncs that wrote nothing', () => {
    const log = started();
    log.synced(report({ written: 0 }), 0, 1);
    assert.equal(log.changes.length, 1);
    log.synced(report({ written: 0, deletedFlows: 1 }), 0, 1);
    assert.equal(log.changes.length, 2);
  });

  it('tells a repair from the first sync', () => {
    const log = new ChangeLog();
    log.synced(report({ full: true, changed: false }), undefined, 0);
    log.synced(report({ full: true, changed: false }), undefined, 1);
    assert.deepEqual(
      log.changes.map(({ kind }) => kind),
      ['sync', 'repair'],
    );
  });

  it('names the external change that a repair undid, unless the sync found it first', () => {
    const log = started();
    const repair = report({ full: true, changed: false });
    log.synced(repair, undefined, 1);
    log.drifted('IPv4', 'table deleted', 10);
    log.drifted('IPv6', 'of the other family', 10);
    log.synced(repair, undefined, 11);
    log.synced(repair, undefined, 12);
    const repairs = log.changes.filter(({ kind }) => kind === 'repair');
    assert.deepEqual(
      repairs.map(({ message }) => message),
      ['', 'table deleted', ''],
    );
    // Changes of Kubernetes objects were written too, so the sync is no mere repair.
    log.drifted('IPv4', 'chain deleted', 20);
    log.synced(report({ full: true, changed: true }), undefined, 21);
    assert.deepEqual(
      log.changes.slice(-2).map(({ kind, message, undoneAt }) => [kind, message, undoneAt]),
      [
        ['external', 'chain deleted', 21],
        ['sync', '', undefined],
      ],
    );
  });

  it('says when an external change was undone: by the next full sync of its family', () => {
    const log = started();
    log.drifted('IPv4', 'table deleted', 10);
    log.synced(report(), 0, 11);
    log.synced(report({ full: true, family: 'IPv6' }), 0, 12);
    const undoneAt = () => log.changes.find(({ kind }) => kind === 'external')?.undoneAt;
    assert.equal(undoneAt(), undefined);
    log.synced(report({ full: true }), 0, 13);
    assert.equal(undoneAt(), 13);
    log.drifted('IPv4', 'table deleted', 20);
    assert.equal(log.changes.at(-1)?.count, 1);
    assert.equal(log.changes.at(-1)?.undoneAt, undefined);
  });

  it('counts equal consecutive failures of a family in one entry', () => {
    const log = started();
    for (let at = 1; at <= 3; at++) {
      log.failed('IPv4', 'no memory', ATTEMPT, at);
      log.failed('IPv6', 'no memory', ATTEMPT, at);
    }
    log.failed('IPv4', 'another', ATTEMPT, 9);
    assert.deepEqual(
      log.changes.slice(1).map(({ family, message, count, at }) => [family, message, count, at]),
      [
        ['IPv4', 'no memory', 3, 3],
        ['IPv6', 'no memory', 3, 3],
        ['IPv4', 'another', 1, 9],
      ],
    );
    const ids = log.changes.map(({ id }) => id);
    assert.deepEqual(
      ids,
      [...new Set(ids)].sort((a, b) => a - b),
    );
  });

  it('keeps a bounded number of changes, the latest', () => {
    const log = new ChangeLog();
    for (let at = 0; at < 2000; at++) log.synced(report(), undefined, at);
    assert.equal(log.changes.length, 500);
    assert.equal(log.changes.at(-1)?.at, 1999);
  });
});
