import assert from 'node:assert/strict';
import { constants } from 'node:os';
import { DesiredItems } from '../../ipvs/desired-items.ts';
import type { IpvsItem } from '../../ipvs/items.ts';
import { connectedVips, IpvsApplyError } from '../../ipvs/kernel.ts';
import { type SetName, setSpec } from '../../ipvs/sets.ts';
import { EAFNOSUPPORT, EINVAL, ENOENT } from '../../netlink/core/error.ts';
import type { IpsetSpec } from '../../netlink/ipset/ipset.ts';
import { FakeKernel } from './fake-kernel.ts';

const { ENOMEM } = constants.errno;
const VIP = '10.96.0.10';
const POD = { address: '10.244.0.1', port: 0 };
const OTHER = { address: '10.244.0.2', port: 0 };

const service = { kind: 'mark', family: 'IPv4', mark: 4098 } as const;
const config = { scheduler: 'rr', schedulerFlags: 0, persistenceSeconds: 0 };
const SERVICE = { kind: 'service', service, config } as const;
const entry = (set: SetName, port = 0): IpvsItem => ({
  kind: 'entry',
  set,
  entry: { ip: VIP, port },
});
const destination = (pod: typeof POD): IpvsItem => ({
  kind: 'destination',
  service,
  destination: pod,
});
const bound = (address: string): IpvsItem => ({ kind: 'address', address });

/** A kernel with the device and all sets. */
async function prepared() {
  const fake = new FakeKernel();
  const kernel = fake.open();
  await kernel.prepare(new DesiredItems());
  fake.take();
  return { fake, kernel };
}

describe('kernel: writing items', () => {
  it('adds items stage by stage, and removes them in reverse order', async () => {
    const { fake, kernel } = await prepared();
    const items = [
      bound(VIP),
      entry('KUBE-PORT-RANGES', 80),
      entry('KUBE-CLUSTER-IP', 80),
      destination(POD),
      SERVICE,
      entry('KUBE-LOAD-BALANCER-FW', 80),
      entry('KUBE-LOAD-BALANCER-SOURCE-IP', 80),
    ];
    await kernel.add(items);
    assert.deepEqual(fake.take(), [
      `add KUBE-LOAD-BALANCER-SOURCE-IP ${VIP} 80`,
      `add KUBE-LOAD-BALANCER-FW ${VIP} 80`,
      'add-service FWM 4098',
      'add-destination FWM 4098 > 10.244.0.1:0 weight 1',
      `add KUBE-CLUSTER-IP ${VIP} 80`,
      `add KUBE-PORT-RANGES ${VIP} 80`,
      `add address ${VIP}`,
    ]);
    await kernel.remove(items.toReversed());
    assert.deepEqual(fake.take(), [
      `remove address ${VIP}`,
      `delete KUBE-PORT-RANGES ${VIP} 80`,
      `delete KUBE-CLUSTER-IP ${VIP} 80`,
      'delete-destination FWM 4098 > 10.244.0.1:0',
      'delete-service FWM 4098',
      `delete KUBE-LOAD-BALANCER-FW ${VIP} 80`,
      `delete KUBE-LOAD-BALANCER-SOURCE-IP ${VIP} 80`,
    ]);
  });

  it('updates items that exist', async () => {
    const { fake, kernel } = await prepared();
    await kernel.add([SERVICE, destination(POD)]);
    fake.set('FWM 4098', '10.244.0.1:0', { weight: 0, activeConnections: 3 });
    await kernel.add([
      { ...SERVICE, config: { ...config, persistenceSeconds: 60 } },
      destination(POD),
    ]);
    const found = fake.services.get('FWM 4098');
    assert.equal(found?.service.persistenceSeconds, 60);
    const state = found?.destinations.get('10.244.0.1:0');
    assert.deepEqual([state?.weight, state?.activeConnections], [1, 3]);
  });

  it('ignores a missing item when it removes or drains, but not when it sets a weight above 0', async () => {
    const { fake, kernel } = await prepared();
    const edit = (weight: number) =>
      kernel.change([{ op: 'edit-destination', key: service, destination: { ...POD, weight } }]);
    await kernel.remove([SERVICE, destination(POD)]);
    await edit(0);
    await kernel.add([SERVICE]);
    await kernel.remove([destination(POD)]);
    await edit(0);
    assert.equal(fake.take().length, 6);
    await assert.rejects(edit(1), IpvsApplyError);
  });

  it('tries all items, then reports the failed items', async () => {
    const { fake, kernel } = await prepared();
    fake.errors
      .set('add-destination FWM 4098 > 10.244.0.1:0 weight 1', EINVAL)
      .set(`add KUBE-PORT-RANGES ${VIP} 80`, ENOMEM)
      .set(`add address ${VIP}`, ENOMEM);
    const items: IpvsItem[] = [
      SERVICE,
      ...[POD, OTHER].map(destination),
      ...[80, 81].map((port) => entry('KUBE-PORT-RANGES', port)),
      ...[VIP, '10.96.0.11'].map(bound),
    ];
    const error: unknown = await kernel.add(items).catch((reason) => reason);
    assert.ok(error instanceof IpvsApplyError);
    assert.deepEqual(
      error.failures.map(([what, { errno }]) => [what, errno]),
      [
        ['add-destination FWM 4098 > 10.244.0.1:0', EINVAL],
        [`entry ${VIP} 80 of ipset KUBE-PORT-RANGES`, ENOMEM],
        [`address ${VIP} on kube-ipvs0`, ENOMEM],
      ],
    );
    assert.equal(fake.services.get('FWM 4098')?.destinations.has('10.244.0.2:0'), true);
    assert.equal(fake.sets.get('KUBE-PORT-RANGES')?.entries.size, 1);
    assert.deepEqual([...fake.addresses], ['10.96.0.11']);

    fake.errors.clear();
    fake.errors.set('edit-service FWM 4098', ENOMEM).set('delete-service FWM 4098', ENOMEM);
    await assert.rejects(kernel.add(items), /edit-service FWM 4098/);
    await assert.rejects(kernel.remove([...items, entry('KUBE-MARKS')]), /delete-service FWM 4098/);
    assert.equal(fake.take().at(-1), `delete KUBE-MARKS ${VIP} 0`, 'the last stage');
  });

  it('lists VIPs of its family on the dummy device', async () => {
    for (const [family, expected] of [
      ['IPv4', VIP],
      ['IPv6', 'fd00:10:96::a'],
    ] as const) {
      const fake = new FakeKernel(family);
      for (const address of [VIP, 'fd00:10:96::a']) fake.addresses.add(address);
      const bound = async () => (await fake.open().addresses()).map(({ address }) => address);
      assert.deepEqual(await bound(), [], 'without a device');
      fake.hasDevice = true;
      assert.deepEqual(await bound(), [expected]);
    }
  });
});

