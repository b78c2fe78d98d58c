import assert from 'node:assert/strict';
import fc from 'fast-check';
import { DEFAULTS } from '../../../config/settings.ts';
import type { FqdnElement, FqdnEntry } from '../../../policy/compile/change.ts';
import { FQDN_CACHE_DEFAULTS, FqdnCache } from '../../../policy/fqdn/cache.ts';
import { NamePatterns } from '../../../policy/model/domain-names.ts';
import { checkProperty } from '../../netlink/property.ts';

const OPTIONS = { floor: 30_000, cap: 3_600_000, perName: 1000, total: 100_000 };
/** One second for TTLs truncated to whole seconds. */
const MORE = 1000;

function names(patterns: Readonly<Record<string, readonly number[]>>) {
  return new Map(Object.entries(patterns).map(([pattern, lists]) => [pattern, new Set(lists)]));
}

function resolved(...addresses: readonly string[]) {
  return addresses.map((address) => ({ address, ttl: 60 }));
}

/** `1 192.0.2.1 61000` */
function elements(all: readonly FqdnElement[]): string[] {
  return all.map(({ list, address, timeoutMs }) => `${list} ${address} ${timeoutMs}`).sort();
}

function answers(all: readonly FqdnEntry[]): string[] {
  return all.map(({ name, address, timeoutMs }) => `${name} ${address} ${timeoutMs}`).sort();
}

