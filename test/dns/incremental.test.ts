/**
 * Property: after any changes, a zone equals a new zone with the same objects. The expected records
 * come from a simple model.
 */
import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import fc from 'fast-check';
import type {
  ApiObject,
  EndpointSlice,
  Kind,
  ObjectKey,
  Service,
  SliceEndpoint,
} from '../../api/objects.ts';
import { compareRecords, type DnsRecord } from '../../dns/records.ts';
import { Zone } from '../../dns/zone.ts';
import { endpoint, service, slice } from '../fixtures.ts';
import { allRecords, byName, linesOf, zoneWith } from './zone-fixtures.ts';

const DOMAIN = 'cluster.local';
const APEXES = ['cluster.local', 'in-addr.arpa', 'ip6.arpa'];
/** Few names and addresses, so that objects collide. */
const NAMES = ['a', 'b', 'c'];
const NAMESPACES = ['default', 'other'];
const ADDRESSES = {
  IPv4: ['10.1.0.1', '10.1.0.2', '10.2.0.1'],
  IPv6: ['fd00::1', 'fd00::10', 'fd01::1'],
};

type Change =
  | { readonly upsert: ApiObject }
  | { readonly remove: { readonly kind: Kind; readonly key: ObjectKey } };

const portNames = fc.constantFrom('', 'http', 'x'.repeat(63));
const protocols = fc.constantFrom('TCP' as const, 'UDP' as const);

const oneService: fc.Arbitrary<Service> = fc
  .record({
    name: fc.constantFrom(...NAMES),
    namespace: fc.constantFrom(...NAMESPACES),
    form: fc.constantFrom('cluster IP', 'headless', 'headless', 'external'),
    clusterIPs: fc.tuple(
      fc.constantFrom([], ...ADDRESSES.IPv4.map((address) => [address])),
      fc.constantFrom([], ...ADDRESSES.IPv6.map((address) => [address])),
    ),
    externalName: fc.constantFrom(undefined, 'example.com', 'www.example.com', 'a b', '10.1.0.1'),
    portsAnnotation: fc.constantFrom(undefined, undefined, 'all', '80-90', 'x'),
    publishNotReadyAddresses: fc.boolean(),
    ports: fc.uniqueArray(
      fc.record({
        name: portNames,
        protocol: protocols,
        port: fc.constantFrom(80, 81),
        nodePort: fc.constant(0),
      }),
      { selector: ({ name }) => name, maxLength: 2 },
    ),
  })
  .map(({ form, clusterIPs, externalName, ...rest }) =>
    service({
      ...rest,
      type: form === 'external' ? 'ExternalName' : 'ClusterIP',
      headless: form === 'headless',
      clusterIPs: form === 'cluster IP' ? clusterIPs.flat() : [],
      externalName: form === 'external' ? externalName : undefined,
    }),
  );

const oneEndpoint = (addresses: readonly string[]): fc.Arbitrary<SliceEndpoint> =>
  fc
    .record({
      address: fc.constantFrom(...addresses),
      ready: fc.boolean(),
      hostname: fc.constantFrom(undefined, undefined, 'h', 'i'),
    })
    .map(({ address, ...rest }) => endpoint(address, rest));

const oneSlice: fc.Arbitrary<EndpointSlice> = fc
  .constantFrom('IPv4' as const, 'IPv6' as const)
  .chain((family) =>
    fc.record({
      family: fc.constant(family),
      name: fc.constantFrom('s', 't', 'u', 'v'),
      namespace: fc.constantFrom(...NAMESPACES),
      owner: fc.constantFrom(...NAMES),
      ports: fc.uniqueArray(
        fc.record({
          name: portNames,
          protocol: protocols,
          port: fc.constantFrom(80, 8080, undefined),
        }),
        { selector: ({ name }) => name, maxLength: 2 },
      ),
      endpoints: fc.array(oneEndpoint(ADDRESSES[family]), { maxLength: 3 }),
    }),
  )
  .map(({ namespace, owner, endpoints, ...rest }) =>
    slice(endpoints, {
      ...rest,
      namespace,
      key: `${namespace}/${rest.name}`,
      serviceKey: `${namespace}/${owner}`,
    }),
  );

