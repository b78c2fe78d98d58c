import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { brokenKernel, flowtableFeature, flowtableProblem } from '../../agent/flowtable-support.ts';
import type { KernelCheck } from '../../agent/nftables-support.ts';
import type { IpFamily } from '../../api/objects.ts';
import { ENOENT, EOPNOTSUPP } from '../../netlink/core/error.ts';
import type { Device } from '../../netlink/route/devices.ts';
import { FakeTables } from '../../nft/fake-tables.ts';
import { nftRuleText } from '../../nft/rule.ts';
import { NftBackend } from '../../nftables/backend.ts';
import { flowtableChains } from '../../nftables/flowtable.ts';
import { FlowtableDevices, usableDevices } from '../../nftables/flowtable-devices.ts';
import { route } from '../fixtures.ts';
import { FakeTimers } from '../sync/fake-timers.ts';
import { textsIn } from './elements.ts';
import { modeOptions } from './options.ts';

const device = (name: string, fields: Partial<Device> = {}): Device => ({
  index: name.length,
  name,
  type: 1,
  kind: 'veth',
  isEnslaved: false,
  mtu: 1500,
  ...fields,
});

function backendFor(fake: FakeTables, usesFlowtable = true, flowtableDevices?: FlowtableDevices) {
  const options = modeOptions({ nodePortSelection: ['all'], usesFlowtable });
  return new NftBackend(fake.tables, { ...options, flowtableDevices, onWarning: fail });
}

function fail(message: string): never {
  throw new Error(message);
}

describe('flowtable: connections that bypass the rules', () => {
  it('adds established connections of Services between different interfaces, but no DNS', () => {
    const texts = flowtableChains('IPv4').map(({ name, rules }) => [name, rules.map(nftRuleText)]);
    assert.deepEqual(Object.fromEntries(texts), {
      'offload-connection': [
        'meta l4proto tcp ct original proto-dst != 53 ct original ip daddr @flowtable-vips flow add @services',
        'meta l4proto tcp ct original ip daddr @node-port-ips meta l4proto . ct original proto-dst @flowtable-node-ports flow add @services',
        'meta l4proto udp ct original proto-dst != 53 ct original ip daddr @flowtable-vips flow add @services',
        'meta l4proto udp ct original ip daddr @node-port-ips meta l4proto . ct original proto-dst @flowtable-node-ports flow add @services',
      ],
      'filter-forward-flowtable': [
        'ct state established ct status dnat iifname @flowtable-devices oifname @flowtable-devices iifname . oifname != @flowtable-hairpins ct packets > 20 goto offload-connection',
      ],
    });
  });

  it('has VIPs and node ports of Services as elements, and removes all without the flag', async () => {
    const fake = new FakeTables();
    const backend = backendFor(fake);
    backend.update([route({ nodePort: 30_080 }, ['10.244.0.1'])], []);
    await backend.apply(true);
    assert.deepEqual(textsIn(fake, 'flowtable-vips'), ['10.96.0.10']);
    assert.deepEqual(textsIn(fake, 'flowtable-node-ports'), ['tcp . 30080']);
    assert.deepEqual([...fake.flowtables.keys()], ['services']);
    backend.update([], [route().id]);
    await backend.apply(false);
    assert.deepEqual(textsIn(fake, 'flowtable-vips'), []);

    const without = backendFor(fake, false);
    await without.apply(true);
    assert.deepEqual([...fake.flowtables.keys()], []);
    assert.deepEqual(
      [...fake.sets.keys()].filter((name) => name.startsWith('flowtable')),
      [],
    );
    assert.equal(fake.chains.has('filter-forward-flowtable'), false);
  });

  it('reports a missing and an unexpected flowtable as a difference', async () => {
    const fake = new FakeTables();
    const backend = backendFor(fake);
    await backend.apply(true);
    assert.deepEqual((await backend.compare()).objects, []);
    fake.flowtables.clear();
    fake.flowtables.set('other', new Set());
    assert.deepEqual(
      (await backend.compare()).objects.map(({ state, type, desired, actual }) => [
        state,
        type,
        desired,
        actual,
      ]),
      [
        ['missing', 'flowtable', 'services', null],
        ['unexpected', 'flowtable', null, 'other'],
      ],
    );
  });
});

