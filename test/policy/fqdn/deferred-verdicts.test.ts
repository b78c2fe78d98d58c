import assert from 'node:assert/strict';
import { DeferredVerdicts } from '../../../policy/fqdn/deferred-verdicts.ts';

const LIMITS = { patience: 100, backlog: 4 };

describe('packets that are held back', () => {
  let accepted: number[];
  let holds: DeferredVerdicts;

  beforeEach(() => {
    accepted = [];
    holds = new DeferredVerdicts((packet) => accepted.push(packet), LIMITS);
  });

  it('go on when what they tell is learned', () => {
    const first = holds.hold(11, 0);
    const second = holds.hold(12, 5);
    assert.deepEqual([first?.number, second?.number], [1, 2]);
    assert.deepEqual([accepted, holds.waiting, holds.deadline], [[], 2, 100]);
    holds.release(2, 2);
    assert.deepEqual([accepted, holds.waiting, holds.deadline], [[12], 1, 100]);
    holds.release(1, 1);
    assert.deepEqual([accepted, holds.waiting, holds.deadline], [[12, 11], 0, undefined]);
    holds.release(1, 3);
    assert.deepEqual(accepted, [12, 11]);
  });

  it('wait together', () => {
    const hold = holds.hold(11, 0);
    assert.ok(hold);
    holds.join(hold, 12);
    assert.deepEqual([accepted, holds.waiting], [[], 2]);
    holds.release(1, 1);
    assert.deepEqual([accepted, holds.waiting], [[11, 12], 0]);
    holds.join(hold, 13);
    assert.deepEqual([accepted, holds.waiting], [[11, 12, 13], 0]);
  });

  it('do not wait for ever', () => {
    holds.hold(11, 0);
    holds.hold(12, 50);
    holds.check(99);
    assert.deepEqual(accepted, []);
    holds.check(100);
    assert.deepEqual([accepted, holds.waiting, holds.overdue], [[11, 12], 0, 2]);
    assert.equal(holds.deadline, undefined);
  });

  it('go on when nobody wants to know any more, and what comes then waits as ever', () => {
    const first = holds.hold(11, 0);
    assert.ok(first);
    holds.join(first, 12);
    holds.drop();
    holds.join(first, 13);
    assert.deepEqual([accepted, holds.waiting, holds.overdue], [[11, 12, 13], 0, 0]);
    assert.equal(holds.hold(14, 1)?.number, 2);
    // What was under way all the same.
    holds.release(1, 1);
    assert.deepEqual([accepted, holds.waiting], [[11, 12, 13], 1]);
  });

  it('do not wait again before something is learned', () => {
    const hold = holds.hold(11, 0);
    holds.check(100);
    holds.hold(12, 101);
    assert.ok(hold);
    holds.join(hold, 13);
    assert.deepEqual([accepted, holds.waiting, holds.overdue], [[11, 12, 13], 0, 2]);
    holds.release(1, 1);
    holds.hold(14, 102);
    assert.deepEqual([accepted, holds.deadline], [[11, 12, 13], 202]);
    holds.release(2, 3);
    assert.deepEqual([accepted, holds.overdue], [[11, 12, 13, 14], 2]);
  });

  it('are not numbered for whoever does not learn', () => {
    for (const packet of [1, 2, 3, 4]) assert.ok(holds.hold(packet, 0));
    assert.equal(holds.hold(5, 0), undefined);
    assert.deepEqual([accepted, holds.overdue], [[5], 1]);
    holds.release(1, 1);
    assert.equal(holds.hold(6, 0)?.number, 5);
  });

  it('all go on at the end', () => {
    holds.hold(11, 0);
    holds.hold(12, 0);
    holds.releaseAll();
    holds.hold(13, 0);
    assert.deepEqual(accepted, [11, 12, 13]);
  });
});
