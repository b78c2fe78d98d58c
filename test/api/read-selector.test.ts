import assert from 'node:assert/strict';
import { InvalidObject } from '../../api/errors.ts';
import { rootField } from '../../api/read-field.ts';
import { readLabels, readRequiredSelector, readSelector } from '../../api/read-selector.ts';

const read = (selector: unknown) => readSelector(rootField('Pod a', selector));
const one = (key: string, operator: string, values: readonly string[] = []) => ({
  key,
  operator,
  values,
});

describe('read-selector: reading a label selector', () => {
  for (const [what, selector, expected] of [
    ['selects everything when missing', undefined, []],
    ['selects everything when null', null, []],
    ['selects everything when empty', {}, []],
    ['selects everything with empty fields', { matchLabels: {}, matchExpressions: [] }, []],
    [
      'converts labels to expressions with one value',
      { matchLabels: { app: 'web', 'example.com/tier': '' } },
      [one('app', 'In', ['web']), one('example.com/tier', 'In', [''])],
    ],
    [
      'reads all operators and sorts values',
      {
        matchExpressions: [
          { key: 'd', operator: 'In', values: ['y', 'x', 'y'] },
          { key: 'c', operator: 'NotIn', values: ['b', 'a'] },
          { key: 'b', operator: 'Exists' },
          { key: 'a', operator: 'DoesNotExist', values: [] },
        ],
      },
      [
        one('a', 'DoesNotExist'),
        one('b', 'Exists'),
        one('c', 'NotIn', ['a', 'b']),
        one('d', 'In', ['x', 'y']),
      ],
    ],
    [
      'removes repeated requirements',
      {
        matchLabels: { app: 'web' },
        matchExpressions: [
          { key: 'app', operator: 'In', values: ['web'] },
          { key: 'app', operator: 'In', values: ['db', 'web'] },
        ],
      },
      [one('app', 'In', ['db', 'web']), one('app', 'In', ['web'])],
    ],
    [
      'reads label names that are properties of JavaScript objects',
      { matchLabels: { constructor: 'a', toString: 'b' } },
      [one('constructor', 'In', ['a']), one('toString', 'In', ['b'])],
    ],
  ] as const) {
    it(what, () => assert.deepEqual(read(selector), expected));
  }

  for (const [selector, field, reason] of [
    ['app', '', /object/],
    [[], '', /object/],
    [{ app: 'web' }, 'app', /unknown field/],
    [{ matchlabels: {} }, 'matchlabels', /unknown field/],
    [{ matchLabels: ['app'] }, 'matchLabels', /object/],
    [{ matchLabels: { app: 1 } }, 'matchLabels.app', /string/],
    [{ matchLabels: { app: null } }, 'matchLabels.app', /required/],
    [{ matchLabels: { app: 'a b' } }, 'matchLabels.app', /label value, not "a b"/],
    [{ matchLabels: { app: 'x'.repeat(64) } }, 'matchLabels.app', /label value/],
    [{ matchLabels: { app: '-a' } }, 'matchLabels.app', /label value/],
    [{ matchLabels: { '': 'a' } }, 'matchLabels[""]', /label key/],
    [{ matchLabels: { 'a b': 'a' } }, 'matchLabels["a b"]', /label key/],
    [{ matchLabels: { 'a/b/c': 'a' } }, 'matchLabels["a/b/c"]', /label key/],
    [{ matchLabels: { 'A/b': 'a' } }, 'matchLabels["A/b"]', /label key/],
    [{ matchLabels: { '/b': 'a' } }, 'matchLabels["/b"]', /label key/],
    [{ matchLabels: { [`${'x'.repeat(254)}/b`]: 'a' } }, /^matchLabels\["x+/, /label key/],
    [{ matchLabels: { ['x'.repeat(64)]: 'a' } }, /^matchLabels\.x+$/, /label key/],
    [{ matchExpressions: {} }, 'matchExpressions', /list/],
    [{ matchExpressions: [{}] }, 'matchExpressions[0].operator', /required/],
    [{ matchExpressions: [null] }, 'matchExpressions[0].operator', /required/],
    [{ matchExpressions: [{ operator: 'Exists' }] }, 'matchExpressions[0].key', /required/],
    [
      { matchExpressions: [{ key: 'a', operator: 'exists' }] },
      'matchExpressions[0].operator',
      /one of In, NotIn, Exists, DoesNotExist, not "exists"/,
    ],
    [
      { matchExpressions: [{ key: 'a', operator: 'In' }] },
      'matchExpressions[0].values',
      /must have at least one value for operator In/,
    ],
    [
      { matchExpressions: [{ key: 'a', operator: 'NotIn', values: [] }] },
      'matchExpressions[0].values',
      /must have at least one value for operator NotIn/,
    ],
    [
      { matchExpressions: [{ key: 'a', operator: 'Exists', values: ['b'] }] },
      'matchExpressions[0].values',
      /must be empty for operator Exists/,
    ],
    [
      { matchExpressions: [{ key: 'a', operator: 'In', values: ['b', 7] }] },
      'matchExpressions[0].values[1]',
      /string/,
    ],
    [
      { matchExpressions: [{ key: 'a', operator: 'In', values: ['b'], value: 'c' }] },
      'matchExpressions[0].value',
      /unknown field/,
    ],
  ] as const) {
    it(`rejects ${JSON.stringify(selector).slice(0, 90)}`, () => {
      assert.throws(
        () => read(selector),
        (error) => {
          assert.ok(error instanceof InvalidObject);
          if (typeof field === 'string') assert.equal(error.field, field);
          else assert.match(error.field, field);
          assert.match(error.reason, reason);
          return true;
        },
      );
    });
  }

  it('rejects a missing selector where it is required', () => {
    assert.deepEqual(readRequiredSelector(rootField('Pod a', {})), []);
    assert.throws(() => readRequiredSelector(rootField('Pod a', undefined)), /is required/);
  });
});

describe('read-selector: reading labels', () => {
  it('copies labels without checking their syntax', () => {
    const raw = { labels: { app: 'web', 'kubernetes.io/metadata.name': 'default' } };
    const labels = readLabels(rootField('Pod a', raw));
    raw.labels.app = 'other';
    assert.deepEqual(labels, { app: 'web', 'kubernetes.io/metadata.name': 'default' });
    assert.deepEqual(readLabels(rootField('Pod a', {})), {});
  });

  for (const labels of [[], 'a', { app: 1 }, { app: null }, { app: {} }]) {
    it(`rejects ${JSON.stringify(labels)}`, () => {
      assert.throws(() => readLabels(rootField('Pod a', { labels })), InvalidObject);
    });
  }
});
