import assert from 'node:assert/strict';
import { AffectedServices } from '../../proxier/affected-services.ts';

const nowhere = () => [];

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
      affected.add(key, cost, nowhere);
    assert.equal(affected.ordinary, 2);
    assert.deepEqual(affected.take({ services: 1, cost: 0 }), ['one']);
    assert.deepEqual(affected.take({ services: 5, cost: 0 }), ['two']);
    assert.equal(affected.ordinary, 0);
    assert.deepEqual(affected.take({ services: 5, cost: 1000 }), ['small', 'large']);
    assert.deepEqual(affected.take({ services: 5, cost: 100 }), ['big']);
    assert.equal(affected.size, 0);
  });

  it('counts a Service by the most that it has or had', () => {
    const affected = new AffectedServices();
    affected.add('x', 0, nowhere);
    affected.add('x', 7, nowhere);
    affected.add('x', 0, nowhere);
    assert.equal(affected.has('x'), true);
    assert.deepEqual([affected.size, affected.ordinary], [1, 0]);
  });

  it('takes a large Service at last, although small ones change all the time', () => {
    const affected = new AffectedServices();
    affected.add('big', 900, nowhere);
    affected.add('bigger', 1000, nowhere);
    const large: string[] = [];
    for (let turn = 0; turn < 16; turn++) {
      affected.add(`small-${turn % 2}`, 1000 - turn - 200, nowhere);
      large.push(...affected.take({ services: 1, cost: 900 }).filter((key) => /big/.test(key)));
    }
    assert.deepEqual(large, ['big', 'bigger']);
  });

  it('takes waiting Services by a place where they have Routes, once', () => {
    const affected = new AffectedServices();
    affected.add('big', 900, () => ['one', 'two', 'one']);
    affected.add('big', 901, () => assert.fail('its Routes are known'));
    affected.add('other', 5, () => ['two']);
    affected.add('ordinary', 0, () => ['three']);
    assert.deepEqual(affected.takeAt('one'), ['big']);
    assert.deepEqual(affected.takeAt('three'), ['ordinary']);
    affected.add('large', 7, () => ['three']);
    affected.hurry('large');
    assert.deepEqual(affected.take({ services: 1, cost: 0 }), ['large']);
    assert.deepEqual(affected.takeAt('three'), []);
    assert.deepEqual(affected.takeAt('two'), ['other']);
    assert.deepEqual(affected.takeAt('two'), []);
    assert.equal(affected.size, 0);
  });
});
