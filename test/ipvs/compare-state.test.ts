import assert from 'node:assert/strict';
import fc from 'fast-check';
import { ipvsBackend } from '../../ipvs/backend.ts';
import { serviceText } from '../../ipvs/items.ts';
import type { Backend } from '../../proxier/backend.ts';
import type { ComparedObject, Comparison } from '../../proxier/compared-object.ts';
import type { Route } from '../../services/route.ts';
import { route } from '../fixtures.ts';
import { arbitraryChange } from '../iptables/generated.ts';
import { feeder } from '../proxier/fed-backend.ts';
import { FakeTimers } from '../sync/fake-timers.ts';
import { FakeKernel } from './fake-kernel.ts';
import { ruleOptions } from './simulated-node.ts';

const VIP = '10.96.0.10';
const [A, B] = ['10.244.0.1', '10.244.0.2'] as const;
const WEB = route({ loadBalancerIPs: ['203.0.113.1'], sourceRanges: ['192.0.2.0/24'] }, [A, B]);
const WIDE = route(
  {
    id: 'wide',
    serviceKey: 'default/wide',
    name: 'default/wide',
    clusterIP: '10.96.0.11',
    match: { kind: 'ranges', ranges: [{ protocol: 'UDP', from: 5000, to: 5010 }] },
  },
  [A],
);

async function start(fake: FakeKernel, routes: readonly Route[] = []) {
  const options = {
    ...ruleOptions(),
    nodePortSelection: ['all'],
    scheduler: 'rr',
    allPorts: 'fwmark' as const,
    excludeCidrs: [],
    onWarning: () => {},
  };
  const backend = await ipvsBackend(fake.open(), fake.rules.iptables, options, new FakeTimers());
  backend.update(routes, []);
  return backend;
}

async function synced(fake: FakeKernel) {
  const backend = await start(fake, [WEB, WIDE]);
  await backend.apply(true);
  assert.deepEqual(await differences(backend), []);
  return backend;
}

async function compare(backend: Backend, service?: string): Promise<Comparison> {
  const result = await backend.compare?.(service);
  assert.ok(result);
  return result;
}

async function differences(backend: Backend, service?: string): Promise<ComparedObject[]> {
  const { objects } = await compare(backend, service);
  return objects.filter(({ state }) => state !== 'ok');
}

const TCP80 = { kind: 'address', family: 'IPv4', protocol: 'TCP', address: VIP, port: 80 } as const;
type Row = readonly [
  state: string,
  type: string,
  container: string,
  desired: string | null,
  actual: string | null,
  service: string | null,
];
const asRow = ({ state, type, in: where, desired, actual, service }: ComparedObject): Row => [
  state,
  type,
  where,
  desired,
  actual,
  service,
];
const RR = { scheduler: 'rr', schedulerFlags: 0, persistenceSeconds: 0 };
const RANGE = '10.96.0.11,udp:5000-5010 skbmark 0x1846';