describe('cache: the FQDN cache', () => {
  let cache: FqdnCache;
  beforeEach(() => {
    cache = new FqdnCache(OPTIONS);
  });
  const addAnswer = (name: string, ...addresses: readonly string[]) =>
    cache.addAnswer(name, resolved(...addresses), 0);

  it('adds addresses to the lists of all matching patterns and stores the answer', () => {
    cache.setPatterns(names({ '*.example.com': [1, 2], 'www.example.com': [2, 3], other: [4] }), 0);
    const { add, remove } = addAnswer('WWW.example.com.', '192.0.2.1', '2001:db8::1');
    assert.deepEqual(elements(add.elements), [
      `1 192.0.2.1 ${60_000 + MORE}`,
      `1 2001:db8::1 ${60_000 + MORE}`,
      `2 192.0.2.1 ${60_000 + MORE}`,
      `2 2001:db8::1 ${60_000 + MORE}`,
      `3 192.0.2.1 ${60_000 + MORE}`,
      `3 2001:db8::1 ${60_000 + MORE}`,
    ]);
    assert.deepEqual(answers(add.entries), [
      `www.example.com 192.0.2.1 ${60_000 + MORE}`,
      `www.example.com 2001:db8::1 ${60_000 + MORE}`,
    ]);
    assert.deepEqual(remove, { elements: [], entries: [] });
  });

  it('knows the lists that have an address, until it expires', () => {
    cache.setPatterns(names({ '*.example.com': [1], 'a.other': [2] }), 0);
    addAnswer('a.example.com', '192.0.2.1');
    const lists = (address: string, now: number) =>
      [1, 2].filter((list) => cache.hasPeer(list, address, now));
    assert.deepEqual(lists('192.0.2.1', 1), [1]);
    assert.deepEqual(lists('192.0.2.2', 1), []);
    assert.deepEqual(lists('192.0.2.1', 60_000 + MORE), []);
    addAnswer('a.other', '192.0.2.1');
    assert.deepEqual(lists('192.0.2.1', 1), [1, 2]);
  });

  it('ignores names that no pattern matches', () => {
    cache.setPatterns(names({ '*.example.com': [1] }), 0);
    assert.deepEqual(addAnswer('example.com', '192.0.2.1').add, { elements: [], entries: [] });
    assert.deepEqual(addAnswer('www.example.com').add, { elements: [], entries: [] });
    assert.deepEqual(cache.stats(), { names: 0, addresses: 0, evictions: 0 });
  });

  it('has the same default TTL floor and cap as the settings', () => {
    const { fqdnTtlFloor, fqdnTtlCap } = DEFAULTS;
    assert.deepEqual(FQDN_CACHE_DEFAULTS, { ...OPTIONS, floor: fqdnTtlFloor, cap: fqdnTtlCap });
  });

  it('uses the TTL when the floor is 0', () => {
    const cache = new FqdnCache({ ...OPTIONS, floor: 0 });
    cache.setPatterns(new Map([['a.test', new Set([1])]]), 0);
    const timeout = (ttl: number) =>
      cache.addAnswer('a.test', [{ address: '192.0.2.1', ttl }], 0).add.entries[0]?.timeoutMs;
    // One second more, because TTLs are truncated to whole seconds.
    assert.deepEqual([timeout(0), timeout(7)], [1000, 8000]);
  });

  it('raises TTLs to the floor and limits them to the cap', () => {
    cache.setPatterns(names({ a: [1] }), 0);
    for (const [ttl, seconds] of [
      [0, 30],
      [29, 30],
      [31, 31],
      [3600, 3600],
      [3601, 3600],
      [0x7fffffff, 3600],
    ] as const) {
      const { add } = cache.addAnswer('a', [{ address: '192.0.2.1', ttl }], 0);
      assert.equal(add.elements[0]?.timeoutMs, seconds * 1000 + MORE, String(ttl));
    }
    const capped = new FqdnCache({ ...OPTIONS, floor: 9000, cap: 5000 });
    capped.setPatterns(names({ a: [1] }), 0);
    const { add } = capped.addAnswer('a', [{ address: '192.0.2.1', ttl: 1 }], 0);
    assert.equal(add.elements[0]?.timeoutMs, 5000 + MORE);
  });

  it('adds cached addresses with their remaining lifetime to a new list', () => {
    cache.setPatterns(names({ 'www.example.com': [1] }), 0);
    addAnswer('www.example.com', '192.0.2.1');
    cache.addAnswer('www.example.com', [{ address: '192.0.2.2', ttl: 40 }], 0);
    const more = names({ 'www.example.com': [1, 2], '*.com': [3] });
    assert.deepEqual(elements(cache.setPatterns(more, 41_000)), [
      `2 192.0.2.1 ${20_000}`,
      `3 192.0.2.1 ${20_000}`,
    ]);
    assert.deepEqual(cache.setPatterns(more, 41_000), []);
  });

  it('keeps entries until they expire when their pattern is removed', () => {
    cache.setPatterns(names({ a: [1], b: [2] }), 0);
    addAnswer('a', '192.0.2.1');
    assert.deepEqual(cache.setPatterns(names({ b: [2] }), 0), []);
    assert.deepEqual(addAnswer('a', '192.0.2.2').add.elements, []);
    assert.deepEqual(elements(cache.snapshot(1000).elements), []);
    assert.deepEqual(elements(cache.setPatterns(names({ a: [3] }), 1000)), ['3 192.0.2.1 60000']);
  });

  it('continues with the restored entries of an earlier agent', () => {
    cache.restore(
      [
        { name: 'a', address: '192.0.2.1', timeoutMs: 5000 },
        { name: 'a', address: '192.0.2.2', timeoutMs: 50_000 },
        { name: 'b', address: '192.0.2.3', timeoutMs: 50_000 },
      ],
      100,
    );
    assert.deepEqual(elements(cache.setPatterns(names({ a: [1] }), 100)), [
      '1 192.0.2.1 5000',
      '1 192.0.2.2 50000',
    ]);
    const all = cache.snapshot(6100);
    assert.deepEqual(elements(all.elements), ['1 192.0.2.2 44000']);
    assert.deepEqual(answers(all.entries), ['a 192.0.2.2 44000', 'b 192.0.2.3 44000']);
  });

  it('drops expired entries', () => {
    cache.setPatterns(names({ '*.a': [1] }), 0);
    addAnswer('x.a', '192.0.2.1');
    cache.addAnswer('x.a', [{ address: '192.0.2.2', ttl: 90 }], 0);
    addAnswer('y.a', '192.0.2.1');
    assert.deepEqual(cache.stats(), { names: 2, addresses: 3, evictions: 0 });
    cache.expire(60_999);
    assert.equal(cache.stats().addresses, 3);
    cache.expire(61_000);
    assert.deepEqual(cache.stats(), { names: 1, addresses: 1, evictions: 0 });
  });

  it('never shortens the lifetime of an address', () => {
    cache.setPatterns(names({ a: [1] }), 0);
    cache.addAnswer('a', [{ address: '192.0.2.1', ttl: 90 }], 0);
    cache.addAnswer('a', [{ address: '192.0.2.1', ttl: 40 }], 0);
    assert.deepEqual(elements(cache.snapshot(0).elements), [`1 192.0.2.1 ${90_000 + MORE}`]);
    const twice = [
      { address: '192.0.2.9', ttl: 90 },
      { address: '192.0.2.9', ttl: 40 },
    ];
    assert.deepEqual(elements(cache.addAnswer('a', twice, 0).add.elements), [
      `1 192.0.2.9 ${90_000 + MORE}`,
    ]);
  });

  describe('limits', () => {
    const address = (number: number) => `198.18.${number >> 8}.${number & 255}`;
    const some = (first: number, count: number, ttl: number) =>
      Array.from({ length: count }, (_, index) => ({ address: address(first + index), ttl }));

    it('accept more than a hundred addresses of a name', () => {
      assert.ok(FQDN_CACHE_DEFAULTS.perName >= 100);
    });

    it('of one name evict the addresses that expire first', () => {
      cache = new FqdnCache({ ...OPTIONS, perName: 10 });
      cache.setPatterns(names({ '*.a': [1, 2], 'y.a': [3] }), 0);
      cache.addAnswer('y.a', [{ address: address(4), ttl: 100 }], 0);
      cache.addAnswer('x.a', some(0, 5, 50), 0);
      cache.addAnswer('x.a', some(5, 5, 100), 0);
      const { add, remove } = cache.addAnswer('x.a', some(10, 3, 40), 0);
      assert.equal(add.elements.length, 6);
      assert.deepEqual(
        remove.entries.map((answer) => answer.address),
        [address(0), address(1), address(2)],
      );
      assert.deepEqual(elements(remove.elements), [
        `1 ${address(0)} 0`,
        `1 ${address(1)} 0`,
        `1 ${address(2)} 0`,
        `2 ${address(0)} 0`,
        `2 ${address(1)} 0`,
        `2 ${address(2)} 0`,
      ]);
      // An address stays in the list if another name still has it.
      const next = cache.addAnswer('x.a', some(13, 2, 40), 0);
      assert.deepEqual(
        next.remove.entries.map((answer) => answer.address),
        [address(10), address(11)],
      );
      const last = cache.addAnswer('x.a', some(20, 9, 45), 0).remove;
      assert.ok(last.entries.some((answer) => answer.address === address(4)));
      assert.ok(!last.elements.some((element) => element.address === address(4)));
      assert.deepEqual(cache.stats(), { names: 2, addresses: 11, evictions: 14 });
    });

    it('of one name apply to a single answer', () => {
      cache = new FqdnCache({ ...OPTIONS, perName: 10 });
      cache.setPatterns(names({ a: [1] }), 0);
      cache.addAnswer('a', some(100, 5, 500), 0);
      const { add, remove } = cache.addAnswer('a', some(0, 12, 50), 0);
      assert.equal(add.entries.length, 10);
      assert.equal(remove.entries.length, 5);
    });

    it('of one name ignore expired addresses', () => {
      cache = new FqdnCache({ ...OPTIONS, perName: 10, total: 10 });
      cache.setPatterns(names({ a: [1] }), 0);
      cache.addAnswer('a', some(0, 10, 50), 0);
      const { remove } = cache.addAnswer('a', some(10, 10, 50), 51_000);
      assert.deepEqual(remove.entries, []);
      assert.deepEqual(cache.stats(), { names: 1, addresses: 10, evictions: 0 });
    });

    it('of all names evict from the pattern with most addresses', () => {
      cache = new FqdnCache({ ...OPTIONS, total: 80 });
      cache.setPatterns(names({ '*.flood': [1], '*.quiet': [2] }), 0);
      for (let index = 0; index < 20; index++) {
        cache.addAnswer(`n${index}.quiet`, some(1000 + index, 1, 40), 0);
      }
      for (let index = 0; index < 60; index++) {
        cache.addAnswer(`n${index}.flood`, some(index, 1, 100 + index), 0);
      }
      assert.equal(cache.stats().evictions, 0);
      const { remove } = cache.addAnswer('last.flood', some(200, 1, 30), 0);
      // An eighth of the limit, the earliest expiry first.
      assert.deepEqual(
        remove.entries.map(({ name }) => name),
        Array.from({ length: 11 }, (_, index) => `n${index}.flood`),
      );
      assert.deepEqual(
        elements(remove.elements),
        Array.from({ length: 11 }, (_, index) => `1 ${address(index)} 0`).sort(),
      );
      assert.deepEqual(cache.stats(), { names: 70, addresses: 70, evictions: 11 });
    });

    it('of all names evict evenly from patterns with equally many addresses', () => {
      cache = new FqdnCache({ ...OPTIONS, total: 80 });
      cache.setPatterns(names({ '*.one': [1], '*.two': [2] }), 0);
      for (let index = 0; index < 40; index++) {
        cache.addAnswer(`n${index}.one`, some(index, 1, 100), 0);
        cache.addAnswer(`n${index}.two`, some(1000 + index, 1, 1000), 0);
      }
      const { remove } = cache.addAnswer('last.one', some(200, 1, 30), 0);
      const evicted = Object.groupBy(remove.elements, ({ list }) => list);
      assert.deepEqual([evicted[1]?.length, evicted[2]?.length], [6, 5]);
    });

    it('of all names ignore expired addresses', () => {
      cache = new FqdnCache({ ...OPTIONS, total: 10 });
      cache.setPatterns(names({ '*.a': [1] }), 0);
      cache.addAnswer('x.a', some(0, 6, 50), 0);
      cache.addAnswer('y.a', some(10, 4, 500), 0);
      assert.deepEqual(cache.addAnswer('z.a', some(20, 4, 500), 51_000).remove.entries, []);
      assert.deepEqual(cache.stats(), { names: 2, addresses: 8, evictions: 0 });
    });

    it('of all names never evict the name of the current answer', () => {
      cache = new FqdnCache({ ...OPTIONS, total: 10 });
      cache.setPatterns(names({ a: [1] }), 0);
      assert.deepEqual(cache.addAnswer('a', some(0, 20, 60), 0).remove.entries, []);
      assert.equal(cache.stats().addresses, 20);
    });
  });

  it('is equivalent to a plain list of answers', () => {
    const LISTS = { '*.a': [1], 'x.a': [2], b: [1, 3] };
    const name = fc.constantFrom('x.a', 'y.a', 'b', 'c');
    const found = fc.record({
      address: fc.constantFrom('192.0.2.1', '192.0.2.2', '192.0.2.3', '2001:db8::1'),
      ttl: fc.nat({ max: 120 }),
    });
    const chosen = fc.subarray(Object.keys(LISTS) as (keyof typeof LISTS)[]);
    const step = fc.record({
      pause: fc.nat({ max: 40_000 }),
      name,
      found: fc.array(found, { maxLength: 3 }),
      lists: fc.option(chosen, { freq: 5 }),
    });
    checkProperty(
      fc.property(fc.array(step, { maxLength: 12 }), (steps) => {
        const subject = new FqdnCache(OPTIONS);
        let now = 0;
        let desired: Partial<typeof LISTS> = LISTS;
        subject.setPatterns(names(LISTS), now);
        /** All answers so far. */
        const history: { name: string; address: string; until: number }[] = [];
        /** Latest expiry of each element that was written to the kernel. */
        const given = new Map<string, number>();
        const give = (all: readonly FqdnElement[]) => {
          for (const { list, address, timeoutMs } of all) {
            const key = `${list} ${address}`;
            given.set(key, Math.max(given.get(key) ?? 0, now + timeoutMs));
          }
        };
        const patterns = () => {
          const index = new NamePatterns<readonly number[]>();
          for (const [pattern, lists] of Object.entries(desired)) index.set(pattern, lists);
          return index;
        };

        for (const { pause, name: asked, found: all, lists } of steps) {
          now += pause;
          if (lists !== null) {
            desired = Object.fromEntries(lists.map((pattern) => [pattern, LISTS[pattern]]));
            give(subject.setPatterns(names(desired as typeof LISTS), now));
          }
          give(subject.addAnswer(asked, all, now).add.elements);
          if (patterns().matches(asked)) {
            for (const { address, ttl } of all) {
              const until = now + Math.max(ttl * 1000, 30_000) + MORE;
              history.push({ name: asked, address, until });
            }
          }
          if (pause % 3 === 0) subject.expire(now);

          const index = patterns();
          const expected = new Map<string, number>();
          for (const { name: each, address, until } of history) {
            if (until <= now) continue;
            for (const list of new Set([...index.match(each)].flat())) {
              const key = `${list} ${address}`;
              expected.set(key, Math.max(expected.get(key) ?? 0, until));
            }
          }
          const written = new Map<string, number>();
          for (const { list, address, timeoutMs } of subject.snapshot(now).elements) {
            const key = `${list} ${address}`;
            written.set(key, Math.max(written.get(key) ?? 0, now + timeoutMs));
          }
          assert.deepEqual(new Map([...written].sort()), new Map([...expected].sort()));
          // The kernel has every cached address, for at least as long.
          for (const [key, until] of expected) assert.ok((given.get(key) ?? 0) >= until, key);
        }
      }),
    );
  });
});