describe('flowtable-devices: interfaces of a flowtable', () => {
  it('uses hardware, veth pairs, bridges and bonds, but no tunnel and no port of a bridge', () => {
    const devices = [
      device('lo', { type: 772, kind: undefined }),
      device('eth0', { kind: undefined }),
      device('pod1'),
      device('cni0', { kind: 'bridge' }),
      device('bond0', { kind: 'bond' }),
      device('port', { isEnslaved: true }),
      device('vxlan', { kind: 'vxlan' }),
      device('gre', { type: 778, kind: 'gre' }),
      device('wg0', { type: 65_534, kind: 'wireguard' }),
      device('dummy0', { kind: 'dummy' }),
    ];
    assert.deepEqual(usableDevices(devices), ['bond0', 'cni0', 'eth0', 'pod1']);
  });

  async function start(initial: readonly Device[]) {
    const fake = new FakeTables();
    const timers = new FakeTimers();
    let links = initial;
    const warnings: unknown[] = [];
    const deleted: string[] = [];
    const devices = new FlowtableDevices({
      tables: [fake.tables],
      listDevices: async () => links,
      onWarning: (message, fields) => warnings.push([message, fields.interface]),
      onDeleted: (reason) => deleted.push(reason),
      timers,
    });
    const backend = backendFor(fake, true, devices);
    await backend.apply(true);
    const settle = async () => {
      timers.advance(50);
      await nextTurn();
    };
    await settle();
    const names = () => [...(fake.flowtables.get('services') ?? [])];
    const change = async (now: readonly Device[]) => {
      fake.log = [];
      links = now;
      devices.request();
      await settle();
    };
    const differences = async () =>
      (await backend.compare()).objects.map(({ state, type, in: place, desired, actual }) =>
        [state, type, place, desired ?? actual].join(' '),
      );
    const appear = (now: readonly Device[]) => {
      links = now;
    };
    return {
      ...{ fake, devices, backend, warnings, deleted, names, change, settle },
      ...{ differences, appear },
    };
  }

  it('adds and removes one interface in transactions of their own', async () => {
    const { fake, names, change } = await start([device('eth0'), device('pod1')]);
    assert.deepEqual(names(), ['eth0', 'pod1']);
    await change([device('eth0'), device('pod1'), device('pod02')]);
    assert.deepEqual(fake.log, ['attach pod02, add flowtable-hairpins 1, add flowtable-devices 1']);
    await change([device('eth0'), device('pod02')]);
    assert.deepEqual(fake.log, [
      'delete flowtable-hairpins 1, delete flowtable-devices 1',
      'detach pod1',
    ]);
    await change([device('eth0'), device('pod02')]);
    assert.deepEqual(fake.log, []);
  });

  it('leaves out interfaces that the kernel refuses, with one warning unless they are gone', async () => {
    const { fake, names, warnings, change } = await start([device('eth0')]);
    fake.refusedDevices = new Map([
      ['pod1', EOPNOTSUPP],
      ['gone', ENOENT],
    ]);
    const all = ['eth0', 'pod1', 'pod02', 'gone'].map((name) => device(name));
    await change(all);
    await change(all);
    assert.deepEqual(names(), ['eth0', 'pod02']);
    assert.equal(fake.sets.get('flowtable-devices')?.size, 2);
    assert.deepEqual(warnings, [['the kernel refuses an interface in the flowtable', 'pod1']]);
  });

  it('deletes the flowtable with its flows when an MTU is lowered, and the next full sync creates it', async () => {
    const { fake, backend, deleted, names, change, settle } = await start([device('eth0')]);
    await change([device('eth0', { mtu: 9000 })]);
    assert.deepEqual(fake.log, []);
    await change([device('eth0', { mtu: 1400 })]);
    assert.deepEqual(fake.log, ['rules of offload-connection, delete flowtable services']);
    assert.deepEqual(deleted, ['MTU of eth0 lowered']);
    await backend.apply(true);
    await settle();
    assert.deepEqual(names(), ['eth0']);
    assert.equal(fake.chains.get('offload-connection'), 4);
  });

  it('compares the interfaces, unless an update is due', async () => {
    const { fake, devices, names, differences, appear, change } = await start([
      device('eth0'),
      device('pod1'),
    ]);
    assert.deepEqual(await differences(), []);
    const key = (name: string) => Buffer.from(name.padEnd(16, '\0'));
    await fake.tables.transact([
      { action: 'detach', flowtable: 'services', devices: ['pod1'] },
      { action: 'attach', flowtable: 'services', devices: ['other'] },
      { action: 'delete', set: 'flowtable-devices', elements: [{ key: key('eth0') }] },
      {
        action: 'add',
        set: 'flowtable-hairpins',
        elements: [{ key: Buffer.concat([key('more'), key('more')]) }],
      },
    ]);
    assert.deepEqual(names(), ['eth0', 'other']);
    assert.deepEqual(await differences(), [
      'missing interface flowtable services pod1',
      'unexpected interface flowtable services other',
      'unexpected element flowtable-hairpins "more" . "more"',
      'missing element flowtable-devices "eth0"',
    ]);
    // pod1 was deleted, and `other` was added.
    appear([device('eth0'), device('other'), device('more')]);
    assert.deepEqual(await differences(), ['missing element flowtable-devices "eth0"']);
    assert.deepEqual(
      devices.interfaces?.attached.map(({ name }) => name),
      ['eth0', 'pod1'],
    );
    await change([device('eth0'), device('pod1')]);
    assert.deepEqual(await differences(), []);
  });

  it('reports no interfaces while there is no flowtable', async () => {
    const { devices, change, differences, fake } = await start([device('eth0')]);
    fake.refusedDevices = new Map([['pod1', EOPNOTSUPP]]);
    await change([device('eth0'), device('pod1')]);
    assert.deepEqual(devices.interfaces?.refused, ['pod1']);
    assert.deepEqual(await differences(), []);
    fake.flowtables.clear();
    await change([device('eth0')]);
    assert.equal(devices.interfaces, undefined);
    assert.deepEqual(await differences(), ['missing flowtable ip portwide services']);
  });

  it('deletes the flows of an earlier agent in the first full sync', async () => {
    const { fake, names, settle } = await start([device('eth0')]);
    fake.log = [];
    const next = backendFor(fake);
    await next.apply(true);
    assert.equal(fake.log[0], 'rules of offload-connection, delete flowtable services');
    assert.deepEqual(names(), []);
    assert.equal(fake.chains.get('offload-connection'), 4);
    fake.log = [];
    await next.apply(true);
    await settle();
    assert.doesNotMatch(fake.log.join(), /flowtable/);
  });
});