describe('kernel: device and sets', () => {
  const DESIRED = [{ ip: VIP }, { ip: '10.96.0.11' }];

  /** A prepared kernel in which another program has created one set, with an entry. */
  async function withSet(name: SetName, fields: Partial<IpsetSpec>) {
    const { fake, kernel } = await prepared();
    const entries = new Map([['stale', { ip: '10.96.0.99' }]]);
    fake.sets.set(name, { spec: { ...setSpec(name, 'IPv4'), ...fields }, entries });
    const desired = new DesiredItems();
    for (const entry of DESIRED) desired.addReference({ kind: 'entry', set: name, entry });
    const prepare = () => kernel.prepare(desired);
    const held = () => [...(fake.sets.get(name)?.entries.values() ?? [])].map(({ ip }) => ip);
    return { fake, prepare, held };
  }

  it('creates device and sets once for each family', async () => {
    for (const [family, marks] of [
      ['IPv4', 'KUBE-MARKS'],
      ['IPv6', 'KUBE-6-MARKS'],
    ] as const) {
      const fake = new FakeKernel(family);
      const kernel = fake.open();
      assert.equal(await kernel.findDrift(() => false), 'device kube-ipvs0');
      assert.equal(await kernel.prepare(new DesiredItems()), fake.take().length);
      assert.ok(fake.hasDevice && fake.sets.has(marks));
      assert.equal(await kernel.prepare(new DesiredItems()), 0);
      assert.deepEqual(fake.take(), []);
      assert.equal(await kernel.findDrift(() => false), undefined);
      assert.equal(
        await kernel.findDrift((set) => set === 'KUBE-MARKS'),
        `entries of ipset ${marks}`,
      );
    }
  });

  it('accepts that the other family creates the device at the same time', async () => {
    const fake = new FakeKernel();
    fake.errors.set('link kube-ipvs0', ENOMEM);
    await assert.rejects(fake.open().prepare(new DesiredItems()), { errno: ENOMEM });
    fake.errors.clear();
    fake.onLine = () => {
      fake.hasDevice = true;
    };
    await fake.open().prepare(new DesiredItems());
  });

  for (const [title, name, fields] of [
    ['is too small', 'KUBE-ALL-PORTS', { maxElements: 65_536 }],
    ['sets no marks', 'KUBE-ALL-PORTS', { skbinfo: false }],
    ['has no comments', 'KUBE-MARKS', { comments: false }],
  ] as const) {
    it(`swaps a set for a set with the desired entries when it ${title}`, async () => {
      const { fake, prepare, held } = await withSet(name, fields);
      const spec = setSpec(name, 'IPv4');
      // Left by a killed agent.
      const left = { ...spec, name: 'KUBE-TMP' };
      fake.sets.set('KUBE-TMP', { spec: left, entries: new Map([['stale', {}]]) });
      assert.equal(await prepare(), 1);
      assert.deepEqual(fake.take(), [
        'destroy KUBE-TMP',
        'create KUBE-TMP',
        ...DESIRED.map(({ ip }) => `add KUBE-TMP ${ip}`),
        `swap KUBE-TMP ${name}`,
        'destroy KUBE-TMP',
      ]);
      assert.deepEqual(fake.sets.get(name)?.spec, spec);
      assert.deepEqual(held(), [VIP, '10.96.0.11']);
    });
  }

  it('keeps a set when its replacement cannot be filled', async () => {
    const { fake, prepare, held } = await withSet('KUBE-ALL-PORTS', { skbinfo: false });
    fake.errors.set('add KUBE-TMP 10.96.0.11', ENOMEM);
    await assert.rejects(prepare(), { errno: ENOMEM });
    assert.deepEqual(held(), ['10.96.0.99']);
  });

  for (const fields of [{ type: 'hash:ip,port' }, { family: 'IPv6' }] as const) {
    it(`recreates a set when it is of ${Object.values(fields)}`, async () => {
      const { fake, prepare, held } = await withSet('KUBE-ALL-PORTS', fields);
      assert.equal(await prepare(), 1);
      assert.deepEqual(fake.take(), ['destroy KUBE-ALL-PORTS', 'create KUBE-ALL-PORTS']);
      assert.deepEqual(held(), []);
    });
  }

  it('keeps a set when it is larger than needed', async () => {
    const { fake, prepare, held } = await withSet('KUBE-CLUSTER-IP', { maxElements: 1 << 24 });
    assert.equal(await prepare(), 0);
    assert.deepEqual(fake.take(), []);
    assert.deepEqual(held(), ['10.96.0.99']);
  });
});

