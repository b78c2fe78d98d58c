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
    ['missing, it selects everything', undefined, []],
    ['null, it selects everything', null, []],
    ['empty, it selects everything', {}, []],
    ['with empty members, it selects everything', { matchLabels: {}, matchExpressions: [] }, []],
    [
      'labels are expressions with one value',
      { matchLabels: { app: 'web', 'example.com/tier': '' } },
      [one('app', 'In', ['web']), one('example.com/tier', 'In', [''])],
    ],
    [
      'all operators are known, and values sorted',
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
      'what is said twice is said once',
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
      'names of labels that objects have by themselves are labels',
      { matchLabels: { constructor: 'a', toString: 'b' } },
      [one('constructor', 'In', ['a']), one('toString', 'In', ['b'])],
    ],
  ] as const) {
    it(what, () => assert.deepEqual(read(selector), expected));
  }

  for (const [selector, field, reason] of [
    ['app', '', /object/],
    [[], '', /object/],
    [{ app: 'web' }, 'app', /not known/],
    [{ matchlabels: {} }, 'matchlabels', /not known/],
    [{ matchLabels: ['app'] }, 'matchLabels', /object/],
    [{ matchLabels: { app: 1 } }, 'matchLabels.app', /string/],
    [{ matchLabels: { app: null } }, 'matchLabels.app', /required/],
    [{ matchLabels: { app: 'a b' } }, 'matchLabels.app', /value of a label, not "a b"/],
    [{ matchLabels: { app: 'x'.repeat(64) } }, 'matchLabels.app', /value of a label/],
    [{ matchLabels: { app: '-a' } }, 'matchLabels.app', /value of a label/],
    [{ matchLabels: { '': 'a' } }, 'matchLabels[""]', /for a label/],
    [{ matchLabels: { 'a b': 'a' } }, 'matchLabels["a b"]', /for a label/],
    [{ matchLabels: { 'a/b/c': 'a' } }, 'matchLabels["a/b/c"]', /for a label/],
    [{ matchLabels: { 'A/b': 'a' } }, 'matchLabels["A/b"]', /for a label/],
    [{ matchLabels: { '/b': 'a' } }, 'matchLabels["/b"]', /for a label/],
    [{ matchLabels: { [`${'x'.repeat(254)}/b`]: 'a' } }, /^matchLabels\["x+/, /for a label/],
    [{ matchLabels: { ['x'.repeat(64)]: 'a' } }, /^matchLabels\.x+$/, /for a label/],
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
      /must have a value for In/,
    ],
    [
      { matchExpressions: [{ key: 'a', operator: 'NotIn', values: [] }] },
      'matchExpressions[0].values',
      /must have a value for NotIn/,
    ],
    [
      { matchExpressions: [{ key: 'a', operator: 'Exists', values: ['b'] }] },
      'matchExpressions[0].values',
      /must be empty for Exists/,
    ],
    [
      { matchExpressions: [{ key: 'a', operator: 'In', values: ['b', 7] }] },
      'matchExpressions[0].values[1]',
      /string/,
    ],
    [
      { matchExpressions: [{ key: 'a', operator: 'In', values: ['b'], value: 'c' }] },
      'matchExpressions[0].value',
      /not known/,
    ],
  ] as const) {
    it(`refuses ${JSON.stringify(selector).slice(0, 90)}`, () => {
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

  it('may have to be written', () => {
    assert.deepEqual(readRequiredSelector(rootField('Pod a', {})), []);
    assert.throws(() => readRequiredSelector(rootField('Pod a', undefined)), /is required/);
  });
});

describe('read-selector: reading labels', () => {
  it('takes what they are, and shares nothing with where they come from', () => {
    const raw = { labels: { app: 'web', 'kubernetes.io/metadata.name': 'default' } };
    const labels = readLabels(rootField('Pod a', raw));
    raw.labels.app = 'other';
    assert.deepEqual(labels, { app: 'web', 'kubernetes.io/metadata.name': 'default' });
    assert.deepEqual(readLabels(rootField('Pod a', {})), {});
  });

  for (const labels of [[], 'a', { app: 1 }, { app: null }, { app: {} }]) {
    it(`refuses ${JSON.stringify(labels)}`, () => {
      assert.throws(() => readLabels(rootField('Pod a', { labels })), InvalidObject);
    });
  }
});