const change: fc.Arbitrary<Change> = fc.oneof(
  { arbitrary: oneService.map((upsert) => ({ upsert })), weight: 4 },
  { arbitrary: oneSlice.map((upsert) => ({ upsert })), weight: 4 },
  {
    arbitrary: fc.oneof(oneService, oneSlice).map(({ kind, key }) => ({ remove: { kind, key } })),
    weight: 2,
  },
);

/** All changes concern one Service, so that it has several slices. */
const changeOfOneService = change.map((each): Change => {
  if (!('upsert' in each)) return each;
  const { upsert } = each;
  const key = 'default/a';
  if (upsert.kind === 'EndpointSlice') return { upsert: { ...upsert, serviceKey: key } };
  if (upsert.kind !== 'Service') return each;
  return { upsert: { ...upsert, name: 'a', namespace: 'default', key } };
});

/** The expected records, computed from all objects each time. */
class Model {
  readonly objects = new Map<string, ApiObject>();

  apply(step: Change): void {
    if ('upsert' in step) this.objects.set(`${step.upsert.kind} ${step.upsert.key}`, step.upsert);
    else this.objects.delete(`${step.remove.kind} ${step.remove.key}`);
  }

  records(): DnsRecord[] {
    const all = [...this.objects.values()];
    const slices = all.filter((object) => object.kind === 'EndpointSlice');
    return all
      .filter((object) => object.kind === 'Service')
      .flatMap((object) => {
        const own = slices.filter(({ serviceKey }) => serviceKey === object.key);
        return [...byName(allRecords(object, own, DOMAIN).records).values()].flat();
      });
  }

  /** Records by name; an empty list for an empty non-terminal. */
  names(): Map<string, DnsRecord[]> {
    const names = new Map<string, DnsRecord[]>();
    for (const record of this.records()) {
      names.set(record.name, [...(names.get(record.name) ?? []), record].sort(compareRecords));
      const labels = record.name.split('.');
      for (let from = 1; from < labels.length; from++) {
        const above = labels.slice(from).join('.');
        const isWithin = APEXES.some((apex) => above === apex || above.endsWith(`.${apex}`));
        if (isWithin && !names.has(above)) names.set(above, []);
      }
    }
    return names;
  }
}

function apply(zone: Zone, step: Change): void {
  if ('upsert' in step) zone.upsert(step.upsert);
  else zone.remove(step.remove.kind, step.remove.key);
}

function answers(
  zone: Zone,
  names: Iterable<string>,
): Record<string, readonly string[] | undefined> {
  return Object.fromEntries([...names].map((name) => [name, linesOf(zone, name)]));
}

/** Targets of the PTR records of an address; addresses here are `10.*` and `fd0x::x`. */
function pointers(zone: Zone, address: string): string[] {
  const parts = address.includes(':')
    ? address.split('::').map((part, index) => (index === 0 ? part : part.padStart(28, '0')))
    : address.split('.');
  const digits = address.includes(':') ? [...parts.join('')] : parts;
  const domain = address.includes(':') ? 'ip6.arpa' : 'in-addr.arpa';
  const records = zone.lookup([...digits.reverse(), domain].join('.')) ?? [];
  return records.flatMap((record) => (record.type === 'PTR' ? [record.data] : []));
}

function addresses(zone: Zone, name: string): string[] {
  const records = zone.lookup(name) ?? [];
  return records.flatMap((record) =>
    record.type === 'A' || record.type === 'AAAA' ? [record.data] : [],
  );
}

