import assert from 'node:assert/strict';
import fc from 'fast-check';
import { IP_FAMILIES } from '../../../api/objects.ts';
import {
  type AddressRange,
  addressNumber,
  addressText,
  cidrRange,
  coversFamily,
  mergeRanges,
  rangesContain,
  rangesNotIn,
  rangesOverlap,
  subtractRanges,
} from '../../../policy/model/ranges.ts';

/** Test ranges have numbers below this. */
const END = 40;

const range: fc.Arbitrary<AddressRange> = fc
  .tuple(fc.nat(END - 1), fc.nat(8))
  .map(([first, more]) => ({
    first: BigInt(first),
    last: BigInt(Math.min(first + more, END - 1)),
  }));
const ranges = fc.array(range, { maxLength: 8, size: 'max' });

/** All numbers in some ranges. */
function members(some: readonly AddressRange[]): number[] {
  return Array.from({ length: END }, (_, each) => each).filter((each) =>
    some.some(({ first, last }) => first <= each && each <= last),
  );
}

function assertNormal(some: readonly AddressRange[]): void {
  for (const [at, { first, last }] of some.entries()) {
    assert.ok(first <= last);
    const before = some[at - 1];
    assert.ok(before === undefined || before.last < first, 'they overlap');
  }
}

describe('ranges: address ranges', () => {
  it('are merged without losing or adding addresses', () => {
    fc.assert(
      fc.property(ranges, (some) => {
        assertNormal(mergeRanges(some));
        assert.deepEqual(members(mergeRanges(some)), members(some));
      }),
      { seed: 1, numRuns: 1000 },
    );
  });

  it('lose the holes and nothing else', () => {
    fc.assert(
      fc.property(range, ranges, (whole, holes) => {
        const left = subtractRanges(whole, holes);
        assertNormal(left);
        const removed = new Set(members(holes));
        assert.deepEqual(
          members(left),
          members([whole]).filter((each) => !removed.has(each)),
        );
      }),
      { seed: 2, numRuns: 1000 },
    );
  });

  it('contain the addresses between their ends', () => {
    fc.assert(
      fc.property(ranges, (some) => {
        const inside = new Set(members(some));
        for (let each = 0; each < END; each++) {
          assert.equal(rangesContain(mergeRanges(some), BigInt(each)), inside.has(each));
        }
      }),
      { seed: 3, numRuns: 500 },
    );
  });

  it('are compared by their ends', () => {
    fc.assert(
      fc.property(ranges, ranges, (a, b) => {
        const [before, after] = [mergeRanges(a), mergeRanges(b)];
        const text = ({ first, last }: AddressRange) => `${first}-${last}`;
        const kept = new Set(before.map(text));
        for (const removed of rangesNotIn(before, after)) kept.delete(text(removed));
        for (const come of rangesNotIn(after, before)) {
          assert.ok(!kept.has(text(come)));
          kept.add(text(come));
        }
        assert.deepEqual([...kept].sort(), after.map(text).sort());
      }),
      { seed: 4, numRuns: 500 },
    );
  });

  it('overlap if they share an address', () => {
    fc.assert(
      fc.property(ranges, ranges, (a, b) => {
        const others = new Set(members(b));
        const isShared = members(a).some((each) => others.has(each));
        assert.equal(rangesOverlap(mergeRanges(a), mergeRanges(b)), isShared);
      }),
      { seed: 5, numRuns: 500 },
    );
  });

  for (const [cidr, first, last] of [
    ['10.0.0.0/8', '10.0.0.0', '10.255.255.255'],
    ['10.1.2.3/32', '10.1.2.3', '10.1.2.3'],
    ['0.0.0.0/0', '0.0.0.0', '255.255.255.255'],
    ['255.255.255.254/31', '255.255.255.254', '255.255.255.255'],
    ['fd00::/64', 'fd00::', 'fd00::ffff:ffff:ffff:ffff'],
    ['::/0', '::', 'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff'],
    ['fd00::1/128', 'fd00::1', 'fd00::1'],
  ] as const) {
    it(`${cidr} is ${first} to ${last}`, () => {
      const family = cidr.includes(':') ? 'IPv6' : 'IPv4';
      const whole = cidrRange(cidr);
      assert.deepEqual(
        [addressText(whole.first, family), addressText(whole.last, family)],
        [first, last],
      );
      assert.deepEqual([addressNumber(first), addressNumber(last)], [whole.first, whole.last]);
      assert.equal(coversFamily([whole], family), cidr.endsWith('/0'));
    });
  }

  it('cover an IP family only when all parts are present', () => {
    const halves = mergeRanges(['0.0.0.0/1', '128.0.0.0/1'].map(cidrRange));
    assert.equal(coversFamily(halves, 'IPv4'), true);
    assert.equal(coversFamily(halves, 'IPv6'), false);
    for (const family of IP_FAMILIES) assert.equal(coversFamily([], family), false);
    assert.equal(coversFamily([cidrRange('128.0.0.0/1')], 'IPv4'), false);
  });
});
