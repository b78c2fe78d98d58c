import assert from 'node:assert/strict';
import { constants } from 'node:os';
import { type IpvsOptions, ipvsBackend } from '../../ipvs/backend.ts';
import { IpvsApplyError } from '../../ipvs/kernel.ts';
import { EINVAL } from '../../netlink/core/error.ts';
import type { IpvsChange } from '../../netlink/ipvs/ipvs.ts';
import type { Route } from '../../services/route.ts';
import { route } from '../fixtures.ts';
import { FakeTimers } from '../sync/fake-timers.ts';
import { FakeKernel } from './fake-kernel.ts';
import { ruleOptions } from './simulated-node.ts';

const { ENOMEM } = constants.errno;
const VIP = '10.96.0.10';
const POD = '10.244.0.1';
const MARK = 4098;
/** With one mark to give. */
const MARK_RANGE = { first: MARK - 2, last: MARK };

/** Of nobody. */
const STALE: IpvsChange = {
  op: 'add-service',
  key: { kind: 'address', family: 'IPv4', protocol: 'TCP', address: '10.97.0.1', port: 80 },
  config: { scheduler: 'rr', schedulerFlags: 0, persistenceSeconds: 0 },
};

const wide = (pods: readonly string[] = [POD]): Route => route({ match: { kind: 'all' } }, pods);
const other = route({ id: 'other', clusterIP: '10.96.0.11' }, ['10.244.0.3']);
const { id } = wide();

let timers = new FakeTimers();

/** An agent that has just started; it is to serve these. */
async function agent(
  fake: FakeKernel,
  routes: readonly Route[],
  fields: Partial<IpvsOptions> = {},
) {
  const warnings: string[] = [];
  const options: IpvsOptions = {
    ...ruleOptions({ markRange: MARK_RANGE, ...fields }),
    nodePortSelection: ['all'],
    scheduler: 'rr',
    allPorts: 'fwmark',
    excludeCidrs: [],
    onWarning: (message) => warnings.push(message),
    ...fields,
  };
  const backend = await ipvsBackend(fake.open(), fake.rules.iptables, options, timers);
  backend.update(routes, []);
  return { backend, warnings };
}

/** One that has served them already. */
async function serving(fake: FakeKernel, routes: readonly Route[]) {
  const { backend } = await agent(fake, routes);
  await backend.apply(true);
  fake.take();
  return backend;
}

