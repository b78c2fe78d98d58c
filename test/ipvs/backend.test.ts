import assert from 'node:assert/strict';
import { constants } from 'node:os';
import { type IpvsOptions, ipvsBackend } from '../../ipvs/backend.ts';
import { IpvsApplyError } from '../../ipvs/kernel.ts';
import { EINVAL } from '../../netlink/core/error.ts';
import type { IpvsChange } from '../../netlink/ipvs/ipvs.ts';
import type { Backend, RefusalState } from '../../proxier/backend.ts';
import type { Route } from '../../services/route.ts';
import { route } from '../fixtures.ts';
import { FakeTimers } from '../sync/fake-timers.ts';
import { FakeKernel } from './fake-kernel.ts';
import { ruleOptions } from './simulated-node.ts';

const { ENOMEM } = constants.errno;
const VIP = '10.96.0.10';
const POD = '10.244.0.1';
const MARK = 4098;
/** A range with one mark to allocate. */
const MARK_RANGE = { first: MARK - 2, last: MARK };

/** An IPVS service that no Route needs. */
const STALE: IpvsChange = {
  op: 'add-service',
  key: { kind: 'address', family: 'IPv4', protocol: 'TCP', address: '10.97.0.1', port: 80 },
  config: { scheduler: 'rr', schedulerFlags: 0, persistenceSeconds: 0 },
};

const wide = (pods: readonly string[] = [POD]): Route => route({ match: { kind: 'all' } }, pods);
const other = route({ id: 'other', serviceKey: 'default/other', clusterIP: '10.96.0.11' }, [
  '10.244.0.3',
]);
const { id } = wide();

let timers = new FakeTimers();

/** An agent that has just started, with these Routes. */
async function agent(
  fake: FakeKernel,
  routes: readonly Route[],
  fields: Partial<IpvsOptions> = {},
) {
  const warnings: Record<string, unknown>[] = [];
  const options: IpvsOptions = {
    ...ruleOptions({ markRange: MARK_RANGE, ...fields }),
    nodePortSelection: ['all'],
    scheduler: 'rr',
    allPorts: 'fwmark',
    excludeCidrs: [],
    onWarning: (details, message) => warnings.push({ ...details, message }),
    ...fields,
  };
  const backend = await ipvsBackend(fake.open(), fake.rules.iptables, options, timers);
  backend.update(routes, []);
  return { backend, warnings };
}

/** An agent that has synced these Routes. */
async function serving(fake: FakeKernel, routes: readonly Route[]) {
  const { backend } = await agent(fake, routes);
  await backend.apply(true);
  fake.take();
  return backend;
}

