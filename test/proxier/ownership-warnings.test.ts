import assert from 'node:assert/strict';
import fc from 'fast-check';
import { RouteTable } from '../../proxier/route-table.ts';
import { endpoint, pod, service, slice } from '../fixtures.ts';

const newTable = () =>
  new RouteTable({ nodeName: 'node-a', allPortsEnabled: true, onChange: () => {} });

const NAMES = ['a', 'b', 'c'] as const;
const name = fc.constantFrom(...NAMES);
type Change = (table: RouteTable) => void;

const serviceChange = fc
  .record({
    name,
    ports: fc.constantFrom('20000-20099/UDP', '20000-20199/UDP', '20010-20109/UDP', undefined),
    year: fc.integer({ min: 2024, max: 2026 }),
    vip: fc.integer({ min: 1, max: 6 }),
  })
  .map(({ name, ports, year, vip }): Change => {
    const object = service({
      name,
      clusterIPs: [`10.96.0.${vip}`],
      creationTimestamp: `${year}-01-01T00:00:00Z`,
      ...(ports !== undefined && { ownedPortsAnnotation: ports, portsPerPodAnnotation: '10' }),
    });
    return (table) => table.upsert(object);
  });
const podEndpoint = fc
  .record({
    address: fc.integer({ min: 1, max: 3 }).map((last) => `10.244.0.${last}`),
    ordinal: fc.constantFrom(0, 0, 0, 1, 99),
    ordinalPrefix: fc.constantFrom('blue-', 'green-'),
  })
  .map(({ address, ...fields }) => endpoint(address, fields));
const podsChange = fc
  .record({ name, pods: fc.array(podEndpoint, { minLength: 1, maxLength: 3 }) })
  .map(({ name, pods }): Change => {
    const object = slice(pods, { name, serviceKey: `default/${name}`, ports: [] });
    return (table) => table.upsert(object);
  });
const podChange = fc
  .record({
    address: fc.integer({ min: 1, max: 3 }).map((last) => `10.244.0.${last}`),
    name: fc.constantFrom('old', 'new', 'other'),
    kind: fc.constantFrom('pod', 'pod', 'host network', 'finished', 'gone'),
  })
  .map(({ address, name, kind }): Change => {
    const object = pod({
      name: `${name}-${address}`,
      addresses: [address],
      hostNetwork: kind === 'host network',
      finished: kind === 'finished',
    });
    return (table) => {
      if (kind === 'gone') table.remove('Pod', object.key);
      else table.upsert(object);
    };
  });
const removal = fc.tuple(fc.constantFrom('Service', 'EndpointSlice'), name).map(
  ([kind, each]): Change =>
    (table) =>
      table.remove(kind, `default/${each}`),
);
const change = fc.oneof(
  { arbitrary: serviceChange, weight: 4 },
  { arbitrary: podsChange, weight: 6 },
  { arbitrary: removal, weight: 1 },
  { arbitrary: podChange, weight: 8 },
);

const allWarnings = (table: RouteTable) =>
  NAMES.flatMap((each) => table.inspect(`default/${each}`)?.warnings ?? []).map(
    ({ serviceKey, message }) => `${serviceKey} ${message}`,
  );

describe('ownership warnings', () => {
  it('are the same after many small changes as after a first list', () => {
    let shared = 0;
    fc.assert(
      fc.property(
        fc.array(fc.tuple(change, fc.nat(2)), { minLength: 20, maxLength: 60 }),
        (steps) => {
          const [table, listed] = [newTable(), newTable()];
          for (const [apply, limit] of steps) {
            apply(table);
            apply(listed);
            table.takeChanges({ services: limit, cost: limit });
          }
          table.takeChanges();
          listed.takeChanges();
          const warnings = allWarnings(table);
          assert.deepEqual(warnings, allWarnings(listed));
          if (warnings.some((text) => text.includes('own the same UDP ports by'))) shared++;
        },
      ),
      { seed: 42, numRuns: 300 },
    );
    assert.ok(shared > 20, `${shared} runs with pods that own a port by two Services`);
  });
});
