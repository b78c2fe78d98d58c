import assert from 'node:assert/strict';
import fc from 'fast-check';
import {
  EVERY_PORT,
  isWholeProtocol,
  joinSpace,
  type SpaceRange,
  splitSpace,
} from '../../../policy/model/port-space.ts';

const range = fc
  .record({
    protocol: fc.constantFrom('TCP' as const, 'UDP' as const),
    from: fc.integer({ min: 0, max: 6 }),
    length: fc.integer({ min: 0, max: 6 }),
  })
  .map(({ protocol, from, length }): SpaceRange => ({ protocol, from, to: from + length }));

/** Number of ranges that have a port. */
function count(space: readonly SpaceRange[], protocol: string, port: number): number {
  return space.filter((each) => each.protocol === protocol && each.from <= port && port <= each.to)
    .length;
}

describe('port-space: sets of ports', () => {
  it('splits a set into two parts without a common port, and joins ranges without a change', () => {
    fc.assert(
      fc.property(fc.array(range), fc.array(range), (holes, ranges) => {
        const space = splitSpace(EVERY_PORT, holes).outside;
        const { inside, outside } = splitSpace(space, ranges);
        const joined = joinSpace(outside);
        for (const protocol of ['TCP', 'UDP', 'SCTP']) {
          for (const port of [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 65_535]) {
            const expected = count(space, protocol, port);
            const isIn = expected === 1 && count(ranges, protocol, port) > 0;
            assert.equal(count(inside, protocol, port), isIn ? 1 : 0);
            assert.equal(count(outside, protocol, port), isIn ? 0 : expected);
            assert.equal(count(joined, protocol, port), isIn ? 0 : expected);
          }
        }
        assert.ok(joined.length <= outside.length);
      }),
      { seed: 4, numRuns: 500 },
    );
  });

  it('knows whole protocols', () => {
    assert.ok(EVERY_PORT.every(isWholeProtocol));
    assert.deepEqual(joinSpace(splitSpace(EVERY_PORT, EVERY_PORT).inside), EVERY_PORT);
    assert.equal(isWholeProtocol({ protocol: 'TCP', from: 1, to: 65_535 }), false);
  });
});
