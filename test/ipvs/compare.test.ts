import assert from 'node:assert/strict';
import { type ComparisonScope, compareWithKernel } from '../../ipvs/compare.ts';
import { DesiredItems } from '../../ipvs/desired-items.ts';
import { type Item, itemKey } from '../../ipvs/items.ts';
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
const entry = (set: SetName, fields: IpsetEntry): Item => ({ kind: 'entry', set, entry: fields });
const RANGE = { ip: VIP, protocol: 'UDP', port: 100, portTo: 102, skbMark: 4098 } as const;

const WANTED: readonly Item[] = [
  entry('KUBE-MARKS', { ip: VIP, mark: 4098, comment: 'default/web' }),
  { kind: 'service', service: SERVICE, config },
  { kind: 'destination', service: SERVICE, destination: POD },
  entry('KUBE-ALL-PORTS', { ip: VIP, skbMark: 4098 }),
  entry('KUBE-PORT-RANGES', RANGE),
  { kind: 'address', address: VIP },
];

function text(item: Item): string {
  if (item.kind !== 'entry') return itemKey(item);
  return [item.set, ...Object.values(item.entry)].join(' ');
}

type Tamper = (fake: FakeKernel) => void;

/** What is made of a kernel that has all that is wanted, after somebody else was there. */
async function compared(tamper: Tamper, bounds: Partial<ComparisonScope> = {}) {
  const fake = new FakeKernel();
  const kernel = fake.open();
  const wanted = new DesiredItems();
  for (const item of WANTED) wanted.addReference(item);
  await kernel.prepare(new DesiredItems());
  await kernel.add(WANTED);
  tamper(fake);
  const { adds, removes } = await compareWithKernel(kernel, wanted, {
    isExcluded: () => false,
    isOwnMark: () => false,
    isDraining: () => false,
    ...bounds,
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

describe('compare: a comparison with the kernel', () => {
  it('finds nothing when nothing differs', async () => {
    assert.deepEqual(await compared(() => {}), { adds: [], removes: [] });
  });

  const lacks: readonly (readonly [title: string, Tamper, add: string])[] = [
    [
      'takes no connections',
      (fake) => fake.set('FWM 4098', '10.244.0.1:0', { weight: 0 }),
      'FWM 4098 > 10.244.0.1:0',
    ],
    [
      'is forwarded to in another way',
      (fake) => fake.set('FWM 4098', '10.244.0.1:0', { masquerade: false }),
      'FWM 4098 > 10.244.0.1:0',
    ],
    ['has another scheduler', editService({ scheduler: 'wrr' }), 'FWM 4098'],
    ['has other scheduler flags', editService({ schedulerFlags: 8 }), 'FWM 4098'],
    ['has another persistence', editService({ persistenceSeconds: 60 }), 'FWM 4098'],
    [
      'has another comment',
      addEntry('KUBE-MARKS', { ip: VIP, mark: 4098, comment: 'default/other' }),
      'KUBE-MARKS 10.96.0.10 4098 default/web',
    ],
    [
      'gives another mark',
      addEntry('KUBE-ALL-PORTS', { ip: VIP, skbMark: 4099 }),
      'KUBE-ALL-PORTS 10.96.0.10 4098',
    ],
    [
      'gives one of its ports another mark',
      addEntry('KUBE-PORT-RANGES', { ip: VIP, protocol: 'UDP', port: 101, skbMark: 4099 }),
      'KUBE-PORT-RANGES 10.96.0.10 UDP 100 102 4098',
    ],
    [
      'lacks one of its ports',
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
    it(`writes again what ${title}`, async () => {
      assert.deepEqual(await compared(tamper), { adds: [add], removes: [] });
    });
  }

  for (const [family, first, second] of [
    ['IPv4', VIP, OTHER_VIP],
    ['IPv6', 'fd00::1', 'fd00::2'],
  ] as const) {
    it(`binds anew an ${family} VIP that the kernel may choose as a source address`, async () => {
      const fake = new FakeKernel(family);
      const kernel = fake.open();
      const wanted = new DesiredItems();
      const items: Item[] = [first, second].map((address) => ({ kind: 'address', address }));
      for (const item of items) wanted.addReference(item);
      await kernel.prepare(wanted);
      await kernel.add(items);
      fake.preferred.add(second);
      const bounds = { isExcluded: () => false, isOwnMark: () => false, isDraining: () => false };
      const { adds } = await compareWithKernel(kernel, wanted, bounds);
      assert.deepEqual(adds.map(itemKey), [second]);
      await kernel.add(adds);
      const again = await compareWithKernel(kernel, wanted, bounds);
      assert.deepEqual(again, { adds: [], removes: [] });
    });
  }

  it('removes what nobody wants, of ranges no more than that', async () => {
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
    assert.deepEqual(await compared(tamper), {
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

  it("leaves services of marks that are somebody else's", async () => {
    const tamper: Tamper = (fake) => {
      for (const mark of [4099, 7]) addService(marked(mark))(fake);
    };
    const { removes } = await compared(tamper, { isOwnMark: (mark) => mark === 4099 });
    assert.deepEqual(removes, ['FWM 4099 > 10.244.0.1:0', 'FWM 4099']);
  });

  it('leaves addresses that are excluded, and services on them, unless they are wanted', async () => {
    const tamper: Tamper = (fake) => {
      addService(listed(OTHER_VIP))(fake);
      addService(listed('10.98.0.1'))(fake);
      for (const address of [OTHER_VIP, '10.98.0.1']) fake.addresses.add(address);
      fake.set('FWM 4098', '10.244.0.1:0', { weight: 0 });
      fake.addresses.delete(VIP);
    };
    assert.deepEqual(await compared(tamper, { isExcluded: (address) => address !== '10.98.0.1' }), {
      adds: ['FWM 4098 > 10.244.0.1:0', VIP],
      removes: ['TCP 10.98.0.1:80 > 10.244.0.1:0', 'TCP 10.98.0.1:80', '10.98.0.1'],
    });
  });

  it('leaves destinations that drain, with their service and the record of its mark', async () => {
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
    const { removes } = await compared(tamper, {
      isOwnMark: () => true,
      isDraining: (service, key) => service === 'FWM 4099' && draining.has(key),
    });
    assert.deepEqual(removes, ['FWM 4099 > 10.244.0.2:0']);
  });
});