const CASES: readonly (readonly [string, (fake: FakeKernel) => void, Row])[] = [
  [
    'a deleted destination',
    (fake) =>
      fake.write({
        op: 'delete-destination',
        key: TCP80,
        destination: { address: A, port: 8080 },
      }),
    [
      'missing',
      'IPVS destination',
      `TCP ${VIP}:80`,
      `-a -t ${VIP}:80 -r ${A}:8080 -m -w 1`,
      null,
      'default/web',
    ],
  ],
  [
    'a destination with another weight',
    (fake) => fake.set(`TCP ${VIP}:80`, `${A}:8080`, { weight: 7 }),
    [
      'changed',
      'IPVS destination',
      `TCP ${VIP}:80`,
      `-a -t ${VIP}:80 -r ${A}:8080 -m -w 1`,
      `-a -t ${VIP}:80 -r ${A}:8080 -m -w 7`,
      'default/web',
    ],
  ],
  [
    'an unknown destination',
    (fake) =>
      fake.write({
        op: 'add-destination',
        key: TCP80,
        destination: { address: '10.244.0.9', port: 8080, weight: 1 },
      }),
    [
      'unexpected',
      'IPVS destination',
      `TCP ${VIP}:80`,
      null,
      `-a -t ${VIP}:80 -r 10.244.0.9:8080 -m -w 1`,
      'default/web',
    ],
  ],
  [
    'a service with another scheduler',
    (fake) => fake.write({ op: 'edit-service', key: TCP80, config: { ...RR, scheduler: 'sh' } }),
    [
      'changed',
      'IPVS service',
      'IPVS',
      `-A -t ${VIP}:80 -s rr`,
      `-A -t ${VIP}:80 -s sh`,
      'default/web',
    ],
  ],
  [
    'a deleted set entry',
    (fake) =>
      fake.write({
        op: 'delete',
        set: 'KUBE-CLUSTER-IP',
        entry: { ip: VIP, protocol: 'TCP', port: 80 },
      }),
    [
      'missing',
      'ipset entry',
      'KUBE-CLUSTER-IP',
      `add KUBE-CLUSTER-IP ${VIP},tcp:80`,
      null,
      'default/web',
    ],
  ],
  [
    'an unknown allowed source',
    (fake) =>
      fake.write({
        op: 'add',
        set: 'KUBE-LOAD-BALANCER-SOURCE-CIDR',
        entry: { ip: '203.0.113.1', protocol: 'TCP', port: 80, ip2: '198.51.100.0/24' },
      }),
    [
      'unexpected',
      'ipset entry',
      'KUBE-LOAD-BALANCER-SOURCE-CIDR',
      null,
      'add KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.1,tcp:80,198.51.100.0/24',
      'default/web',
    ],
  ],
  [
    'a VIP that is not bound',
    (fake) => fake.addresses.delete(VIP),
    [
      'missing',
      'address',
      'kube-ipvs0',
      `${VIP}/32 dev kube-ipvs0 scope host`,
      null,
      'default/web',
    ],
  ],
  [
    'a VIP that the kernel may choose as source address',
    (fake) => fake.preferred.add(VIP),
    [
      'changed',
      'address',
      'kube-ipvs0',
      `${VIP}/32 dev kube-ipvs0 scope host`,
      `${VIP}/32 dev kube-ipvs0`,
      'default/web',
    ],
  ],
  [
    'one missing port of a range',
    (fake) =>
      fake.write({
        op: 'delete',
        set: 'KUBE-PORT-RANGES',
        entry: { ip: '10.96.0.11', protocol: 'UDP', port: 5004 },
      }),
    [
      'changed',
      'ipset entry',
      'KUBE-PORT-RANGES',
      `add KUBE-PORT-RANGES ${RANGE}`,
      `add KUBE-PORT-RANGES ${RANGE.replace('5010', '5003')}\nadd KUBE-PORT-RANGES ${RANGE.replace('5000', '5005')}`,
      'default/wide',
    ],
  ],
  [
    'a deleted rule',
    (fake) => fake.rules.tables.get('nat')?.restore('*nat\n:KUBE-MARK-MASQ - [0:0]\nCOMMIT\n'),
    [
      'missing',
      'rule',
      'nat',
      '-A KUBE-MARK-MASQ -j CONNMARK --set-xmark 0x4000/0x4000',
      null,
      null,
    ],
  ],
  [
    'a set of another type',
    (fake) => {
      const set = fake.sets.get('KUBE-DROP');
      assert.ok(set);
      fake.sets.set('KUBE-DROP', { ...set, spec: { ...set.spec, type: 'hash:ip' } });
    },
    [
      'changed',
      'ipset',
      'ipsets',
      'create KUBE-DROP hash:ip,port family inet maxelem 16777216',
      'create KUBE-DROP hash:ip family inet maxelem 16777216',
      null,
    ],
  ],
  [
    'a missing device',
    (fake) => {
      fake.hasDevice = false;
    },
    ['missing', 'device', 'links', 'kube-ipvs0', null, null],
  ],
];

