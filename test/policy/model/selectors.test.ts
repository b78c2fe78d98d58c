import assert from 'node:assert/strict';
import type { LabelSelector } from '../../../api/policy-objects.ts';
import { matches, selectsPod } from '../../../policy/model/selectors.ts';
import { labelled, requirement } from '../objects.ts';

describe('selectors: label selectors', () => {
  const labels = { app: 'web', tier: 'front' };

  for (const [title, selector, expected] of [
    ['an empty selector matches', [], true],
    ['In matches a listed value', [requirement('app', 'In', 'db', 'web')], true],
    ['In does not match other values', [requirement('app', 'In', 'db')], false],
    ['In does not match without the label', [requirement('zone', 'In', 'web')], false],
    ['NotIn does not match a listed value', [requirement('app', 'NotIn', 'db', 'web')], false],
    ['NotIn matches other values', [requirement('app', 'NotIn', 'db')], true],
    ['NotIn matches without the label', [requirement('zone', 'NotIn', 'web')], true],
    ['Exists matches the label', [requirement('app', 'Exists')], true],
    ['Exists does not match without the label', [requirement('zone', 'Exists')], false],
    ['DoesNotExist matches without the label', [requirement('zone', 'DoesNotExist')], true],
    ['DoesNotExist does not match the label', [requirement('app', 'DoesNotExist')], false],
    [
      'does not match with one unmet requirement of several',
      [...labelled({ app: 'web' }), ...labelled({ tier: 'back' })],
      false,
    ],
    ['matches with several met requirements', labelled(labels), true],
    [
      'Exists does not match an inherited property of JavaScript objects',
      [requirement('constructor', 'Exists')],
      false,
    ],
  ] as const satisfies readonly (readonly [string, LabelSelector, boolean])[]) {
    it(title, () => assert.equal(matches(selector, labels), expected));
  }

  it('treats a label with an empty value as present', () => {
    assert.equal(matches([requirement('app', 'Exists')], { app: '' }), true);
    assert.equal(matches([requirement('app', 'In', '')], { app: '' }), true);
  });

  it('selects pods by namespace and labels', () => {
    const blue = { name: 'blue', labels: { team: 'a' } };
    const pods = labelled({ app: 'web' });
    assert.equal(selectsPod({ namespaces: 'blue', pods }, blue, labels), true);
    assert.equal(selectsPod({ namespaces: 'red', pods }, blue, labels), false);
    assert.equal(selectsPod({ namespaces: labelled({ team: 'a' }), pods }, blue, labels), true);
    assert.equal(selectsPod({ namespaces: labelled({ team: 'b' }), pods }, blue, labels), false);
    assert.equal(selectsPod({ namespaces: 'blue', pods }, blue, { app: 'db' }), false);
  });
});
