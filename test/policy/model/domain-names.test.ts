import assert from 'node:assert/strict';
import fc from 'fast-check';
import { NamePatterns, normalizeName } from '../../../policy/model/domain-names.ts';
import { checkProperty } from '../../netlink/property.ts';

function patterns(...all: readonly string[]): NamePatterns<string> {
  const made = new NamePatterns<string>();
  for (const pattern of all) made.set(pattern, pattern);
  return made;
}

/** Reference implementation that compares label by label. */
function isMatch(pattern: string, name: string): boolean {
  const labels = (text: string) => text.toLowerCase().replace(/\.$/, '').split('.');
  const [expected, found] = [labels(pattern), labels(name)];
  if (expected[0] !== '*') return expected.join('.') === found.join('.');
  const rest = expected.slice(1);
  return found.length > rest.length && found.slice(-rest.length).join('.') === rest.join('.');
}

describe('domain-names: domain name patterns', () => {
  it('match as in the examples of NPEP-133', () => {
    const cases = [
      ['kubernetes.io', 'kubernetes.io', true],
      ['kubernetes.io', 'www.kubernetes.io', false],
      ['kubernetes.io', 'blog.kubernetes.io', false],
      ['kubernetes.io', 'my-kubernetes.io', false],
      ['kubernetes.io', 'wikipedia.org', false],
      ['blog.kubernetes.io', 'blog.kubernetes.io', true],
      ['blog.kubernetes.io', 'www.kubernetes.io', false],
      ['blog.kubernetes.io', 'kubernetes.io', false],
      ['*.kubernetes.io', 'www.kubernetes.io', true],
      ['*.kubernetes.io', 'blog.kubernetes.io', true],
      ['*.kubernetes.io', 'latest.blog.kubernetes.io', true],
      ['*.kubernetes.io', 'kubernetes.io', false],
      ['*.kubernetes.io', 'wikipedia.org', false],
      ['*.kubernetes.io', 'my-kubernetes.io', false],
      ['*.kubernetes.io', '.kubernetes.io', false],
      ['Blog.Kubernetes.IO.', 'bLOG.kubernetes.io', true],
      ['*.Kubernetes.io', 'WWW.kubernetes.IO.', true],
    ] as const;
    for (const [pattern, name, expected] of cases) {
      assert.equal(patterns(pattern).matches(name), expected, `${pattern} ${name}`);
    }
  });

  it('fold the case of ASCII letters only', () => {
    assert.equal('\u212a'.toLowerCase(), 'k');
    assert.equal(normalizeName('\u212aubernetes.IO'), '\u212aubernetes.io');
    assert.equal(patterns('kubernetes.io').matches('\u212aubernetes.io'), false);
  });

  it('yield all matching patterns, the most specific first', () => {
    const all = patterns('*.io', 'a.b.io', '*.b.io', '*.a.b.io', 'b.io');
    assert.deepEqual([...all.match('a.b.io')], ['a.b.io', '*.b.io', '*.io']);
    assert.equal(all.size, 5);
  });

  it('are equal when case or the final dot differs', () => {
    const all = patterns('*.a.io', 'a.io');
    assert.equal(all.get('A.io.'), 'a.io');
    assert.equal(all.get('*.A.io.'), '*.a.io');
  });

  it('match label by label', () => {
    const label = fc.constantFrom('a', 'b', 'B', 'ab', 'x-1');
    const name = fc
      .tuple(fc.array(label, { minLength: 1, maxLength: 5 }), fc.constantFrom('', '.'))
      .map(([labels, end]) => labels.join('.') + end);
    const pattern = fc.tuple(fc.constantFrom('', '*.'), name).map((parts) => parts.join(''));
    checkProperty(
      fc.property(fc.uniqueArray(pattern, { maxLength: 8 }), name, (all, each) => {
        const expected = new Set(all.filter((one) => isMatch(one, each)).map(normalizeName));
        assert.deepEqual(new Set([...patterns(...all).match(each)].map(normalizeName)), expected);
      }),
    );
  });

  it('are not scanned one by one', () => {
    const all = patterns(...Array.from({ length: 1000 }, (_, index) => `*.n${index}.example.com`));
    let steps = 0;
    const { get } = Map.prototype;
    Map.prototype.get = function (this: Map<unknown, unknown>, key: unknown) {
      steps += 1;
      return get.call(this, key);
    };
    try {
      assert.equal(all.matches('a.b.n500.example.com'), true);
    } finally {
      Map.prototype.get = get;
    }
    assert.ok(steps <= 6, `${steps} steps`);
  });
});
