import assert from 'node:assert/strict';
import { isDeepStrictEqual } from 'node:util';
import fc from 'fast-check';
import { MAX_IMMUTABLE, RecordStore } from '../../dns/record-store.ts';
import { type DnsRecord, type SrvGroup, srvRecord } from '../../dns/records.ts';
import { byName } from './zone-fixtures.ts';

const NAME = 'web.default.svc.cluster.local';
const store = () => new RecordStore(new Set(['cluster.local']));
const record = (index: number): DnsRecord => ({
  name: NAME,
  type: 'A',
  data: `10.0.0.${String(index).padStart(6, '0')}`,
});
const numbers = (records: readonly DnsRecord[] | undefined) =>
  (records ?? []).map(({ data }) => Number(String(data).slice('10.0.0.'.length)));

describe('record-store: RecordStore', () => {
  it('stores a record while it was added more often than removed', () => {
    const records = store();
    assert.equal(records.add([record(1), record(1)]), true);
    assert.equal(records.add([record(1)]), false);
    assert.equal(records.remove([record(1)]), false);
    assert.equal(records.remove([record(1)]), false);
    assert.deepEqual(numbers(records.get(NAME)), [1]);
    assert.equal(records.remove([record(1)]), true);
    assert.equal(records.get(NAME), undefined);
    assert.deepEqual(records.sizes, { names: 0, parents: 0 });
  });

  it('has sorted lists of any length after any additions and removals', () => {
    const batch = fc.array(fc.nat(30), { maxLength: 10 });
    fc.assert(
      fc.property(fc.array(batch, { maxLength: 20 }), fc.boolean(), (batches, isLong) => {
        const records = store();
        // Long lists change in place.
        const filler = Array.from({ length: isLong ? MAX_IMMUTABLE + 1 : 0 }, (_, index) =>
          record(index * 2 + 1000),
        );
        records.add(filler);
        const counts = new Map<number, number>();
        const added: number[][] = [];
        for (const [index, one] of batches.entries()) {
          const removed = index % 3 === 2 ? added.shift() : undefined;
          if (removed !== undefined) records.remove(removed.map(record));
          for (const each of removed ?? []) counts.set(each, (counts.get(each) ?? 0) - 1);
          records.add(one.map(record));
          for (const each of one) counts.set(each, (counts.get(each) ?? 0) + 1);
          added.push(one);
          const expected = [...counts.entries()].filter(([, count]) => count > 0);
          assert.deepEqual(numbers(records.get(NAME)), [
            ...expected.map(([each]) => each).sort((a, b) => a - b),
            ...numbers(filler),
          ]);
        }
        records.remove([...added.flat().map(record), ...filler]);
        assert.deepEqual(records.sizes, { names: 0, parents: 0 });
      }),
      { seed: 35, numRuns: 200 },
    );
  });

  it('has the SRV records of all slices, or one more than wanted, repeated ones last', () => {
    const group = fc.record({
      ports: fc.array(fc.nat(3), { minLength: 1, maxLength: 2 }),
      targets: fc.array(fc.constantFrom('a', 'b', 'c', 'd'), { minLength: 1, maxLength: 4 }),
    });
    const change = fc.tuple(fc.constantFrom('s', 't', 'u'), fc.option(group, { nil: undefined }));
    const name = `_http._tcp.${NAME}`;
    fc.assert(
      fc.property(fc.array(change, { maxLength: 10 }), fc.nat(20), (changes, most) => {
        const records = store();
        const groups = new Map<string, SrvGroup>();
        for (const [slice, each] of changes) {
          const made = each && { ports: new Map([[name, each.ports]]), targets: each.targets };
          records.setSrvGroup(slice, made);
          if (made === undefined) groups.delete(slice);
          else groups.set(slice, made);
        }
        const all = [...groups.values()].flatMap(({ ports, targets }) =>
          (ports.get(name) ?? []).flatMap((port) =>
            targets.map((target) => srvRecord(name, port, target)),
          ),
        );
        const expected = byName(all).get(name);
        assert.deepEqual(records.get(name), expected);
        const some = records.get(name, most);
        if (all.length <= most) assert.deepEqual(some, expected);
        else assert.equal(some?.length, most + 1);
        for (const each of some ?? []) assert.ok(all.some((one) => isDeepStrictEqual(one, each)));
        assert.equal(records.get(`_tcp.${NAME}`)?.length, all.length === 0 ? undefined : 0);
        for (const slice of groups.keys()) records.setSrvGroup(slice, undefined);
        assert.deepEqual(records.sizes, { names: 0, parents: 0 });
      }),
      { seed: 35, numRuns: 300 },
    );
  });

  it('replaces a short list, and changes a long one in place', () => {
    const records = store();
    records.add([record(1)]);
    const short = records.get(NAME);
    records.add(Array.from({ length: MAX_IMMUTABLE }, (_, index) => record(index + 2)));
    assert.deepEqual(numbers(short), [1]);
    const long = records.get(NAME);
    assert.equal(long?.length, MAX_IMMUTABLE + 1);
    records.remove([record(1)]);
    assert.equal(records.get(NAME), long);
    assert.equal(long.length, MAX_IMMUTABLE);
    records.remove([record(2)]);
    assert.notEqual(records.get(NAME), long);
    assert.equal(long.length, MAX_IMMUTABLE);
  });
});
