import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { EntryItem } from '../../ipvs/items.ts';
import { isRanged, KernelPorts, RangeIndex } from '../../ipvs/port-ranges.ts';
import type { IpsetEntry } from '../../netlink/ipset/ipset.ts';

const entry: fc.Arbitrary<IpsetEntry> = fc
  .record({
    ip: fc.constantFrom('203.0.113.1', '203.0.113.17'),
    protocol: fc.constantFrom('TCP' as const, 'UDP' as const),
    port: fc.nat(14),
    length: fc.nat(6),
    skbMark: fc.constantFrom(0x1002, 0x1003),
  })
  .map(({ length, ...rest }) => {
    // A single port has no `portTo`, as the compiler writes it, or an equal one.
    return length === 0 ? rest : { ...rest, portTo: rest.port + length - 1 };
  });
const item: fc.Arbitrary<EntryItem> = entry.map((each) => ({
  kind: 'entry',
  set: 'KUBE-PORT-RANGES',
  entry: each,
}));

/** An entry port by port, as the kernel stores it. */
function portsOf({ ip, protocol, port = 0, portTo = port }: IpsetEntry): string[] {
  return Array.from({ length: portTo - port + 1 }, (_, step) => `${ip} ${protocol} ${port + step}`);
}

describe('port-ranges: port ranges in ipsets', () => {
  it('knows the sets that may have ranges', () => {
    assert.ok(isRanged('KUBE-PORT-RANGES') && isRanged('KUBE-INSIDE-PORT-RANGES'));
    assert.ok(!isRanged('KUBE-CLUSTER-IP') && !isRanged('KUBE-LOAD-BALANCER-SOURCE-CIDR'));
  });

  it('returns the ports of a range that no other entry covers', () => {
    fc.assert(
      fc.property(fc.array(item, { maxLength: 6 }), fc.array(fc.nat(5)), item, (all, gone, one) => {
        const index = new RangeIndex();
        for (const each of all) index.add(each);
        for (const each of gone.flatMap((position) => all[position] ?? [])) index.delete(each);
        const left = all.filter((_, position) => !gone.includes(position));
        const covered = new Set(left.flatMap((each) => portsOf(each.entry)));
        const found = index.uncovered(one);
        assert.deepEqual(
          found.flatMap(portsOf).sort(),
          portsOf(one.entry)
            .filter((port) => !covered.has(port))
            .sort(),
        );
        for (const { skbMark } of found) assert.equal(skbMark, one.entry.skbMark);
      }),
      { seed: 42, numRuns: 2000 },
    );
  });

  it('looks at each range a few times, however many ranges of the VIP remain', () => {
    let looks = 0;
    const items = (first: number): EntryItem[] =>
      Array.from({ length: 1024 }, (_, position) => ({
        kind: 'entry',
        set: 'KUBE-PORT-RANGES',
        entry: {
          ip: '203.0.113.1',
          protocol: 'UDP',
          get port() {
            looks += 1;
            return first + 10 * position;
          },
          portTo: first + 10 * position + 1,
        },
      }));
    const index = new RangeIndex();
    for (const each of items(20_000)) index.add(each);
    const found = items(20_001).flatMap((each) => index.uncovered(each));
    assert.deepEqual([found.length, found[0]?.port, found[0]?.portTo], [1024, 20_002, 20_002]);
    assert.ok(looks < 100 * 1024, `${looks} looks at 2,048 ranges`);
  });

  it("joins the kernel's ports to the fewest ranges, and finds ports with their marks", () => {
    fc.assert(
      fc.property(fc.array(item, { maxLength: 6 }), item, (all, one) => {
        const kernel = new KernelPorts();
        const marks = new Map<string, number | undefined>();
        for (const { set, entry: each } of all) {
          const { ip = '', protocol = 'TCP', port: from = 0, portTo: to = from, skbMark } = each;
          for (let port = from; port <= to; port++) {
            marks.set(`${ip} ${protocol} ${port}`, skbMark);
            kernel.add(set, { ip, protocol, port, ...(skbMark && { skbMark }) });
          }
        }
        const ranges = [...kernel.items()].map((each) => each.entry);
        assert.deepEqual(ranges.flatMap(portsOf).sort(), [...marks.keys()].sort());
        const ends = new Set(ranges.map((each) => portsOf(each).at(-1)));
        for (const { ip = '', protocol = 'TCP', port = 0 } of ranges) {
          assert.ok(!ends.has(`${ip} ${protocol} ${port - 1}`), 'adjacent ports form one range');
        }
        const has = portsOf(one.entry).every((port) => marks.get(port) === one.entry.skbMark);
        assert.equal(kernel.has(one), has);
      }),
      { seed: 42, numRuns: 2000 },
    );
  });
});