describe('flowtable-support: what status says', () => {
  const interfaces = {
    attached: [
      device('pod1'),
      device('eth0', { kind: undefined }),
      device('br', { kind: 'bridge' }),
    ],
    refused: [],
  };
  for (const [title, args, expected] of [
    ['off', [false, undefined, undefined], ['off', true, '']],
    [
      'the reason of a refusal',
      [true, 'too old', undefined],
      ['refused', true, 'too old; all packets take the rules'],
    ],
    [
      'that there is no flowtable',
      [true, undefined, undefined],
      ['waits', true, 'all packets take the rules until the next full sync'],
    ],
    [
      'the interfaces',
      [true, undefined, interfaces],
      [
        'on: br, eth0, 1 veth',
        true,
        'established connections of Services between these interfaces bypass the rules',
      ],
    ],
    [
      'interfaces that the kernel refused',
      [true, undefined, { ...interfaces, refused: ['eth1'] }],
      ['on: br, eth0, 1 veth', true, 'the kernel refuses eth1: their packets take the rules'],
    ],
  ] as const) {
    it(`shows ${title}`, () => {
      const [isRequested, problem, found] = args;
      const { value, ok, note } = flowtableFeature(isRequested, problem, found);
      assert.deepEqual([value, ok, note], expected);
    });
  }
});

describe('flowtable-support: kernels with broken flowtables', () => {
  it('says what is missing: the kernel, nf_tables, or nothing', async () => {
    const asked: IpFamily[] = [];
    const accepts: KernelCheck = async (family, [declare]) => {
      assert.ok(declare?.action === 'declare');
      if (declare.declarations.some(({ kind }) => kind === 'flowtable')) asked.push(family);
      return undefined;
    };
    const refuses: KernelCheck = async () => 'the kernel refuses flowtable services: ENOENT';
    const families = ['IPv4', 'IPv6'] as const;
    assert.equal(await flowtableProblem(families, accepts, '6.12.1'), undefined);
    assert.deepEqual(asked, families);
    assert.equal(
      await flowtableProblem(families, refuses, '6.12.1'),
      'nf_tables of this node has no flowtables: the kernel refuses flowtable services: ENOENT',
    );
    assert.match((await flowtableProblem(families, accepts, '6.18.1')) ?? '', /6\.14 to 7\.1/);
  });

  for (const [release, isBroken] of [
    ['5.15.0-101-generic', true],
    ['6.1.0-50-cloud-amd64', false],
    ['6.12.117+deb13-cloud-amd64', false],
    ['6.14.0', true],
    ['6.18.44', true],
    ['7.1.9', true],
    ['7.2.0-rc1', false],
    ['unknown', false],
  ] as const) {
    it(`${isBroken ? 'refuses' : 'accepts'} Linux ${release}`, () => {
      assert.equal(brokenKernel(release) !== undefined, isBroken);
    });
  }
});