describe('backend: ipvs', () => {
  beforeEach(() => {
    timers = new FakeTimers();
  });

  it('writes items in the order of stages, and binds the VIP last', async () => {
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

  it('keeps DNAT rules of the iptables mode until VIPs are bound, and removes services last', async () => {
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

  it('writes nothing when nothing has changed', async () => {
    const fake = new FakeKernel();
    const backend = await serving(fake, [wide()]);
    for (const full of [false, true]) assert.deepEqual(await backend.apply(full), { written: 0 });
    backend.update([], [id]);
    await backend.apply(true);
    assert.ok(fake.take().length > 0);
    for (const full of [false, true]) assert.deepEqual(await backend.apply(full), { written: 0 });
    assert.deepEqual(fake.take(), []);
  });

  it('defers an update during a full sync to the next sync', async () => {
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

  it('leaves no state of a Route that is added and removed during a full sync', async () => {
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

  it('moves a Service from IPVS to iptables rules and back without a gap', async () => {
    const fake = new FakeKernel();
    const listed = route({ id: 'listed' }, [POD]);
    const { backend } = await agent(fake, [listed], { allPorts: 'iptables' });
    await backend.apply(true);
    fake.take();
    const writes = () => fake.take().filter((line) => /^restore nat|address/.test(line));
    backend.update([wide()], ['listed']);
    await backend.apply(false);
    assert.deepEqual(writes(), ['restore nat', `remove address ${VIP}`]);
    backend.update([listed], [id]);
    await backend.apply(false);
    const [first, ...rest] = writes();
    assert.equal(first, `add address ${VIP}`);
    assert.match(rest.join(), /^restore nat -X KUBE-S/);
  });

  for (const full of [false, true]) {
    const sync = full ? 'full' : 'partial';
    it(`starts draining after it removes entries that direct packets to endpoints, and before it removes guard entries (${sync} sync)`, async () => {
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

      // Neither a full sync nor a handshake check ends it.
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

  describe('when a Service with connections is refused', () => {
    const service = `FWM ${MARK}`;
    const becomes = (state: RefusalState) => new Map([['default/web', state]]);
    const bound = (fake: FakeKernel) => ({
      addresses: [...fake.addresses],
      rejected: fake.sets.get('KUBE-IPVS-IPS')?.entries.size,
      marked: fake.sets.get('KUBE-ALL-PORTS')?.entries.size,
    });
    const DRAINING = { addresses: [VIP], rejected: 1, marked: 0 };
    const UNBOUND = { addresses: [], rejected: 0, marked: 0 };

    /** An agent whose Service is refused while connections to its pod are active. */
    async function refused(fake: FakeKernel, activeConnections = 1) {
      const backend = await serving(fake, [wide()]);
      assert.equal(backend.stats?.().drainingVips, 0);
      fake.set(service, `${POD}:0`, { activeConnections });
      backend.setRefusedServices?.(becomes('refused'));
      backend.update([], [id]);
      await backend.apply(false);
      return backend;
    }

    it('keeps the VIP bound and rejects new connections until the old ones end', async () => {
      const fake = new FakeKernel();
      const backend = await refused(fake);
      assert.deepEqual(bound(fake), DRAINING);
      fake.take();
      for (const full of [false, true]) assert.deepEqual(await backend.apply(full), { written: 0 });
      assert.equal(await backend.findDrift(), undefined);
      assert.equal(backend.stats?.().drainingVips, 1);
      fake.set(service, `${POD}:0`, { activeConnections: 0 });
      timers.advance(60_000);
      await backend.findDrift();
      assert.deepEqual(bound(fake), UNBOUND);
      assert.deepEqual([...fake.services.keys()], []);
      assert.equal(backend.stats?.().drainingVips, 0);
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
      it(`retries every minute when the kernel rejects: ${line}`, async () => {
        const fake = new FakeKernel();
        const backend = await refused(fake);
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
        assert.deepEqual(bound(fake), UNBOUND);
        assert.deepEqual([...fake.services.keys()], []);
      });
    }

    it('unbinds the VIP when another program deletes the draining service', async () => {
      const fake = new FakeKernel();
      const backend = await refused(fake);
      fake.services.clear();
      timers.advance(60_000);
      await backend.findDrift();
      assert.deepEqual(bound(fake), UNBOUND);
    });

    it('does not retry to unbind a VIP that a Service uses again', async () => {
      const fake = new FakeKernel();
      const backend = await refused(fake);
      fake.set(service, `${POD}:0`, { activeConnections: 0 });
      fake.errors.set(`remove address ${VIP}`, ENOMEM);
      timers.advance(60_000);
      await backend.findDrift();
      fake.errors.clear();
      backend.setRefusedServices?.(becomes('served'));
      backend.update([wide()], []);
      await backend.apply(false);
      timers.advance(60_000);
      await backend.findDrift();
      assert.deepEqual(bound(fake), { ...DRAINING, marked: 1 });
    });

    it('unbinds the VIP at once when there are no connections', async () => {
      const fake = new FakeKernel();
      await refused(fake, 0);
      assert.deepEqual(bound(fake), UNBOUND);
    });

    it('unbinds the VIP at once when the Service is deleted', async () => {
      const fake = new FakeKernel();
      const backend = await refused(fake);
      backend.setRefusedServices?.(becomes('deleted'));
      await backend.apply(false);
      assert.deepEqual(bound(fake), UNBOUND);
      assert.deepEqual([...fake.services.keys()], [service], 'its services still drain');
    });

    it('serves the VIP again when the Service is served again', async () => {
      const fake = new FakeKernel();
      const backend = await refused(fake);
      fake.take();
      backend.setRefusedServices?.(becomes('served'));
      backend.update([wide()], []);
      await backend.apply(false);
      assert.deepEqual(bound(fake), { ...DRAINING, marked: 1 });
      assert.ok(!fake.take().some((line) => / address /.test(line)));
      timers.advance(60_000);
      await backend.findDrift();
      assert.deepEqual(bound(fake), { ...DRAINING, marked: 1 });
    });

    describe('and is served again without one of its VIPs', () => {
      const LB_VIP = '203.0.113.10';
      const balanced = (): Route => ({ ...wide(), loadBalancerIPs: [LB_VIP] });

      /** The Service had two VIPs, was refused, and is a ClusterIP Service now. */
      async function servedAgain(fake: FakeKernel) {
        const backend = await serving(fake, [balanced()]);
        fake.set(service, `${POD}:0`, { activeConnections: 1 });
        fake.connected.add(LB_VIP);
        backend.setRefusedServices?.(becomes('refused'));
        backend.update([], [id]);
        await backend.apply(false);
        backend.setRefusedServices?.(becomes('served'));
        backend.update([wide()], []);
        await backend.apply(false);
        return backend;
      }

      const kept = (fake: FakeKernel) => ({
        addresses: [...fake.addresses].sort(),
        rejected: [...(fake.sets.get('KUBE-IPVS-IPS')?.entries.values() ?? [])]
          .map(({ ip }) => ip)
          .sort(),
        marked: [...(fake.sets.get('KUBE-ALL-PORTS')?.entries.values() ?? [])].map(({ ip }) => ip),
      });
      const BOTH = { addresses: [VIP, LB_VIP], rejected: [VIP, LB_VIP], marked: [VIP] };
      const ONE = { addresses: [VIP], rejected: [VIP], marked: [VIP] };

      /** A minute passes: the backend checks connections. */
      const check = async (backend: Backend) => {
        timers.advance(60_000);
        await backend.findDrift();
      };

      it('keeps the VIP bound until conntrack has no connection to it', async () => {
        const fake = new FakeKernel();
        const backend = await servedAgain(fake);
        assert.deepEqual(kept(fake), BOTH);
        for (const full of [false, true]) await backend.apply(full);
        await check(backend);
        assert.deepEqual(kept(fake), BOTH);
        assert.equal(backend.stats?.().drainingVips, 1);
        // The destination still has connections to the other VIP.
        fake.connected.delete(LB_VIP);
        await check(backend);
        assert.deepEqual(kept(fake), ONE);
        assert.equal(backend.stats?.().drainingVips, 0);
      });

      it('keeps the VIP bound when the Service is refused once more', async () => {
        const fake = new FakeKernel();
        const backend = await servedAgain(fake);
        backend.setRefusedServices?.(becomes('refused'));
        backend.update([], [id]);
        await backend.apply(false);
        await check(backend);
        assert.deepEqual(kept(fake), { ...BOTH, marked: [] });
      });

      it('unbinds the VIP at once when the Service is deleted', async () => {
        const fake = new FakeKernel();
        const backend = await servedAgain(fake);
        backend.setRefusedServices?.(becomes('deleted'));
        backend.update([], [id]);
        await backend.apply(false);
        assert.deepEqual(kept(fake), { addresses: [], rejected: [], marked: [] });
      });

      it('stops keeping the VIP when a Service binds it', async () => {
        const fake = new FakeKernel();
        const backend = await servedAgain(fake);
        backend.update([balanced()], []);
        await backend.apply(false);
        assert.equal(backend.stats?.().drainingVips, 0);
        assert.deepEqual(kept(fake), { ...BOTH, marked: [VIP, LB_VIP] });
      });
    });

    describe('or loses one of its VIPs without being refused', () => {
      const LB_VIP = '203.0.113.10';
      const balanced = (): Route => ({ ...wide(), loadBalancerIPs: [LB_VIP] });
      const addresses = (fake: FakeKernel) => [...fake.addresses].sort();
      const check = async (backend: Backend) => {
        timers.advance(60_000);
        await backend.findDrift();
      };
      /** A LoadBalancer Service with connections becomes a ClusterIP Service. */
      async function changed(fake: FakeKernel, isConnected = true) {
        const backend = await serving(fake, [balanced()]);
        fake.set(service, `${POD}:0`, { activeConnections: 1 });
        if (isConnected) fake.connected.add(LB_VIP);
        backend.update([wide()], []);
        await backend.apply(false);
        return backend;
      }

      it('keeps the VIP bound until conntrack has no connection to it', async () => {
        const fake = new FakeKernel();
        const backend = await changed(fake);
        assert.deepEqual(addresses(fake), [VIP, LB_VIP]);
        assert.equal(fake.sets.get('KUBE-ALL-PORTS')?.entries.size, 1);
        for (const full of [false, true]) await backend.apply(full);
        await check(backend);
        assert.deepEqual(addresses(fake), [VIP, LB_VIP]);
        fake.connected.delete(LB_VIP);
        await check(backend);
        assert.deepEqual(addresses(fake), [VIP]);
        assert.equal(backend.stats?.().drainingVips, 0);
      });

      it('unbinds the VIP of a Service with listed ports at once, because another host may have it', async () => {
        const fake = new FakeKernel();
        const backend = await serving(fake, [{ ...other, loadBalancerIPs: [LB_VIP] }]);
        fake.connected.add(LB_VIP);
        backend.update([other], []);
        await backend.apply(false);
        assert.ok(!fake.addresses.has(LB_VIP));
      });

      it('keeps it, too, if its ports change at the same time', async () => {
        const fake = new FakeKernel();
        const backend = await serving(fake, [balanced()]);
        fake.connected.add(LB_VIP);
        backend.update([{ ...other, serviceKey: 'default/web', clusterIP: VIP }], [id]);
        await backend.apply(false);
        assert.deepEqual(addresses(fake), [VIP, LB_VIP]);
      });

      it('unbinds the VIP at once when the Service is deleted', async () => {
        const fake = new FakeKernel();
        const backend = await changed(fake);
        backend.update([], [id]);
        await backend.apply(false);
        assert.deepEqual(addresses(fake), []);
      });

      it('keeps the VIP while the Service has another Route', async () => {
        const fake = new FakeKernel();
        const backend = await changed(fake);
        backend.update([{ ...other, serviceKey: 'default/web', clusterIP: VIP }], []);
        await backend.apply(false);
        backend.update([], [id]);
        await backend.apply(false);
        assert.deepEqual(addresses(fake), [VIP, LB_VIP]);
      });

      it('reads conntrack once for all VIPs', async () => {
        const fake = new FakeKernel();
        const vips = Array.from({ length: 20 }, (_, index) => `203.0.113.${index + 1}`);
        const backend = await serving(fake, [{ ...wide(), loadBalancerIPs: vips }]);
        backend.update([wide()], []);
        await backend.apply(false);
        assert.equal(fake.addresses.size, 21);
        await check(backend);
        assert.deepEqual(addresses(fake), [VIP]);
        assert.equal(fake.conntrackDumps, 1);
      });
    });

    it('keeps the VIP bound when another Service uses it', async () => {
      const fake = new FakeKernel();
      const backend = await refused(fake);
      backend.update([{ ...other, clusterIP: VIP }], []);
      await backend.apply(false);
      backend.setRefusedServices?.(becomes('deleted'));
      await backend.apply(false);
      assert.deepEqual(bound(fake), DRAINING);
      backend.update([], ['other']);
      await backend.apply(false);
      assert.deepEqual(bound(fake), UNBOUND);
    });

    it('unbinds the VIP when it becomes a node address', async () => {
      const fake = new FakeKernel();
      const backend = await refused(fake);
      backend.setNodeAddresses({ addresses: [VIP], primary: [] });
      await backend.apply(false);
      assert.deepEqual(bound(fake), UNBOUND);
    });

    it('keeps the VIP bound across a restart', async () => {
      const fake = new FakeKernel();
      await refused(fake);
      const { backend, warnings } = await agent(fake, [other]);
      backend.setRefusedServices?.(becomes('refused'));
      await backend.apply(true);
      assert.deepEqual([...fake.addresses].sort(), [VIP, '10.96.0.11']);
      // After a restart it is unknown whether the Service is refused or was deleted.
      assert.deepEqual(warnings, [
        {
          device: 'kube-ipvs0',
          count: 1,
          vips: [VIP],
          message: 'VIPs without a served Service stay bound until their connections end',
        },
      ]);
      assert.equal(backend.stats?.().drainingVips, 1);
      await backend.apply(true);
      assert.equal(warnings.length, 1);
      fake.set(service, `${POD}:0`, { activeConnections: 0 });
      timers.advance(60_000);
      await backend.findDrift();
      assert.deepEqual([...fake.addresses], ['10.96.0.11']);
    });

    it('does not unbind a VIP before its service has started draining', async () => {
      const fake = new FakeKernel();
      const backend = await serving(fake, [wide(), other]);
      fake.set(service, `${POD}:0`, { activeConnections: 1 });
      fake.set('TCP 10.96.0.11:80', '10.244.0.3:8080', { activeConnections: 1 });
      backend.update([], ['other']);
      await backend.apply(false);
      // A drain check may run before the update is applied, or after a sync that fails.
      backend.setRefusedServices?.(becomes('refused'));
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
      assert.deepEqual(bound(fake), DRAINING);
    });
  });

  it('stops checking when it is closed', async () => {
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

  it('deletes a draining destination when handshakes have completed', async () => {
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

  it('waits for handshakes with each destination, whenever the destination started draining', async () => {
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

  it('sets weight 0 again after setting it has failed', async () => {
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

  it('creates no fwmark service without a mark record', async () => {
    const fake = new FakeKernel();
    // The Route needs two marks, and the range has only one mark.
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

  it('never allocates the mark of a foreign fwmark service, nor changes that service', async () => {
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
      // The next agent keeps the recorded mark, whether another is free or not.
      fake.services.delete(`FWM ${theirs}`);
      const again = await agent(fake, [wide()], { markRange });
      assert.deepEqual(await again.backend.apply(true), { written: 0 });
    }
  });

  it('keeps addresses in --ipvs-exclude-cidrs and services on them', async () => {
    const fake = new FakeKernel();
    fake.write(STALE);
    fake.addresses.add('10.97.0.1');
    const { backend } = await agent(fake, [], { excludeCidrs: ['10.98.0.0/16', '10.97.0.0/16'] });
    await backend.apply(true);
    assert.ok(fake.services.has('TCP 10.97.0.1:80') && fake.addresses.has('10.97.0.1'));
    await (await agent(fake, [])).backend.apply(true);
    assert.deepEqual([fake.services.size, fake.addresses.size], [0, 0]);
  });

  it('logs a permanent error once, and serves the other endpoints', async () => {
    const fake = new FakeKernel();
    fake.errors.set(`add-destination FWM ${MARK} > 224.0.0.1:0 weight 1`, EINVAL);
    const { backend, warnings } = await agent(fake, [wide(['224.0.0.1', POD])]);
    for (let round = 0; round < 3; round++) await backend.apply(true);
    assert.equal(warnings.length, 1);
    const [{ change, service, message } = {}] = warnings;
    assert.deepEqual(
      [change, service, message],
      [
        `add-destination FWM ${MARK} > 224.0.0.1:0`,
        'default/web',
        'kernel rejected an IPVS change permanently',
      ],
    );
    assert.deepEqual(
      [...(fake.services.get(`FWM ${MARK}`)?.destinations.keys() ?? [])],
      [`${POD}:0`],
    );
    assert.deepEqual(await backend.apply(true), { written: 0 });
  });

  for (const full of [true, false]) {
    it(`fails on a temporary error after all other changes (full: ${full})`, async () => {
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

  const drifts: readonly (readonly [
    what: string,
    change: (fake: FakeKernel) => unknown,
    drift: string,
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
      'the device was deleted, and the other family recreated it',
      (fake) => {
        fake.deviceIndex += 1;
        fake.addresses.clear();
      },
      'device kube-ipvs0',
    ],
    [
      'a chain was flushed',
      (fake) => fake.rules.tables.get('nat')?.restore('*nat\n:PREROUTING - [0:0]\nCOMMIT\n'),
      'jump from PREROUTING to KUBE-SERVICES in table nat',
    ],
  ];
  for (const [what, change, drift] of drifts) {
    it(`detects drift when ${what}`, async () => {
      const fake = new FakeKernel();
      const backend = await serving(fake, [wide()]);
      assert.equal(await backend.findDrift(), undefined);
      change(fake);
      assert.equal(await backend.findDrift(), drift);
      await backend.apply(true);
      assert.equal(await backend.findDrift(), undefined);
    });
  }

  it('reports no drift for items with a permanent error', async () => {
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

  it('counts marks in use and Services that wait for a mark', async () => {
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

  it('reports no drift for changes that are not written yet', async () => {
    const backend = await serving(new FakeKernel(), []);
    backend.update([wide()], []);
    assert.equal(await backend.findDrift(), undefined);
  });
});
