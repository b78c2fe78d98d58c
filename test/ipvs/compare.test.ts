import assert from 'node:assert/strict';
import { type ComparisonScope, compareWithKernel } from '../../ipvs/compare.ts';
import { DesiredItems } from '../../ipvs/desired-items.ts';
import { type IpvsItem, itemKey } from '../../ipvs/items.ts';
import type { SetName } from '../../ipvs/sets.ts';
import type { IpsetEntry } from '../../netlink/ipset/ipset.ts';
import type { IpvsServiceKey } from '../../netlink/ipvs/ipvs.ts';
import { FakeKernel } from './fake-kernel.ts';

const VIP = '10.96.0.10';
const OTHER_VIP = '10.97.0.1';
const POD = { address: '10.244.0.1', port: 0 };

const config = { scheduler: 'rr', schedulerFlags: 0, persistenceSeconds: 0 };
const marked = (mark: number): IpvsServiceKey => ({ kind: 'mark', family: 'IPv4', mark });
const listed = (address: string): IpvsServiceKey => ({
  kind: 'address',
  family: 'IPv4',
  protocol: 'TCP',
  address,
  port: 80,
});
const SERVICE = marked(4098);
const entry = (set: SetName, fields: IpsetEntry): IpvsItem => ({
  kind: 'entry',
  set,
  entry: fields,
});
const RANGE = { ip: VIP, protocol: 'UDP', port: 100, portTo: 102, skbMark: 4098 } as const;

const DESIRED: readonly IpvsItem[] = [
  entry('KUBE-MARKS', { ip: VIP, mark: 4098, comment: 'default/web' }),
  { kind: 'service', service: SERVICE, config },
  { kind: 'destination', service: SERVICE, destination: POD },
  entry('KUBE-ALL-PORTS', { ip: VIP, skbMark: 4098 }),
  entry('KUBE-PORT-RANGES', RANGE),
  { kind: 'address', address: VIP },
];

function text(item: IpvsItem): string {
  if (item.kind !== 'entry') return itemKey(item);
  return [item.set, ...Object.values(item.entry)].join(' ');
}

type Tamper = (fake: FakeKernel) => void;

/** Diff of a kernel that had all desired items until `tamper` changed it. */
async function diffAfter(tamper: Tamper, scope: Partial<ComparisonScope> = {}) {
  const fake = new FakeKernel();
  const kernel = fake.open();
  const desired = new DesiredItems();
  for (const item of DESIRED) desired.addReference(item);
  await kernel.prepare(new DesiredItems());
  await kernel.add(DESIRED);
  tamper(fake);
  const { adds, removes } = await compareWithKernel(kernel, desired, {
    isExcluded: () => false,
    isOwnMark: () => false,
    isDraining: () => false,
    ...scope,
  });
  return { adds: adds.map(text), removes: removes.map(text) };
}

const addEntry =
  (set: SetName, fields: IpsetEntry): Tamper =>
  (fake) =>
    fake.write({ op: 'add', set, entry: fields });
const editService =
  (fields: Partial<typeof config>): Tamper =>
  (fake) =>
    fake.write({ op: 'edit-service', key: SERVICE, config: { ...config, ...fields } });
const addService =
  (key: IpvsServiceKey): Tamper =>
  (fake) =>
    fake.write(
      { op: 'add-service', key, config },
      { op: 'add-destination', key, destination: { ...POD, weight: 1 } },
    );

