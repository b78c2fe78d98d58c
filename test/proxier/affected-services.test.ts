import assert from 'node:assert/strict';
import { AffectedServices } from '../../proxier/affected-services.ts';

describe('affected-services: order of changes', () => {
  it('takes ordinary Services first, then the cheapest up to the limit', () => {
    const affected = new AffectedServices();
    for (const [key, cost] of [
      ['big', 900],
      ['one', 0],
      ['small', 3],
      ['two', 0],
      ['large', 500],
    ] as const)
      affected.add(key, cost);
    assert.equal(affected.hasOrdinary, true);
    assert.deepEqual(affected.take({ services: 1, ranges: 1000 }), ['one']);
    assert.deepEqual(affected.take({ services: 5, ranges: 0 }), ['two']);
    assert.equal(affected.hasOrdinary, false);
    assert.deepEqual(affected.take({ services: 5, ranges: 1000 }), ['small', 'large']);
    assert.deepEqual(affected.take({ services: 5, ranges: 100 }), ['big']);
    assert.equal(affected.size, 0);
  });

  it('counts a Service by the most that it has or had', () => {
    const affected = new AffectedServices();
    affected.add('x', 0);
    affected.add('x', 7);
    affected.add('x', 0);
    assert.equal(affected.has('x'), true);
    assert.deepEqual([affected.size, affected.hasOrdinary], [1, false]);
  });

  it('takes a large Service at last, although small ones change all the time', () => {
    const affected = new AffectedServices();
    affected.add('big', 900);
    affected.add('bigger', 1000);
    const large: string[] = [];
    for (let turn = 0; turn < 16; turn++) {
      affected.add(`small-${turn % 2}`, 1000 - turn - 200);
      large.push(...affected.take({ services: 1, ranges: 900 }).filter((key) => /big/.test(key)));
    }
    assert.deepEqual(large, ['big', 'bigger']);
  });
});
