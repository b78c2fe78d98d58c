import assert from 'node:assert/strict';
import fc from 'fast-check';
import {
  type ComparedRule,
  ComparisonBuilder,
  compareRules,
  MAX_COMPARED_OBJECTS,
} from '../../proxier/comparison.ts';

const rules = (texts: Iterable<string>): ComparedRule[] =>
  [...texts].map((text) => ({ id: text, text }));

function differences(desired: string, actual: string): string[] {
  return compareRules(rules(desired), rules(actual)).map(
    (each) => `${each.state} ${each.desired?.text ?? '-'} ${each.actual?.text ?? '-'}`,
  );
}

describe('comparison: the rules of a chain', () => {
  for (const [desired, actual, ...expected] of [
    ['', ''],
    ['ab', 'ab', 'ok a a', 'ok b b'],
    ['ab', 'a', 'ok a a', 'missing b -'],
    ['ab', 'axb', 'ok a a', 'ok b b', 'unexpected - x'],
    ['abc', 'axc', 'ok a a', 'changed b x', 'ok c c'],
    ['abc', 'bac', 'changed a b', 'changed b a', 'ok c c'],
    ['aa', 'a', 'ok a a', 'missing a -'],
    ['a', 'aa', 'ok a a', 'unexpected - a'],
    ['ab', '', 'missing a -', 'missing b -'],
  ] as const) {
    it(`compares "${desired}" with "${actual}"`, () => {
      assert.deepEqual(differences(desired, actual).sort(), [...expected].sort());
    });
  }

  it('contains each desired and each actual rule once, and finds any difference', () => {
    const texts = fc.string({ unit: fc.constantFrom('a', 'b', 'c'), maxLength: 6 });
    fc.assert(
      fc.property(texts, texts, (desired, actual) => {
        const found = compareRules(rules(desired), rules(actual));
        const sorted = (of: 'desired' | 'actual') =>
          found
            .flatMap((each) => each[of]?.text ?? [])
            .sort()
            .join('');
        assert.equal(sorted('desired'), [...desired].sort().join(''));
        assert.equal(sorted('actual'), [...actual].sort().join(''));
        assert.equal(
          found.every(({ state }) => state === 'ok'),
          desired === actual,
        );
      }),
    );
  });
});

describe('comparison: the result', () => {
  const object = () => ({ type: 'rule', in: 'nat', desired: 'a', actual: null, service: null });

  it('contains objects that are as they should be only for one Service', () => {
    for (const service of [undefined, 'default/web']) {
      const result = new ComparisonBuilder(service);
      result.add('ok', object);
      result.addUnchanged(2);
      const { compared, objects } = result.result();
      assert.deepEqual([compared, objects.length], [3, service === undefined ? 0 : 1]);
    }
  });

  it('is limited, lists differences first, and counts the objects beyond the limit', () => {
    const result = new ComparisonBuilder('default/web');
    const beyond = MAX_COMPARED_OBJECTS + 2;
    for (let count = 0; count < beyond; count++) result.add('ok', object);
    for (let count = 0; count < beyond; count++) result.add('missing', object);
    const { compared, different, objects } = result.result();
    assert.deepEqual(
      [compared, different, objects.length],
      [2 * beyond, beyond, 2 * MAX_COMPARED_OBJECTS],
    );
    assert.deepEqual([objects[0]?.state, objects.at(-1)?.state], ['missing', 'ok']);
  });

  it('has only differences of Services in a namespace, also beyond the limit, and of no Service', () => {
    const result = new ComparisonBuilder(undefined, undefined, 'shop');
    const others = ['shop2/web', 'default/shop'];
    for (let count = 0; count < MAX_COMPARED_OBJECTS; count++) {
      for (const service of others) result.add('missing', () => ({ ...object(), service }));
    }
    for (const service of ['shop/web', null])
      result.add('missing', () => ({ ...object(), service }));
    const { compared, different, objects } = result.result();
    assert.deepEqual([compared, different], [others.length * MAX_COMPARED_OBJECTS + 2, 2]);
    assert.deepEqual(
      objects.map(({ service }) => service),
      ['shop/web', null],
    );
  });

  it('ends when its signal is aborted', () => {
    const client = new AbortController();
    const result = new ComparisonBuilder(undefined, client.signal);
    result.add('ok', object);
    client.abort(new Error('the client has gone'));
    assert.throws(() => result.add('ok', object), /the client has gone/);
    assert.throws(() => result.addUnchanged(1), /the client has gone/);
  });
});