describe('compare: diff against the kernel', () => {
  it('returns no changes when the kernel matches', async () => {
    assert.deepEqual(await diffAfter(() => {}), { adds: [], removes: [] });
  });

  const lacks: readonly (readonly [title: string, Tamper, add: string])[] = [
    [
      'has weight 0',
      (fake) => fake.set('FWM 4098', '10.244.0.1:0', { weight: 0 }),
      'FWM 4098 > 10.244.0.1:0',
    ],
    [
      'does not forward by masquerade',
      (fake) => fake.set('FWM 4098', '10.244.0.1:0', { masquerade: false }),
      'FWM 4098 > 10.244.0.1:0',
    ],
    ['has another scheduler', editService({ scheduler: 'wrr' }), 'FWM 4098'],
    ['has other scheduler flags', editService({ schedulerFlags: 8 }), 'FWM 4098'],
    ['has another persistence timeout', editService({ persistenceSeconds: 60 }), 'FWM 4098'],
    [
      'has another comment',
      addEntry('KUBE-MARKS', { ip: VIP, mark: 4098, comment: 'default/other' }),
      'KUBE-MARKS 10.96.0.10 4098 default/web',
    ],
    [
      'sets another mark',
      addEntry('KUBE-ALL-PORTS', { ip: VIP, skbMark: 4099 }),
      'KUBE-ALL-PORTS 10.96.0.10 4098',
    ],
    [
      'sets another mark for one port of a range',
      addEntry('KUBE-PORT-RANGES', { ip: VIP, protocol: 'UDP', port: 101, skbMark: 4099 }),
      'KUBE-PORT-RANGES 10.96.0.10 UDP 100 102 4098',
    ],
    [
      'lacks one port of a range',
      (fake) =>
        fake.write({
          op: 'delete',
          set: 'KUBE-PORT-RANGES',
          entry: { ...RANGE, port: 102, portTo: 102 },
        }),
      'KUBE-PORT-RANGES 10.96.0.10 UDP 100 102 4098',
    ],
    ['is not bound', (fake) => fake.addresses.clear(), VIP],
  ];
  for (const [title, tamper, add] of lacks) {
    it(`adds an item again when it ${title}`, async () => {
      assert.deepEqual(await diffAfter(tamper), { adds: [add], removes: [] });
    });
  }

  for (const [family, first, second] of [
    ['IPv4', VIP, OTHER_VIP],
    ['IPv6', 'fd00::1', 'fd00::2'],
  ] as const) {
    it(`binds an ${family} VIP again when the kernel may choose it as source address`, async () => {
      const fake = new FakeKernel(family);
      const kernel = fake.open();
      const desired = new DesiredItems();
      const items: IpvsItem[] = [first, second].map((address) => ({ kind: 'address', address }));
      for (const item of items) desired.addReference(item);
      await kernel.prepare(desired);
      await kernel.add(items);
      fake.preferred.add(second);
      const scope = { isExcluded: () => false, isOwnMark: () => false, isDraining: () => false };
      const { adds } = await compareWithKernel(kernel, desired, scope);
      assert.deepEqual(adds.map(itemKey), [second]);
      await kernel.add(adds);
      const again = await compareWithKernel(kernel, desired, scope);
      assert.deepEqual(again, { adds: [], removes: [] });
    });
  }

  it('removes undesired items, and only the undesired ports of ranges', async () => {
    const tamper = (fake: FakeKernel) => {
      const destination = { address: '10.244.0.2', port: 0, weight: 1 };
      fake.write(
        { op: 'add-destination', key: SERVICE, destination },
        { op: 'add', set: 'KUBE-ALL-PORTS', entry: { ip: OTHER_VIP, skbMark: 4098 } },
        { op: 'add', set: 'KUBE-PORT-RANGES', entry: { ...RANGE, port: 99, portTo: 104 } },
      );
      addService(listed(OTHER_VIP))(fake);
      fake.addresses.add(OTHER_VIP);
    };
    assert.deepEqual(await diffAfter(tamper), {
      adds: [],
      removes: [
        'KUBE-ALL-PORTS 10.97.0.1 4098',
        'KUBE-PORT-RANGES 10.96.0.10 UDP 99 99',
        'KUBE-PORT-RANGES 10.96.0.10 UDP 103 104',
        'FWM 4098 > 10.244.0.2:0',
        'TCP 10.97.0.1:80 > 10.244.0.1:0',
        'TCP 10.97.0.1:80',
        OTHER_VIP,
      ],
    });
  });

  it('keeps fwmark services of other programs', async () => {
    const tamper: Tamper = (fake) => {
      for (const mark of [4099, 7]) addService(marked(mark))(fake);
    };
    const { removes } = await diffAfter(tamper, { isOwnMark: (mark) => mark === 4099 });
    assert.deepEqual(removes, ['FWM 4099 > 10.244.0.1:0', 'FWM 4099']);
  });

  it('keeps excluded addresses and services on them, unless they are desired', async () => {
    const tamper: Tamper = (fake) => {
      addService(listed(OTHER_VIP))(fake);
      addService(listed('10.98.0.1'))(fake);
      for (const address of [OTHER_VIP, '10.98.0.1']) fake.addresses.add(address);
      fake.set('FWM 4098', '10.244.0.1:0', { weight: 0 });
      fake.addresses.delete(VIP);
    };
    assert.deepEqual(
      await diffAfter(tamper, { isExcluded: (address) => address !== '10.98.0.1' }),
      {
        adds: ['FWM 4098 > 10.244.0.1:0', VIP],
        removes: ['TCP 10.98.0.1:80 > 10.244.0.1:0', 'TCP 10.98.0.1:80', '10.98.0.1'],
      },
    );
  });

  it('keeps draining destinations with their service and mark record', async () => {
    const record = { ip: OTHER_VIP, mark: 4099, comment: 'default/gone' };
    const tamper: Tamper = (fake) => {
      addEntry('KUBE-MARKS', record)(fake);
      addService(marked(4099))(fake);
      fake.write({
        op: 'add-destination',
        key: marked(4099),
        destination: { address: '10.244.0.2', port: 0, weight: 1 },
      });
    };
    const draining = new Set(['FWM 4099', 'FWM 4099 > 10.244.0.1:0']);
    draining.add(itemKey(entry('KUBE-MARKS', record)));
    const { removes } = await diffAfter(tamper, {
      isOwnMark: () => true,
      isDraining: (service, key) => service === 'FWM 4099' && draining.has(key),
    });
    assert.deepEqual(removes, ['FWM 4099 > 10.244.0.2:0']);
  });
});
