import assert from 'node:assert/strict';
import fc from 'fast-check';
import {
  IntervalJoiner,
  intervalsOf,
  keyAfter,
  type NftRawElement,
} from '../../../netlink/nftables/interval.ts';

const key = (number: number) => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(number >>> 0);
  return bytes;
};
const start = (number: number, data = key(7)): NftRawElement => ({ key: key(number), data });
const end = (number: number): NftRawElement => ({ key: key(number), isEnd: true });
const joined = (raw: readonly NftRawElement[]) => [...intervalsOf(raw)];

describe('interval: sets without concatenation', () => {
  it('joins the halves of intervals in any order', () => {
    const borders = fc.uniqueArray(fc.nat(1000), { minLength: 2, maxLength: 20 });
    fc.assert(
      fc.property(borders, fc.boolean(), fc.infiniteStream(fc.nat()), (numbers, touch, order) => {
        const sorted = numbers.sort((a, b) => a - b);
        const intervals = sorted.slice(1).map((to, at) => ({ from: sorted[at] ?? 0, to }));
        const some = intervals.filter((_, at) => touch || at % 2 === 0);
        const raw = some.flatMap(({ from, to }) => [start(from, key(from)), end(to)]);
        const shuffled = raw
          .map((element) => ({ element, at: order.next().value ?? 0 }))
          .sort((a, b) => a.at - b.at)
          .map(({ element }) => element);
        const expected = some.map(({ from, to }) => ({
          key: key(from),
          data: key(from),
          keyEnd: key(to - 1),
        }));
        assert.deepEqual(joined(shuffled), expected);
      }),
    );
  });

  it('keeps halves without the other one', () => {
    assert.deepEqual(joined([start(10), start(20), end(30), end(40)]), [
      { ...start(10), bound: 'start' },
      { ...start(20), keyEnd: key(29) },
      { key: key(39), bound: 'end' },
    ]);
    assert.deepEqual(joined([start(0xffffffff)]), [{ ...start(0xffffffff), bound: 'start' }]);
  });

  it('joins halves while they come in the order of the kernel', () => {
    const found: unknown[] = [];
    const joiner = new IntervalJoiner((interval) => found.push(interval));
    const raw = [end(50), end(40), start(30), end(30), start(20), start(10), end(5)];
    assert.deepEqual(
      raw.map((each) => joiner.add(each)),
      raw.map(() => true),
    );
    joiner.end();
    assert.deepEqual(found, [...joined(raw)].reverse());
    assert.equal(found.length, 5);
  });

  it('notices halves in another order, and halves that come twice', () => {
    for (const [first, second] of [
      [start(10), end(20)],
      [end(10), start(10)],
      [start(10), start(10)],
    ] as const) {
      const joiner = new IntervalJoiner(() => undefined);
      assert.deepEqual([joiner.add(first), joiner.add(second)], [true, false]);
    }
  });

  it('counts keys as numbers, and begins again after the highest', () => {
    assert.deepEqual(keyAfter(key(0x00ffff)), key(0x010000));
    assert.deepEqual(keyAfter(key(0xffffffff)), key(0));
    // nft adds an end at 0 to an empty set.
    const [zero] = joined([end(0)]);
    assert.deepEqual(zero, { key: key(0xffffffff), bound: 'end' });
  });
});
