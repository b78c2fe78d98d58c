import assert from 'node:assert/strict';
import fc from 'fast-check';
import type { DetailedEntry } from '../../../netlink/conntrack/conntrack.ts';
import { CounterCache } from '../../../status/traffic/counter-cache.ts';
import { type CounterSet, TrafficCounter } from '../../../status/traffic/traffic-counters.ts';

/** An entry with the fields that the cache reads. */
function entry(fields: Partial<DetailedEntry>): DetailedEntry {
  const values = { protocol: 6, zone: 0, origDstBits: 1, replySrcBits: 2 };
  return { ...values, origDstPort: 80, replySrcPort: 8080, ...fields } as DetailedEntry;
}

const counters = (): CounterSet => [new TrafficCounter({ service: 'default/web' }, 0)];

describe('CounterCache: counters by path', () => {
  it('returns what the search returns, and searches once for each path', () => {
    const bits = fc.constantFrom(0, 1, -1, 0x0a600001, -0x0a600001);
    const port = fc.constantFrom(0, 80, 65_535);
    const path = fc.record({
      protocol: fc.constantFrom(6, 17),
      origDstBits: bits,
      replySrcBits: bits,
      origDstPort: port,
      replySrcPort: port,
    });
    fc.assert(
      fc.property(fc.array(path, { maxLength: 100 }), (paths) => {
        const expected = new Map<string, CounterSet | undefined>();
        let searches = 0;
        const keyOf = (each: Partial<DetailedEntry>) =>
          [
            each.protocol,
            each.origDstBits,
            each.replySrcBits,
            each.origDstPort,
            each.replySrcPort,
          ].join();
        const cache = new CounterCache((each) => {
          searches += 1;
          const found = searches % 3 === 0 ? undefined : counters();
          expected.set(keyOf(each), found);
          return found;
        });
        for (const each of paths) {
          const found = cache.find(entry(each));
          assert.equal(found, expected.get(keyOf(each)));
        }
        assert.equal(searches, new Set(paths.map(keyOf)).size);
      }),
    );
  });

  it('searches again after clear, for IPv6, in other zones, and for a path without a counter', () => {
    let searches = 0;
    let found = counters();
    const cache = new CounterCache(() => {
      searches += 1;
      return found;
    });
    const searchesOf = (...entries: DetailedEntry[]) => {
      searches = 0;
      for (const each of entries) cache.find(each);
      return searches;
    };
    assert.equal(searchesOf(entry({}), entry({})), 1);
    cache.clear();
    assert.equal(searchesOf(entry({})), 1);
    const ipv6 = entry({ origDstBits: undefined });
    assert.equal(searchesOf(ipv6, ipv6), 2);
    const zone = entry({ zone: 1 });
    assert.equal(searchesOf(zone, zone), 2);
    found = [];
    const full = entry({ origDstPort: 81 });
    assert.equal(searchesOf(full, full), 2);
  });

  it('stays correct beyond its size', () => {
    const sets = [counters(), counters()];
    const cache = new CounterCache(({ origDstBits = 0 }) => sets[origDstBits % 2]);
    for (let path = 0; path < 40_000; path++) {
      assert.equal(cache.find(entry({ origDstBits: path })), sets[path % 2]);
    }
  });
});