describe('incremental: Zone', () => {
  it('has the records of a new zone after any changes, and a higher serial after each difference', () => {
    fc.assert(
      fc.property(fc.array(change, { minLength: 1, maxLength: 25 }), (steps) => {
        const zone = zoneWith([]);
        const model = new Model();
        const everSeen = new Set(['svc.cluster.local', 'dns-version.cluster.local']);
        for (const step of steps) {
          const { serial } = zone;
          const before = answers(zone, everSeen);
          apply(zone, step);
          model.apply(step);
          const names = model.names();
          for (const name of names.keys()) everSeen.add(name);

          const after = answers(zone, everSeen);
          const isNew = Object.entries(after).some(
            ([name, lines]) => JSON.stringify(lines) !== JSON.stringify(before[name]),
          );
          if (isNew) assert.ok(zone.serial > serial);
          for (const [name, records] of names) assert.deepEqual(zone.lookup(name), records, name);
          // Names that no longer exist, except static ones.
          const gone = [...everSeen].filter((name) => !names.has(name));
          for (const name of gone) {
            assert.deepEqual(linesOf(zone, name), linesOf(zoneWith([]), name), name);
          }
          // In another order.
          const fresh = zoneWith([...model.objects.values()].reverse());
          assert.deepEqual(after, answers(fresh, everSeen));
          assert.deepEqual(zone.sizes, fresh.sizes);
          const lists = [...names.values()];
          assert.equal(zone.sizes.names, lists.filter(({ length }) => length > 0).length);
        }
      }),
      { seed: 2610, numRuns: 300 },
    );
  });

  it('has them also if changes arrive while others take several turns of the event loop', async () => {
    const step = fc.record({ change: changeOfOneService, turns: fc.constantFrom(0, 0, 0, 1, 2) });
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 1, maxLength: 25 }), async (steps) => {
        const zone = new Zone({ clusterDomain: DOMAIN, workPerTurn: 1 });
        zone.synced('Service');
        zone.synced('EndpointSlice');
        const model = new Model();
        const everSeen = new Set<string>();
        for (const { change, turns } of steps) {
          apply(zone, change);
          model.apply(change);
          for (const name of model.names().keys()) everSeen.add(name);
          for (let turn = 0; turn < turns; turn++) await nextTurn();
        }
        // Each turn recomputes at least one slice.
        for (let turn = 0; turn < steps.length; turn++) await nextTurn();
        const fresh = zoneWith([...model.objects.values()]);
        assert.deepEqual(answers(zone, everSeen), answers(fresh, everSeen));
        assert.deepEqual(zone.sizes, fresh.sizes);
      }),
      { seed: 2613, numRuns: 300 },
    );
  });

  it('has a PTR record for every cluster IP and headless endpoint, to a name with that address', () => {
    fc.assert(
      fc.property(fc.array(change, { maxLength: 25 }), (steps) => {
        const model = new Model();
        for (const step of steps) model.apply(step);
        const objects = [...model.objects.values()];
        const zone = zoneWith(objects);
        for (const object of objects) {
          if (object.kind !== 'Service' || object.type === 'ExternalName') continue;
          const own = `${object.name}.${object.namespace}.svc.cluster.local`;
          for (const address of object.clusterIPs) {
            assert.ok(pointers(zone, address).includes(own));
            assert.ok(addresses(zone, own).includes(address));
          }
          const endpoints = objects
            .filter((slice) => slice.kind === 'EndpointSlice')
            .filter((slice) => object.headless && slice.serviceKey === object.key)
            .flatMap((slice) => slice.endpoints)
            .filter(({ ready }) => ready || object.publishNotReadyAddresses);
          for (const { address, hostname } of endpoints) {
            const host = pointers(zone, address).find(
              (name) =>
                name.endsWith(`.${own}`) &&
                (hostname === undefined || name.startsWith(`${hostname}.`)),
            );
            assert.ok(host !== undefined && addresses(zone, host).includes(address));
            assert.ok(addresses(zone, own).includes(address));
          }
        }
      }),
      { seed: 2612, numRuns: 200 },
    );
  });

  it('is empty after all objects are removed, in any order', () => {
    fc.assert(
      fc.property(fc.array(change, { maxLength: 30 }), fc.nat(), (steps, turn) => {
        const zone = zoneWith([]);
        const model = new Model();
        for (const step of steps) {
          apply(zone, step);
          model.apply(step);
        }
        const left = [...model.objects.values()];
        const from = left.length === 0 ? 0 : turn % left.length;
        for (const { kind, key } of [...left.slice(from), ...left.slice(0, from)]) {
          zone.remove(kind, key);
        }
        assert.deepEqual(zone.sizes, { services: 0, slices: 0, names: 0, parents: 0 });
      }),
      { seed: 2611, numRuns: 300 },
    );
  });
});