describe('compare-state: mode ipvs', () => {
  for (const [title, tamper, row] of CASES) {
    it(`finds ${title}`, async () => {
      const fake = new FakeKernel();
      const backend = await synced(fake);
      fake.take();
      tamper(fake);
      const found = (await differences(backend)).map(asRow);
      const [, type, , , , owner] = row;
      // Without its device, no VIP is bound.
      const isRow = (each: Row) => type !== 'device' || each[1] === 'device';
      assert.deepEqual(found.filter(isRow), [row]);
      for (const key of ['default/web', 'default/wide']) {
        const one = (await differences(backend, key)).filter(
          (each) => type !== 'device' || each.type === 'device',
        );
        assert.deepEqual(one.map(asRow), key === owner ? [row] : [], key);
      }
      assert.deepEqual(fake.take(), [], 'it writes nothing');
      await backend.close();
    });
  }

  it('lists the services, destinations, entries, marks and addresses of one Service', async () => {
    const fake = new FakeKernel();
    const backend = await synced(fake);
    const { objects, compared } = await compare(backend, 'default/wide');
    assert.equal(compared, objects.length);
    assert.deepEqual(objects.map(({ desired }) => desired).sort(), [
      '-A -f 6214 -s rr',
      `-a -f 6214 -r ${A}:0 -m -w 1`,
      '10.96.0.11/32 dev kube-ipvs0 scope host',
      'add KUBE-ALL-PORTS-IPS 10.96.0.11',
      `add KUBE-ALL-PORTS-LOOP-BACK ${A},${A}`,
      'add KUBE-CLUSTER-IP-MARK 10.96.0.11,0x00001846',
      'add KUBE-IPVS-IPS 10.96.0.11',
      'add KUBE-MARKS 10.96.0.11,0x00001846 comment "default/wide cluster"',
      `add KUBE-PORT-RANGES ${RANGE}`,
    ]);
    assert.ok(objects.every(({ state, actual, desired }) => state === 'ok' && actual === desired));
    await backend.close();
  });

  it('reports no draining destination, and neither changes that wait for a sync', async () => {
    const fake = new FakeKernel();
    const backend = await synced(fake);
    fake.set(`TCP ${VIP}:80`, `${B}:8080`, { activeConnections: 1 });
    const fewer = { clusterEndpoints: WEB.clusterEndpoints.slice(0, 1) };
    backend.update([{ ...WEB, ...fewer, servingEndpoints: WEB.clusterEndpoints }], [WIDE.id]);
    for (const service of [undefined, 'default/web', 'default/wide']) {
      assert.deepEqual(await differences(backend, service), [], service);
    }
    await backend.apply(false);
    const draining = fake.services.get(`TCP ${VIP}:80`)?.destinations.get(`${B}:8080`);
    assert.equal(draining?.weight, 0);
    for (const service of [undefined, 'default/web', 'default/wide']) {
      assert.deepEqual(await differences(backend, service), [], service);
    }
    await backend.close();
  });

  it('tells which syncs and changes of the desired state ran meanwhile', async () => {
    const fake = new FakeKernel();
    const backend = await synced(fake);
    const { ended, begun } = (await compare(backend)).syncs;
    assert.equal(begun, ended);
    const comparing = compare(backend);
    backend.update([], [WIDE.id]);
    const sync = backend.apply(false);
    const { syncs } = await comparing;
    await sync;
    assert.equal(syncs.ended, ended);
    assert.ok(syncs.begun > ended);
    const alone = compare(backend);
    backend.update([WIDE], []);
    const seen = (await alone).syncs;
    assert.equal(seen.begun, seen.ended + 1);
    await backend.close();
  });

  it('keeps IPVS services, sets and rules of other programs out', async () => {
    const fake = new FakeKernel();
    const backend = await synced(fake);
    const { compared } = await compare(backend);
    fake.write({ op: 'add-service', key: { kind: 'mark', family: 'IPv4', mark: 7 }, config: RR });
    fake.rules.tables.get('nat')?.restore('*nat\n:DOCKER - [0:0]\nCOMMIT\n');
    const { syncs: _, ...again } = await compare(backend);
    assert.deepEqual(again, { compared, different: 0, objects: [] });
    await backend.close();
  });

  /** Deletes or changes one object. @returns what it is; undefined if there is none. */
  const MUTATIONS: readonly ((fake: FakeKernel, pick: number) => string | undefined)[] = [
    (fake, pick) => {
      const all = [...fake.services.values()].flatMap(({ service, destinations }) =>
        [...destinations.values()].map((destination) => ({ key: service.key, destination })),
      );
      const picked = all[pick % Math.max(all.length, 1)];
      // Weight 0 may mean that a destination drains.
      if (picked === undefined || picked.destination.weight === 0) return undefined;
      const { address, port } = picked.destination;
      fake.set(serviceText(picked.key), `${address}:${port}`, { weight: 9 });
      return `changed IPVS destination ${serviceText(picked.key)}`;
    },
    (fake, pick) => {
      const all = [...fake.sets].flatMap(([name, { entries }]) =>
        [...entries.keys()].map((key) => ({ name, key, entries })),
      );
      const picked = all[pick % Math.max(all.length, 1)];
      picked?.entries.delete(picked.key);
      return picked === undefined ? undefined : `missing ipset entry ${picked.name}`;
    },
    (fake) => {
      fake.write({
        op: 'add',
        set: 'KUBE-DROP',
        entry: { ip: '10.9.9.9', protocol: 'TCP', port: 9 },
      });
      return 'unexpected ipset entry KUBE-DROP';
    },
    (fake, pick) => {
      const picked = [...fake.addresses][pick % Math.max(fake.addresses.size, 1)];
      return picked !== undefined && fake.addresses.delete(picked)
        ? 'missing address kube-ipvs0'
        : undefined;
    },
  ];

  it('finds nothing after any syncs, then exactly what another program changed', async function () {
    this.timeout(60_000);
    await fc.assert(
      fc.asyncProperty(
        fc.array(arbitraryChange, { minLength: 1, maxLength: 12 }),
        fc.constantFrom(...MUTATIONS),
        fc.nat(1000),
        fc.boolean(),
        async (steps, mutate, pick, isFull) => {
          const fake = new FakeKernel();
          const backend = await start(fake);
          assert.equal((await compare(backend)).compared, 0);
          await backend.apply(true);
          const feed = feeder(backend, 'IPv4');
          for (const step of steps) {
            feed(step);
            assert.deepEqual(await differences(backend), [], 'changes to write are no differences');
            await backend.apply(isFull);
          }
          assert.deepEqual(await differences(backend), []);
          const expected = mutate(fake, pick);
          if (expected === undefined) return;
          const found = await differences(backend);
          const [first] = found;
          assert.equal(found.length, 1);
          // A range that lacks one port has changed.
          const summary = `${first?.state} ${first?.type} ${first?.in}`;
          assert.equal(summary.replace(/^changed ipset/, 'missing ipset'), expected);
          if (first?.service) assert.deepEqual(await differences(backend, first.service), found);
          await backend.close();
        },
      ),
      { numRuns: 100 },
    );
  });
});
