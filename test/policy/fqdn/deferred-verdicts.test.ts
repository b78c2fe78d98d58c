import assert from 'node:assert/strict';
import { DeferredVerdicts } from '../../../policy/fqdn/deferred-verdicts.ts';

const LIMITS = { timeout: 100, backlog: 4 };

describe('deferred-verdicts: packets that wait for their observations', () => {
  let accepted: number[];
  let deferred: DeferredVerdicts;

  beforeEach(() => {
    accepted = [];
    deferred = new DeferredVerdicts((packet) => accepted.push(packet), LIMITS);
  });

  it('are accepted when their observations are stored', () => {
    const first = deferred.defer(11, 0);
    const second = deferred.defer(12, 5);
    assert.deepEqual([first?.number, second?.number], [1, 2]);
    assert.deepEqual([accepted, deferred.waiting, deferred.deadline], [[], 2, 100]);
    deferred.release(2, 2);
    assert.deepEqual([accepted, deferred.waiting, deferred.deadline], [[12], 1, 100]);
    deferred.release(1, 1);
    assert.deepEqual([accepted, deferred.waiting, deferred.deadline], [[12, 11], 0, undefined]);
    deferred.release(1, 3);
    assert.deepEqual(accepted, [12, 11]);
  });

  it('wait together when they join a deferral', () => {
    const deferral = deferred.defer(11, 0);
    assert.ok(deferral);
    deferred.join(deferral, 12);
    assert.deepEqual([accepted, deferred.waiting], [[], 2]);
    deferred.release(1, 1);
    assert.deepEqual([accepted, deferred.waiting], [[11, 12], 0]);
    deferred.join(deferral, 13);
    assert.deepEqual([accepted, deferred.waiting], [[11, 12, 13], 0]);
  });

  it('are accepted after the timeout', () => {
    deferred.defer(11, 0);
    deferred.defer(12, 50);
    deferred.check(99);
    assert.deepEqual(accepted, []);
    deferred.check(100);
    assert.deepEqual([accepted, deferred.waiting, deferred.overdue], [[11, 12], 0, 2]);
    assert.equal(deferred.deadline, undefined);
  });

  it('are accepted by acceptAll(), and later packets are deferred', () => {
    const first = deferred.defer(11, 0);
    assert.ok(first);
    deferred.join(first, 12);
    deferred.acceptAll();
    deferred.join(first, 13);
    assert.deepEqual([accepted, deferred.waiting, deferred.overdue], [[11, 12, 13], 0, 0]);
    assert.equal(deferred.defer(14, 1)?.number, 2);
    // A release that was already on its way.
    deferred.release(1, 1);
    assert.deepEqual([accepted, deferred.waiting], [[11, 12, 13], 1]);
  });

  it('are not deferred after a timeout until an observation is stored', () => {
    const deferral = deferred.defer(11, 0);
    deferred.check(100);
    deferred.defer(12, 101);
    assert.ok(deferral);
    deferred.join(deferral, 13);
    assert.deepEqual([accepted, deferred.waiting, deferred.overdue], [[11, 12, 13], 0, 2]);
    deferred.release(1, 1);
    deferred.defer(14, 102);
    assert.deepEqual([accepted, deferred.deadline], [[11, 12, 13], 202]);
    deferred.release(2, 3);
    assert.deepEqual([accepted, deferred.overdue], [[11, 12, 13, 14], 2]);
  });

  it('are accepted at once when the backlog is full', () => {
    for (const packet of [1, 2, 3, 4]) assert.ok(deferred.defer(packet, 0));
    assert.equal(deferred.defer(5, 0), undefined);
    assert.deepEqual([accepted, deferred.overdue], [[5], 1]);
    deferred.release(1, 1);
    assert.equal(deferred.defer(6, 0)?.number, 5);
  });

  it('are all accepted by releaseAll()', () => {
    deferred.defer(11, 0);
    deferred.defer(12, 0);
    deferred.releaseAll();
    deferred.defer(13, 0);
    assert.deepEqual(accepted, [11, 12, 13]);
  });
});
