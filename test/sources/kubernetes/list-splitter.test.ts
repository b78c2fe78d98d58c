import assert from 'node:assert/strict';
import fc from 'fast-check';
import { MalformedResponse } from '../../../sources/kubernetes/errors.ts';
import { type ListPart, ListSplitter } from '../../../sources/kubernetes/list-splitter.ts';

/** @param sizes sizes of the chunks in bytes, used in turn. */
function split(text: string, sizes: readonly number[] = [1 << 20]): ListPart[] {
  const splitter = new ListSplitter();
  const parts: ListPart[] = [];
  const bytes = Buffer.from(text);
  for (let at = 0, turn = 0; at < bytes.length; turn++) {
    const size = sizes[turn % sizes.length] ?? 1;
    parts.push(...splitter.push(bytes.subarray(at, at + size)));
    at += size;
  }
  return [...parts, ...splitter.end()];
}

const METADATA = { kind: 'ServiceList', resourceVersion: '7', continue: '' };
const itemsOf = (parts: readonly ListPart[]) =>
  parts.flatMap((part) => ('item' in part ? [part.item] : []));

describe('list-splitter: splitting a list', () => {
  it('returns the metadata, then each item as soon as it is complete', () => {
    const splitter = new ListSplitter();
    const push = (text: string) => splitter.push(Buffer.from(text));
    assert.deepEqual(push('{"kind":"ServiceList","metadata":{"resourceVersion":"7"},'), []);
    assert.deepEqual(push('"items":['), [{ metadata: METADATA }]);
    assert.deepEqual(push('{"a":1'), []);
    assert.deepEqual(push('},{"b":[2,3]},{'), [{ item: { a: 1 } }, { item: { b: [2, 3] } }]);
    assert.deepEqual(push('}]'), [{ item: {} }]);
    assert.deepEqual([...push('}\n'), ...splitter.end()], []);
  });

  it('returns the same as JSON.parse for any chunks and formatting', () => {
    // Property names that a faulty parser would mistake for the list's own.
    const tricky = fc.constantFrom('items', '"items":[', 'a\\', '\\"items"', '[', '}', '🎉');
    const value = fc.jsonValue({ maxDepth: 3 });
    const item = fc.oneof(value, fc.dictionary(tricky, value), tricky);
    fc.assert(
      fc.property(
        fc.array(item, { maxLength: 6 }),
        fc.dictionary(tricky, value),
        fc.boolean(),
        fc.constantFrom(0, 1, 3),
        fc.array(fc.integer({ min: 1, max: 40 }), { minLength: 1, maxLength: 5 }),
        (items, labels, sorted, indent, sizes) => {
          const metadata = { resourceVersion: '7', continue: 'more', labels };
          const head = { kind: 'ServiceList', other: [[1], { items: [2] }] };
          const list = sorted ? { ...head, items, metadata } : { ...head, metadata, items };
          const [first, ...rest] = split(JSON.stringify(list, null, indent), sizes);
          assert.deepEqual(first, { metadata: { ...METADATA, continue: 'more' } });
          assert.deepEqual(itemsOf(rest), JSON.parse(JSON.stringify(items)));
        },
      ),
      { seed: 8, numRuns: 1000 },
    );
  });

  it('treats null items as empty', () => {
    const text = '{"kind":"ServiceList","metadata":{"resourceVersion":"7"},"items":null}';
    assert.deepEqual(split(text), [{ metadata: METADATA }]);
  });

  const list = (items: string) =>
    `{"kind":"ServiceList","metadata":{"resourceVersion":"7"},"items":${items}}`;
  for (const [what, text] of [
    ['an empty text', ''],
    ['a number', '7'],
    ['an HTML page', '<html><body>"items": [</body></html>'],
    ['half a list', list('[{}]').slice(0, -1)],
    ['half an item', list('[{"a":1}').slice(0, -2)],
    ['brackets that do not match', list('[{"a":[1}]')],
    ['an extra comma', list('[{},]')],
    ['a missing comma', list('[{}{}]')],
    ['a comma without items', list('[,]')],
    ['repeated items', list('[],"items":[]')],
    ['items that are not a list', list('{}')],
    ['text after the end', `${list('[]')}}`],
    ['a second list after the end', `${list('[]')}${list('[]')}`],
    ['no kind', list('[]').replace('"kind":"ServiceList",', '')],
    ['a version that is not a string', list('[]').replace('"7"', '7')],
    ['an empty version', list('[]').replace('"7"', '""')],
  ] as const) {
    it(`rejects ${what}`, () => assert.throws(() => split(text, [3]), MalformedResponse));
  }

  it('throws only MalformedResponse for any text', () => {
    const piece = fc.constantFrom('{', '}', '[', ']', ',', ':', '"', '\\', '"items"', '1', ' ');
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 30 }), fc.boolean(), (pieces, isList) => {
        const text = pieces.join('');
        try {
          split(isList ? list(text) : text, [2]);
        } catch (error) {
          assert.ok(error instanceof MalformedResponse);
        }
      }),
      { seed: 8, numRuns: 2000 },
    );
  });
});