describe('backend: the IPVS backend', () => {
  beforeEach(() => {
    timers = new FakeTimers();
  });

  it('has a packet find what it needs last before it finds the VIP', async () => {
    const fake = new FakeKernel();
    const { backend } = await agent(fake, [wide()]);
    await backend.apply(true);
    assert.deepEqual(
      fake.take().filter((line) => !/^(link|create) /.test(line)),
      [
        `add KUBE-MARKS ${VIP} ${MARK} default/web cluster`,
        `add KUBE-ALL-PORTS-LOOP-BACK ${POD}/32 ${POD}/32`,
        `add-service FWM ${MARK}`,
        `add-destination FWM ${MARK} > ${POD}:0 weight 1`,
        `add KUBE-CLUSTER-IP-MARK ${VIP} ${MARK}`,
        `add KUBE-IPVS-IPS ${VIP}`,
        `add KUBE-ALL-PORTS-IPS ${VIP}`,
        `add KUBE-ALL-PORTS ${VIP} ${MARK}`,
        'restore mangle',
        'restore nat',
        'restore filter',
        `add address ${VIP}`,
      ],
    );
  });

  it('lets rules of the iptables mode translate until there are addresses, removes last', async () => {
    const fake = new FakeKernel();
    const chain = 'KUBE-SVC-AAAAAAAAAAAAAAAA';
    fake.rules.tables.get('nat')?.restore(`*nat\n:${chain} - [0:0]\nCOMMIT\n`);
    fake.write(STALE);
    const { backend } = await agent(fake, [wide()]);
    await backend.apply(true);
    assert.deepEqual(fake.take().slice(-5), [
      'restore mangle',
      'restore filter',
      `add address ${VIP}`,
      `restore nat -X ${chain}`,
      'delete-service TCP 10.97.0.1:80',
    ]);
  });

  it('writes nothing twice', async () => {
    const fake = new FakeKernel();
    const backend = await serving(fake, [wide()]);
    for (const full of [false, true]) assert.deepEqual(await backend.apply(full), { written: 0 });
    backend.update([], [id]);
    await backend.apply(true);
    assert.ok(fake.take().length > 0);
    for (const full of [false, true]) assert.deepEqual(await backend.apply(full), { written: 0 });
    assert.deepEqual(fake.take(), []);
  });

  it('writes what changes while it compares with the next sync', async () => {
    const fake = new FakeKernel();
    const { backend } = await agent(fake, [wide()]);
    fake.onLine = (line) => {
      if (line === 'restore filter') backend.update([other], [id]);
    };
    await backend.apply(true);
    assert.deepEqual([...fake.addresses], [VIP]);
    await backend.apply(false);
    assert.deepEqual([...fake.addresses], ['10.96.0.11']);
    assert.deepEqual([...fake.services.keys()], ['TCP 10.96.0.11:80']);
  });

  it('leaves nothing of what comes and goes while it compares', async () => {
    const fake = new FakeKernel();
    const { backend } = await agent(fake, [wide()]);
    fake.onLine = (line) => {
      if (line === 'link kube-ipvs0') backend.update([wide([POD, '10.244.0.2']), other], []);
      if (line === 'restore filter') backend.update([wide()], [other.id]);
    };
    await backend.apply(true);
    await backend.apply(false);
    const service = fake.services.get(`FWM ${MARK}`);
    assert.deepEqual([...(service?.destinations.keys() ?? [])], [`${POD}:0`]);
    assert.deepEqual([fake.services.size, [...fake.addresses]], [1, [VIP]]);
  });

  it('goes from IPVS to rules and back with one of them in place at any time', async () => {
    const fake = new FakeKernel();
    const listed = route({ id: 'listed' }, [POD]);
    const { backend } = await agent(fake, [listed], { allPorts: 'iptables' });
    await backend.apply(true);
    fake.take();
    const steps = () => fake.take().filter((line) => /^restore nat|address/.test(line));
    backend.update([wide()], ['listed']);
    await backend.apply(false);
    assert.deepEqual(steps(), ['restore nat', `remove address ${VIP}`]);
    backend.update([listed], [id]);
    await backend.apply(false);
    const [first, ...rest] = steps();
    assert.equal(first, `add address ${VIP}`);
    assert.match(rest.join(), /^restore nat -X KUBE-S/);
  });

  for (const full of [false, true]) {
    const how = full ? 'a comparison' : 'its change';
    it(`drains between what leads to endpoints and what guards them, after ${how}`, async () => {
      const fake = new FakeKernel();
      const backend = await serving(fake, [wide()]);
      fake.set(`FWM ${MARK}`, `${POD}:0`, { activeConnections: 1 });
      backend.update([], [id]);
      await backend.apply(full);
      const lines = fake.take();
      const drains = lines.indexOf(`edit-destination FWM ${MARK} > ${POD}:0 weight 0`);
      assert.deepEqual(lines.slice(0, drains).sort(), [
        `delete KUBE-ALL-PORTS ${VIP} ${MARK}`,
        `delete KUBE-ALL-PORTS-IPS ${VIP}`,
        `delete KUBE-CLUSTER-IP-MARK ${VIP} ${MARK}`,
        `delete KUBE-IPVS-IPS ${VIP}`,
        `remove address ${VIP}`,
      ]);
      assert.deepEqual(lines.slice(drains + 1), [
        `delete KUBE-ALL-PORTS-LOOP-BACK ${POD}/32 ${POD}/32`,
      ]);

      // Neither a comparison nor the time that handshakes take is a reason to end it.
      await backend.apply(true);
      timers.advance(1000);
      assert.equal(await backend.findDrift(), undefined);
      assert.deepEqual(fake.take(), []);
      fake.set(`FWM ${MARK}`, `${POD}:0`, { activeConnections: 0 });
      timers.advance(60_000);
      await backend.findDrift();
      assert.deepEqual(fake.take(), [
        `delete-destination FWM ${MARK} > ${POD}:0`,
        `delete-service FWM ${MARK}`,
        `delete KUBE-MARKS ${VIP} ${MARK} default/web cluster`,
      ]);
    });
  }

  describe('with connections to a VIP of a Service that is refused', () => {
    const service = `FWM ${MARK}`;
    const refuse = new Map([['default/web', true]]);
    const accept = new Map([['default/web', false]]);
    const bound = (fake: FakeKernel) => ({
      addresses: [...fake.addresses],
      rejected: fake.sets.get('KUBE-IPVS-IPS')?.entries.size,
      led: fake.sets.get('KUBE-ALL-PORTS')?.entries.size,
    });
    const LINGERS = { addresses: [VIP], rejected: 1, led: 0 };
    const GONE = { addresses: [], rejected: 0, led: 0 };

    /** One whose Service is refused while connections to its pod are active. */
    async function refusing(fake: FakeKernel, activeConnections = 1) {
      const backend = await serving(fake, [wide()]);
      assert.equal(backend.stats?.().lingeringVips, 0);
      fake.set(service, `${POD}:0`, { activeConnections });
      backend.setRefusedServices?.(refuse);
      backend.update([], [id]);
      await backend.apply(false);
      return backend;
    }

    it('keeps the VIP bound, with what rejects new connections, until they are over', async () => {
      const fake = new FakeKernel();
      const backend = await refusing(fake);
      assert.deepEqual(bound(fake), LINGERS);
      fake.take();
      for (const full of [false, true]) assert.deepEqual(await backend.apply(full), { written: 0 });
      assert.equal(await backend.findDrift(), undefined);
      assert.equal(backend.stats?.().lingeringVips, 1);
      fake.set(service, `${POD}:0`, { activeConnections: 0 });
      timers.advance(60_000);
      await backend.findDrift();
      assert.deepEqual(bound(fake), GONE);
      assert.deepEqual([...fake.services.keys()], []);
      assert.equal(backend.stats?.().lingeringVips, 0);
      fake.take();
      for (const full of [false, true]) assert.deepEqual(await backend.apply(full), { written: 0 });
      assert.deepEqual(fake.take(), []);
    });

    for (const line of [
      `remove address ${VIP}`,
      `delete KUBE-IPVS-IPS ${VIP}`,
      `delete-destination ${service} > ${POD}:0`,
      `delete-service ${service}`,
    ]) {
      it(`tries again each minute what the kernel refused: ${line}`, async () => {
        const fake = new FakeKernel();
        const backend = await refusing(fake);
        fake.set(service, `${POD}:0`, { activeConnections: 0 });
        fake.errors.set(line, ENOMEM);
        for (let minute = 0; minute < 2; minute++) {
          timers.advance(60_000);
          await backend.findDrift();
          assert.ok(fake.take().includes(line), `minute ${minute}`);
        }
        fake.errors.clear();
        timers.advance(60_000);
        await backend.findDrift();
        assert.deepEqual(bound(fake), GONE);
        assert.deepEqual([...fake.services.keys()], []);
      });
    }

    it('unbinds the VIP when somebody deletes the service that drains', async () => {
      const fake = new FakeKernel();
      const backend = await refusing(fake);
      fake.services.clear();
      timers.advance(60_000);
      await backend.findDrift();
      assert.deepEqual(bound(fake), GONE);
    });

    it('does not unbind, in place of an attempt that failed, what a Service has by then', async () => {
      const fake = new FakeKernel();
      const backend = await refusing(fake);
      fake.set(service, `${POD}:0`, { activeConnections: 0 });
      fake.errors.set(`remove address ${VIP}`, ENOMEM);
      timers.advance(60_000);
      await backend.findDrift();
      fake.errors.clear();
      backend.setRefusedServices?.(accept);
      backend.update([wide()], []);
      await backend.apply(false);
      timers.advance(60_000);
      await backend.findDrift();
      assert.deepEqual(bound(fake), { ...LINGERS, led: 1 });
    });

    it('unbinds the VIP at once where there are none', async () => {
      const fake = new FakeKernel();
      await refusing(fake, 0);
      assert.deepEqual(bound(fake), GONE);
    });

    it('unbinds it at once when the Service is deleted', async () => {
      const fake = new FakeKernel();
      const backend = await refusing(fake);
      backend.setRefusedServices?.(accept);
      await backend.apply(false);
      assert.deepEqual(bound(fake), GONE);
      assert.deepEqual([...fake.services.keys()], [service], 'its services drain as ever');
    });

    it('serves it again when the Service is', async () => {
      const fake = new FakeKernel();
      const backend = await refusing(fake);
      fake.take();
      backend.setRefusedServices?.(accept);
      backend.update([wide()], []);
      await backend.apply(false);
      assert.deepEqual(bound(fake), { ...LINGERS, led: 1 });
      assert.ok(!fake.take().some((line) => / address /.test(line)));
      timers.advance(60_000);
      await backend.findDrift();
      assert.deepEqual(bound(fake), { ...LINGERS, led: 1 });
    });

    it('keeps it for another Service that has it by now', async () => {
      const fake = new FakeKernel();
      const backend = await refusing(fake);
      backend.update([{ ...other, clusterIP: VIP }], []);
      await backend.apply(false);
      backend.setRefusedServices?.(accept);
      await backend.apply(false);
      assert.deepEqual(bound(fake), LINGERS);
      backend.update([], ['other']);
      await backend.apply(false);
      assert.deepEqual(bound(fake), GONE);
    });

    it('leaves it to the node that has it as an address of its own by now', async () => {
      const fake = new FakeKernel();
      const backend = await refusing(fake);
      backend.setNodeAddresses({ addresses: [VIP], primary: [] });
      await backend.apply(false);
      assert.deepEqual(bound(fake), GONE);
    });

    it('keeps it across a restart', async () => {
      const fake = new FakeKernel();
      await refusing(fake);
      const { backend, warnings } = await agent(fake, [other]);
      backend.setRefusedServices?.(refuse);
      await backend.apply(true);
      assert.deepEqual([...fake.addresses].sort(), [VIP, '10.96.0.11']);
      // Whether the Service is refused or was deleted meanwhile, nobody can tell.
      assert.deepEqual(warnings, [
        `no Service is served on these VIPs; they stay bound to kube-ipvs0 while connections to them last: ${VIP}`,
      ]);
      assert.equal(backend.stats?.().lingeringVips, 1);
      await backend.apply(true);
      assert.equal(warnings.length, 1);
      fake.set(service, `${POD}:0`, { activeConnections: 0 });
      timers.advance(60_000);
      await backend.findDrift();
      assert.deepEqual([...fake.addresses], ['10.96.0.11']);
    });

    it('does not take them for over before their service has begun to drain', async () => {
      const fake = new FakeKernel();
      const backend = await serving(fake, [wide(), other]);
      fake.set(service, `${POD}:0`, { activeConnections: 1 });
      fake.set('TCP 10.96.0.11:80', '10.244.0.3:8080', { activeConnections: 1 });
      backend.update([], ['other']);
      await backend.apply(false);
      // Handed over, and not applied yet, when what drains is looked at; or in a sync that fails.
      backend.setRefusedServices?.(refuse);
      backend.update([], [id]);
      timers.advance(60_000);
      await backend.findDrift();
      assert.deepEqual([...fake.addresses], [VIP]);
      fake.errors.set(`delete KUBE-ALL-PORTS ${VIP} ${MARK}`, ENOMEM);
      await assert.rejects(backend.apply(false));
      timers.advance(60_000);
      await backend.findDrift();
      assert.deepEqual([...fake.addresses], [VIP]);
      fake.errors.clear();
      await backend.apply(true);
      assert.deepEqual(bound(fake), LINGERS);
    });
  });

  it('looks at nothing once it is closed', async () => {
    const fake = new FakeKernel();
    const backend = await serving(fake, [wide()]);
    fake.set(`FWM ${MARK}`, `${POD}:0`, { activeConnections: 0, inactiveConnections: 1 });
    backend.update([], [id]);
    await backend.apply(false);
    fake.take();
    assert.ok(timers.pending > 1);
    await backend.close();
    assert.equal(timers.pending, 0);
    timers.advance(60_000);
    assert.deepEqual(fake.take(), []);
  });

  it('looks again at what drains when handshakes are over', async () => {
    const fake = new FakeKernel();
    const backend = await serving(fake, [wide([POD, '10.244.0.2'])]);
    fake.set(`FWM ${MARK}`, `${POD}:0`, { inactiveConnections: 1 });
    backend.update([wide(['10.244.0.2'])], []);
    await backend.apply(false);
    assert.deepEqual(fake.take().slice(0, 1), [`edit-destination FWM ${MARK} > ${POD}:0 weight 0`]);
    timers.advance(1000);
    await backend.findDrift();
    assert.deepEqual(fake.take(), []);
    timers.advance(1000);
    await backend.findDrift();
    assert.deepEqual(fake.take(), [`delete-destination FWM ${MARK} > ${POD}:0`]);
  });

  it('gives each handshake its time, whenever its endpoint began to drain', async () => {
    const fake = new FakeKernel();
    const pods = [POD, '10.244.0.2', '10.244.0.3'];
    const backend = await serving(fake, [wide(pods)]);
    for (const pod of pods) fake.set(`FWM ${MARK}`, `${pod}:0`, { inactiveConnections: 1 });
    backend.update([wide(pods.slice(1))], []);
    await backend.apply(false);
    timers.advance(990);
    backend.update([wide(pods.slice(2))], []);
    await backend.apply(false);
    timers.advance(10);
    await backend.findDrift();
    const left = () => [...(fake.services.get(`FWM ${MARK}`)?.destinations.keys() ?? [])].length;
    assert.equal(left(), 3);
    for (const now of [1, 1]) {
      timers.advance(1000);
      await backend.findDrift();
      assert.equal(left(), now);
    }
  });

  it('says again that an endpoint takes no new connections where that failed', async () => {
    const fake = new FakeKernel();
    const backend = await serving(fake, [wide([POD, '10.244.0.2'])]);
    fake.set(`FWM ${MARK}`, `${POD}:0`, { activeConnections: 1 });
    fake.errors.set(`edit-destination FWM ${MARK} > ${POD}:0 weight 0`, ENOMEM);
    backend.update([wide(['10.244.0.2'])], []);
    await assert.rejects(backend.apply(false), IpvsApplyError);
    fake.errors.clear();
    await backend.apply(true);
    timers.advance(1000);
    await backend.findDrift();
    assert.equal(fake.services.get(`FWM ${MARK}`)?.destinations.get(`${POD}:0`)?.weight, 0);
  });

  it('makes no service of a mark that is on no record', async () => {
    const fake = new FakeKernel();
    // It needs two, and there is one.
    const two = route(
      {
        match: { kind: 'all' },
        loadBalancerIPs: ['203.0.113.1'],
        externalLocal: true,
        localEndpoints: [{ address: POD, port: undefined }],
      },
      [POD, '10.244.0.2'],
    );
    const backend = await serving(fake, [two]);
    assert.deepEqual([...fake.services.keys()], []);
    const one = route({ id: 'one', name: 'default/one', match: { kind: 'all' } }, [POD]);
    backend.update([one], []);
    await backend.apply(false);
    assert.deepEqual([...fake.services.keys()], [`FWM ${MARK}`]);
  });

  it("never gives a Service the mark of somebody else's, nor touches that", async () => {
    for (const [theirs, ours] of [
      [MARK, MARK + 1],
      [MARK + 1, MARK],
    ] as const) {
      const fake = new FakeKernel();
      fake.write({ ...STALE, key: { kind: 'mark', family: 'IPv4', mark: theirs } });
      const markRange = { ...MARK_RANGE, last: MARK + 1 };
      const { backend } = await agent(fake, [wide()], { markRange });
      await backend.apply(true);
      assert.deepEqual([...fake.services.keys()], [`FWM ${theirs}`, `FWM ${ours}`]);
      assert.ok(fake.take().every((line) => !line.includes(`${theirs}`)));
      // Whoever starts next gives a Service the mark that it has, another being free or not.
      fake.services.delete(`FWM ${theirs}`);
      const again = await agent(fake, [wide()], { markRange });
      assert.deepEqual(await again.backend.apply(true), { written: 0 });
    }
  });

  it('leaves addresses in --ipvs-exclude-cidrs alone', async () => {
    const fake = new FakeKernel();
    fake.write(STALE);
    fake.addresses.add('10.97.0.1');
    const { backend } = await agent(fake, [], { excludeCidrs: ['10.98.0.0/16', '10.97.0.0/16'] });
    await backend.apply(true);
    assert.ok(fake.services.has('TCP 10.97.0.1:80') && fake.addresses.has('10.97.0.1'));
    await (await agent(fake, [])).backend.apply(true);
    assert.deepEqual([fake.services.size, fake.addresses.size], [0, 0]);
  });

  it('warns once of what no kernel will take, and serves the rest', async () => {
    const fake = new FakeKernel();
    fake.errors.set(`add-destination FWM ${MARK} > 224.0.0.1:0 weight 1`, EINVAL);
    const { backend, warnings } = await agent(fake, [wide(['224.0.0.1', POD])]);
    for (let round = 0; round < 3; round++) await backend.apply(true);
    assert.equal(warnings.length, 1);
    assert.match(warnings[0] ?? '', /FWM 4098 > 224\.0\.0\.1:0 for default\/web: /);
    assert.deepEqual(
      [...(fake.services.get(`FWM ${MARK}`)?.destinations.keys() ?? [])],
      [`${POD}:0`],
    );
    assert.deepEqual(await backend.apply(true), { written: 0 });
  });

  for (const full of [true, false]) {
    it(`fails when a kernel could but does not, with the rest done (full: ${full})`, async () => {
      const fake = new FakeKernel();
      const backend = await serving(fake, [other]);
      fake.errors.set(`add-destination FWM ${MARK} > ${POD}:0 weight 1`, ENOMEM);
      backend.update([wide()], [other.id]);
      await assert.rejects(backend.apply(full), IpvsApplyError);
      assert.deepEqual([...fake.addresses], [VIP]);
      assert.deepEqual([...fake.services.keys()], [`FWM ${MARK}`]);
      fake.errors.clear();
      assert.deepEqual(await backend.apply(true), { written: 1 });
    });
  }

  const losses: readonly (readonly [
    what: string,
    lose: (fake: FakeKernel) => unknown,
    said: string,
  ])[] = [
    ['IPVS was cleared', (fake) => fake.services.clear(), `IPVS service FWM ${MARK}`],
    ['a set was deleted', (fake) => fake.sets.delete('KUBE-DROP'), 'ipset KUBE-DROP'],
    [
      'a set was emptied',
      (fake) => fake.sets.get('KUBE-MARKS')?.entries.clear(),
      'entries of ipset KUBE-MARKS',
    ],
    [
      'the device was deleted',
      (fake) => Object.assign(fake, { hasDevice: false }),
      'device kube-ipvs0',
    ],
    [
      'the device was deleted, and the other family made another',
      (fake) => {
        fake.deviceIndex += 1;
        fake.addresses.clear();
      },
      'device kube-ipvs0',
    ],
    [
      'a chain was emptied',
      (fake) => fake.rules.tables.get('nat')?.restore('*nat\n:PREROUTING - [0:0]\nCOMMIT\n'),
      'jump from PREROUTING to KUBE-SERVICES in table nat',
    ],
  ];
  for (const [what, lose, said] of losses) {
    it(`finds out that ${what}`, async () => {
      const fake = new FakeKernel();
      const backend = await serving(fake, [wide()]);
      assert.equal(await backend.findDrift(), undefined);
      lose(fake);
      assert.equal(await backend.findDrift(), said);
      await backend.apply(true);
      assert.equal(await backend.findDrift(), undefined);
    });
  }

  it('does not take for lost what no kernel takes', async () => {
    const fake = new FakeKernel();
    fake.errors.set(`add-destination FWM ${MARK} > 224.0.0.1:0 weight 1`, EINVAL);
    const { backend } = await agent(fake, [wide(['224.0.0.1'])]);
    await backend.apply(true);
    assert.equal(await backend.findDrift(), undefined);
    backend.update([other], []);
    await backend.apply(false);
    fake.services.clear();
    assert.match((await backend.findDrift()) ?? '', /^IPVS service TCP /);
  });

  it('tells how many marks are in use, and how many Services wait for one', async () => {
    const late = route(
      {
        id: 'late',
        serviceKey: 'default/late',
        name: 'default/late',
        clusterIP: '10.96.0.12',
        match: { kind: 'all' },
      },
      [POD],
    );
    const { backend } = await agent(new FakeKernel(), [wide(), late]);
    assert.deepEqual(backend.stats?.().marks, { inUse: 1, waiting: 1 });
    backend.update([], [id]);
    assert.deepEqual(backend.stats?.().marks, { inUse: 1, waiting: 0 });
    backend.update([], ['late']);
    assert.deepEqual(backend.stats?.().marks, { inUse: 0, waiting: 0 });
  });

  it('does not take for lost what is still to be written', async () => {
    const backend = await serving(new FakeKernel(), []);
    backend.update([wide()], []);
    assert.equal(await backend.findDrift(), undefined);
  });
});