describe('kernel: probe', () => {
  for (const [errno, lacks] of [
    [ENOENT, { name: 'SchedulerMissingError', scheduler: 'mh' }],
    [EAFNOSUPPORT, { name: 'UnsupportedError', feature: 'IPVS for IPv6' }],
    [ENOMEM, { errno: ENOMEM }],
  ] as const) {
    it(`fails when the kernel lacks support: ${JSON.stringify(lacks)}`, async () => {
      const fake = new FakeKernel('IPv6');
      fake.errors.set('add-service TCP 2001:db8:::20000', errno);
      await assert.rejects(fake.open().probe('mh'), lacks);
    });
  }

  it('leaves no probe objects when the kernel supports everything', async () => {
    const fake = new FakeKernel();
    await fake.open().probe('rr');
    assert.deepEqual([fake.services.size, fake.sets.size], [0, 0]);
  });
});

describe('kernel: connections of VIPs in conntrack', () => {
  it('are asked for with a filter of the kernel if there is one VIP, otherwise in one dump', async () => {
    const asked: (string | undefined)[] = [];
    const find = (...vips: string[]) =>
      connectedVips('IPv4', new Set(vips), async ({ origDst }) => {
        asked.push(origDst);
        return [];
      });
    await find(VIP);
    await find(VIP, '10.96.0.11');
    assert.deepEqual(asked, [VIP, undefined]);
  });
});
