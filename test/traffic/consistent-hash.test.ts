import assert from 'node:assert/strict';
import type { Endpoint } from '../../endpoints/select.ts';
import { clientSlot, SLOTS, slotTable } from '../../traffic/consistent-hash.ts';
import { Random } from '../random.ts';

/** Different endpoints of one Service, with addresses as a CNI plug-in gives them. */
function endpointsOf(random: Random, count: number): Endpoint[] {
  const addresses = new Set<string>();
  while (addresses.size < count)
    addresses.add(`10.244.${random.integer(0, 9)}.${random.integer(2, 254)}`);
  return [...addresses].map((address) => ({ address, port: 8080 }));
}

function shuffled<T>(all: readonly T[], random: Random): T[] {
  return all
    .map((each) => [random.next(), each] as const)
    .sort(([a], [b]) => a - b)
    .map(([, each]) => each);
}

describe('consistent hashing', () => {
  it('gives each of 2 to 100 endpoints a share of the slots within 10 %', function () {
    this.timeout(60_000);
    for (let count = 2; count <= 100; count++) {
      const endpoints = endpointsOf(new Random(count), count);
      const shares = Map.groupBy(slotTable('default/web', endpoints), (each) => each);
      assert.equal(shares.size, count);
      for (const [{ address }, { length }] of shares) {
        const share = (length * count) / SLOTS;
        assert.ok(share > 0.9 && share < 1.1, `${address} of ${count}: ${share}`);
      }
    }
  });

  it('moves the clients of an endpoint that goes, and at most 5 % of the others', function () {
    this.timeout(60_000);
    for (let count = 2; count <= 100; count++) {
      const random = new Random(count);
      const endpoints = endpointsOf(random, count);
      const before = slotTable('default/web', endpoints);
      for (const gone of shuffled(endpoints, random).slice(0, 3)) {
        const after = slotTable(
          'default/web',
          endpoints.filter((each) => each !== gone),
        );
        const others = before.filter((each, slot) => each !== gone && each !== after[slot]);
        const own = before.filter((each) => each === gone);
        const [movedShare, limit] = [(others.length + own.length) / SLOTS, 1 / count + 0.05];
        assert.ok(others.length / SLOTS < 0.05, `${count}: ${others.length / SLOTS}`);
        assert.ok(movedShare < limit, `${count}: ${movedShare} of at most ${limit}`);
      }
    }
  });

  it('gives the same table for the same endpoints in any order and with any port', () => {
    const random = new Random(7);
    const endpoints = endpointsOf(random, 30);
    const table = slotTable('default/web', endpoints).map(({ address }) => address);
    for (let run = 0; run < 20; run++) {
      const others = shuffled(endpoints, random).map(({ address }) => ({ address, port: run }));
      assert.deepEqual(
        slotTable('default/web', others).map(({ address }) => address),
        table,
      );
    }
  });

  it('gives Services with the same endpoints different tables', () => {
    const endpoints = endpointsOf(new Random(1), 2);
    assert.notDeepEqual(slotTable('default/a', endpoints), slotTable('default/b', endpoints));
  });

  it('gives an address with two ports both of them', () => {
    const endpoints = [8080, 8081].map((port) => ({ address: '10.0.0.1', port }));
    const shares = Map.groupBy(slotTable('default/web', endpoints), (each) => each);
    assert.deepEqual([...shares.values()].map(({ length }) => length).sort(), [510, 511]);
  });

  it('gives no table without endpoints', () => {
    assert.deepEqual(slotTable('default/web', []), []);
  });

  it('spreads clients of one subnet over all slots', () => {
    const counts = new Array<number>(10).fill(0);
    for (let host = 0; host < 65_536; host++) {
      const slot = clientSlot('client-address', `10.1.${host >> 8}.${host & 255}`, 0);
      const part = Math.floor((slot * 10) / SLOTS);
      counts[part] = (counts[part] ?? 0) + 1;
    }
    for (const count of counts) assert.ok(count > 6200 && count < 6900, String(counts));
  });
});
