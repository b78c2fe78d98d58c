import assert from 'node:assert/strict';
import fc from 'fast-check';
import { InvalidPorts, readPortGroups } from '../../probe/ports.ts';

const portsOf = (text: string, seed = 1) =>
  readPortGroups(text, seed).flatMap(({ ports }) => ports);

describe('probe: port expressions', () => {
  it('reads ports, ranges and all, and keeps items as written', () => {
    assert.deepEqual(readPortGroups('443, 20000-20002', 1), [
      { name: '443', ports: [443] },
      { name: '20000-20002', ports: [20000, 20001, 20002] },
    ]);
    const all = portsOf('all');
    assert.deepEqual([all.length, all[0], all.at(-1)], [65_535, 1, 65_535]);
  });

  for (const [text, reason] of [
    ['', /"" is not a port/],
    ['0', /"0" is not a port/],
    ['65536', /"65536" is not a port/],
    ['80,', /"" is not a port/],
    ['http', /"http" is not a port/],
    ['20-10', /"20-10" ends before it begins/],
    ['10-', /"10-" is not a port/],
    ['random:0', /"random:0" must have a count/],
    ['random:70000', /"random:70000" must have a count/],
    ['80,80', /"80" is given twice/],
  ] as const) {
    it(`rejects ${JSON.stringify(text)} and names the item`, () => {
      assert.throws(() => portsOf(text), { name: InvalidPorts.name, message: reason });
    });
  }

  it('draws distinct valid ports, the same for the same seed', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 65_535 }), fc.nat(), (count, seed) => {
        const ports = portsOf(`random:${count}`, seed);
        assert.equal(new Set(ports).size, count);
        assert.ok(ports.every((port) => port >= 1 && port <= 65_535));
        assert.deepEqual(
          ports,
          ports.toSorted((a, b) => a - b),
        );
        assert.deepEqual(ports, portsOf(`random:${count}`, seed));
      }),
      { numRuns: 30 },
    );
    assert.notDeepEqual(portsOf('random:200', 1), portsOf('random:200', 2));
  });

  it('draws from the whole range', () => {
    const ports = portsOf('random:2000', 7);
    for (const [from, to] of [
      [1, 8192],
      [8193, 32_768],
      [32_769, 65_535],
    ] as const) {
      const share = ports.filter((port) => port >= from && port <= to).length / ports.length;
      assert.ok(Math.abs(share - (to - from + 1) / 65_535) < 0.05, `${from}-${to}: ${share}`);
    }
  });
});
