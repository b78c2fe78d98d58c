import assert from 'node:assert/strict';
import type { LabelSelector } from '../../../api/policy-objects.ts';
import { matches, selectsPod } from '../../../policy/model/selectors.ts';
import { labelled, requirement } from '../objects.ts';

describe('selectors', () => {
  const labels = { app: 'web', tier: 'front' };

  for (const [title, selector, expected] of [
    ['none selects everything', [], true],
    ['In, with the value', [requirement('app', 'In', 'db', 'web')], true],
    ['In, with others', [requirement('app', 'In', 'db')], false],
    ['In, without the label', [requirement('zone', 'In', 'web')], false],
    ['NotIn, with the value', [requirement('app', 'NotIn', 'db', 'web')], false],
    ['NotIn, with others', [requirement('app', 'NotIn', 'db')], true],
    ['NotIn, without the label', [requirement('zone', 'NotIn', 'web')], true],
    ['Exists', [requirement('app', 'Exists')], true],
    ['Exists, without the label', [requirement('zone', 'Exists')], false],
    ['DoesNotExist', [requirement('zone', 'DoesNotExist')], true],
    ['DoesNotExist, with the label', [requirement('app', 'DoesNotExist')], false],
    ['all have to hold', [...labelled({ app: 'web' }), ...labelled({ tier: 'back' })], false],
    ['all do hold', labelled(labels), true],
    ['a label that every object of JavaScript has', [requirement('constructor', 'Exists')], false],
  ] as const satisfies readonly (readonly [string, LabelSelector, boolean])[]) {
    it(title, () => assert.equal(matches(selector, labels), expected));
  }

  it('a label with an empty value is there', () => {
    assert.equal(matches([requirement('app', 'Exists')], { app: '' }), true);
    assert.equal(matches([requirement('app', 'In', '')], { app: '' }), true);
  });

  it('pods are selected by namespace and labels together', () => {
    const blue = { name: 'blue', labels: { team: 'a' } };
    const pods = labelled({ app: 'web' });
    assert.equal(selectsPod({ namespaces: 'blue', pods }, blue, labels), true);
    assert.equal(selectsPod({ namespaces: 'red', pods }, blue, labels), false);
    assert.equal(selectsPod({ namespaces: labelled({ team: 'a' }), pods }, blue, labels), true);
    assert.equal(selectsPod({ namespaces: labelled({ team: 'b' }), pods }, blue, labels), false);
    assert.equal(selectsPod({ namespaces: 'blue', pods }, blue, { app: 'db' }), false);
  });
});
