import assert from 'node:assert/strict';
import { setImmediate as nextTurn } from 'node:timers/promises';
import type { IpFamily, Kind } from '../../api/objects.ts';
import { readNode } from '../../api/read-node.ts';
import type { Backend } from '../../proxier/backend.ts';
import { FamilyProxier, type SyncReport } from '../../proxier/family-proxier.ts';
import { Proxier } from '../../proxier/proxier.ts';
import { RouteTable } from '../../proxier/route-table.ts';
import type { NodeAddresses } from '../../services/node-port-addresses.ts';
import type { Route } from '../../services/route.ts';
import { endpoint, route, service, slice } from '../fixtures.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

/** A backend that records its calls, and fails on demand. */
class FakeBackend implements Backend {
  readonly family: IpFamily;
  readonly desired = new Map<string, Route>();
  nodeAddresses: NodeAddresses | undefined;
  applied: { full: boolean; routes: string[] }[] = [];
  failures = 0;
  drift: string | undefined;
  closed = 0;
  watchesChanges = false;
  /** Duration of one `apply` in milliseconds, and the sum of all. */
  applyMs = 0;
  clock = 0;

  constructor(family: IpFamily) {
    this.family = family;
  }

  setNodeAddresses(nodeAddresses: NodeAddresses): void {
    this.nodeAddresses = nodeAddresses;
  }

  update(upserts: Iterable<Route>, removals: Iterable<string>): void {
    for (const id of removals) this.desired.delete(id);
    for (const route of upserts) this.desired.set(route.id, route);
  }

  apply(full: boolean) {
    if (this.failures > 0) {
      this.failures -= 1;
      return Promise.reject(new Error('the kernel says no'));
    }
    this.clock += this.applyMs;
    this.applied.push({ full, routes: [...this.desired.keys()].sort() });
    return Promise.resolve({ written: 1 });
  }

  findDrift() {
    return Promise.resolve(this.drift);
  }

  close() {
    this.closed += 1;
    return Promise.resolve();
  }
}

function build(options: { flowsFail?: boolean; nodeIp?: string; wallClock?: () => number } = {}) {
  const timers = new FakeTimers();
  const backends = [new FakeBackend('IPv4'), new FakeBackend('IPv6')] as const;
  const reports: SyncReport[] = [];
  const failures: IpFamily[] = [];
  const drift: [IpFamily, string][] = [];
  /** Observer events, in order. */
  const events: string[] = [];
  /** Trigger times reported by `unchanged`. */
  const unchangedTriggers: number[] = [];
  const reportedAddresses: [IpFamily, NodeAddresses][] = [];
  const table = new RouteTable({
    nodeName: 'node-a',
    allPortsEnabled: true,
    onChange: () => proxier.request(),
    ...(options.wallClock === undefined ? {} : { now: options.wallClock }),
  });
  const conntrack = {
    deleteStale: () =>
      options.flowsFail === true ? Promise.reject(new Error('no conntrack')) : Promise.resolve(0),
  };
  const proxier = new Proxier({
    table,
    families: backends.map(
      (backend) => new FamilyProxier(backend, conntrack, { now: () => backend.clock }),
    ),
    nodeIp: options.nodeIp,
    minSyncPeriod: 1000,
    syncPeriod: 30_000,
    timers,
    observer: {
      refusals: () => {},
      nodeAddresses: (family, nodeAddresses) => reportedAddresses.push([family, nodeAddresses]),
      queued: (family) => events.push(`${family} queued`),
      unchanged: (family, times) => {
        events.push(`${family} unchanged`);
        unchangedTriggers.push(...times);
      },
      synced: (report) => {
        events.push(`${report.family} synced`);
        reports.push(report);
      },
      syncFailed: (family, _error, { full }) => {
        events.push(`${family} failed${full ? ' full' : ''}`);
        failures.push(family);
      },
      driftDetected: (family, what) => drift.push([family, what]),
      checkFailed: (family) => failures.push(family),
      checked: () => {},
    },
  });
  /** Advances the clock and waits for everything that follows. */
  const pass = async (milliseconds: number) => {
    timers.advance(milliseconds);
    for (let turn = 0; turn < 10; turn++) await nextTurn();
  };
  const sync = (...kinds: Kind[]) => {
    for (const kind of kinds) table.synced(kind);
  };
  return {
    timers,
    backends,
    reports,
    failures,
    drift,
    events,
    unchangedTriggers,
    reportedAddresses,
    table,
    proxier,
    pass,
    sync,
  };
}

const ADDRESSES = ['192.0.2.1', '2001:db8::1'];
const dualStack = () => service({ clusterIPs: ['10.96.0.10', 'fd00::a'] });

describe('proxier: sync of one family', () => {
  it('deletes stale conntrack entries of written rules only, after writing them', async () => {
    const backend = new FakeBackend('IPv4');
    const log: string[] = [];
    const gate = Promise.withResolvers<void>();
    backend.apply = async () => {
      await gate.promise;
      log.push('rules');
      return { written: 1 };
    };
    const family = new FamilyProxier(backend, {
      deleteStale: (isStale) => {
        const flow = { origDstPort: 53, replySrc: '10.0.0.1', replySrcPort: 53, status: 0 };
        const stale = ['10.96.0.1', '10.96.0.2'].filter((vip) =>
          isStale({ ...flow, origDst: vip }, 'UDP'),
        );
        log.push(`flows of ${stale.join()}`);
        return Promise.resolve(0);
      },
    });
    const all = (clusterIP: string) => route({ id: clusterIP, clusterIP, match: { kind: 'all' } });
    family.update([all('10.96.0.1')], [], new Map());
    const first = family.sync(true);
    family.update([all('10.96.0.2')], [], new Map());
    gate.resolve();
    await first;
    assert.equal(family.hasChanges, true);
    await family.sync(false);
    assert.deepEqual(log, [
      'rules',
      // The first sync checks all VIPs; changes not in force yet are checked again later.
      'flows of 10.96.0.1,10.96.0.2',
      'rules',
      'flows of 10.96.0.2',
    ]);
  });
});

describe('proxier: the first sync of one family', () => {
  it('ends when what Services need besides rules is there, which comes after the rules', async () => {
    const backend = new FakeBackend('IPv4');
    const log: string[] = [];
    let broken = true;
    backend.apply = async () => {
      log.push('rules');
      return { written: 1 };
    };
    const family = new FamilyProxier(
      backend,
      { deleteStale: () => Promise.resolve(0) },
      {
        afterFirstRules: async () => {
          await nextTurn();
          log.push('besides rules');
          if (broken) throw new Error('broken');
        },
      },
    );
    const sync = async () => {
      await family.sync(true);
      log.push('synced');
    };
    await assert.rejects(sync(), /broken/);
    broken = false;
    await sync();
    await sync();
    const failed = ['rules', 'besides rules'];
    assert.deepEqual(log, [...failed, 'rules', 'besides rules', 'synced', 'rules', 'synced']);
  });
});

describe('proxier: Services of a sync', () => {
  const of = (serviceKey: string) => route({ id: serviceKey, serviceKey });

  it('names the Services whose Routes changed, after the sync that succeeded', async () => {
    const backend = new FakeBackend('IPv4');
    const family = new FamilyProxier(backend, { deleteStale: () => Promise.resolve(0) });
    family.update([of('a/b'), of('a/c')], [], new Map());
    backend.failures = 1;
    await assert.rejects(family.sync(true));
    family.update([], [of('a/d')], new Map());
    const { services } = await family.sync(true);
    assert.deepEqual([...services].sort(), ['a/b', 'a/c', 'a/d']);
    assert.deepEqual([...(await family.sync(false)).services], []);
  });
});

describe('proxier: health check node ports in one family', () => {
  const health = (serviceKey: string, localEndpoints: number) =>
    ({ serviceKey, family: 'IPv4', port: 30_001, localEndpoints, isOnlyFamily: false }) as const;
  const setUp = () => {
    const backend = new FakeBackend('IPv4');
    const family = new FamilyProxier(backend, { deleteStale: () => Promise.resolve(0) });
    return { backend, family };
  };

  it('reports changed health check node ports once, after the rules are written', async () => {
    const { family } = setUp();
    family.updateHealth([health('a/b', 1), health('a/c', 1)]);
    family.updateHealth([health('a/b', 2)]);
    assert.deepEqual((await family.sync(true)).healthChanges, [health('a/b', 2), health('a/c', 1)]);
    assert.equal(family.hasChanges, false);
    assert.deepEqual((await family.sync(false)).healthChanges, []);
  });

  it('reports changed health check node ports after a successful sync only, with the newest values', async () => {
    const { backend, family } = setUp();
    backend.failures = 2;
    family.updateHealth([health('a/b', 1), health('a/c', 1)]);
    await assert.rejects(family.sync(true));
    const failing = family.sync(true);
    family.updateHealth([health('a/c', 0)]);
    await assert.rejects(failing);
    assert.deepEqual((await family.sync(true)).healthChanges, [health('a/b', 1), health('a/c', 0)]);
  });

  it('reports health check node ports that change during a sync with the next sync', async () => {
    const { family } = setUp();
    family.updateHealth([health('a/b', 1)]);
    const first = family.sync(true);
    family.updateHealth([health('a/b', 2)]);
    assert.deepEqual((await first).healthChanges, [health('a/b', 1)]);
    assert.equal(family.hasChanges, true);
    assert.deepEqual((await family.sync(false)).healthChanges, [health('a/b', 2)]);
  });
});

describe('proxier: node ports on localhost in one family', () => {
  const served = (nodePort: number, addresses: readonly string[]) =>
    route({ id: 'a/b', serviceKey: 'a/b', nodePort }, addresses);
  const emptyConntrack = { deleteStale: () => Promise.resolve(0) };

  it('does not report localhost node ports without proxiesLocalhost', async () => {
    const family = new FamilyProxier(new FakeBackend('IPv4'), emptyConntrack);
    family.update([served(30_080, ['10.0.0.1'])], [], new Map());
    assert.deepEqual((await family.sync(true)).localhostNodePorts, []);
  });

  it('reports changed localhost node ports once the rules are in force', async () => {
    const backend = new FakeBackend('IPv4');
    const family = new FamilyProxier(backend, emptyConntrack, { proxiesLocalhost: true });
    const reported = async () =>
      (await family.sync(false)).localhostNodePorts.map(({ port, endpoints }) => [
        port,
        endpoints.length,
      ]);
    const versions = [served(30_080, ['10.0.0.1']), served(30_080, ['10.0.0.1', '10.0.0.2'])];
    const [first, second] = versions;
    assert.ok(first && second);
    family.update([first, route({ id: 'a/c' }, ['10.0.0.9'])], [], new Map());
    backend.failures = 1;
    await assert.rejects(family.sync(false));
    assert.deepEqual(await reported(), [[30_080, 1]]);
    family.update([second], [], new Map([['a/b', first]]));
    assert.deepEqual(await reported(), [[30_080, 2]]);
    family.update([{ ...second, clusterIP: undefined }], [], new Map([['a/b', second]]));
    assert.deepEqual(await reported(), [], 'no change of the node port');
    family.update([], [second], new Map());
    assert.deepEqual(await reported(), [[0, 2]]);
  });
});

describe('proxier: scheduling', () => {
  it('writes nothing before all sources are synced and node addresses are known', async () => {
    const { table, backends, reportedAddresses, proxier, pass, sync } = build();
    table.upsert(dualStack());
    sync('Service', 'EndpointSlice');
    await pass(5000);
    assert.deepEqual(backends[0].applied, []);
    sync('Node');
    await pass(5000);
    assert.deepEqual(backends[0].applied, []);
    proxier.setNodeAddresses(ADDRESSES);
    await pass(0);
    for (const { applied, family, nodeAddresses } of backends) {
      assert.deepEqual(applied, [{ full: true, routes: [`default/web/${family}/TCP/`] }]);
      assert.deepEqual(
        nodeAddresses?.addresses,
        family === 'IPv4' ? ['192.0.2.1'] : ['2001:db8::1'],
      );
    }
    table.upsert(service({ name: 'more', clusterIPs: ['10.96.0.11'] }));
    await pass(5000);
    assert.deepEqual(
      reportedAddresses,
      backends.map(({ family, nodeAddresses }) => [family, nodeAddresses]),
    );
  });

  for (const [nodeIp, expected] of [
    [undefined, [['192.0.2.1'], ['2001:db8::1']]],
    ['192.0.2.9', [['192.0.2.9'], ['2001:db8::1']]],
    ['2001:db8::9', [['192.0.2.1'], ['2001:db8::9']]],
  ] as const) {
    it(`uses node IP ${nodeIp} for its family, and the Node object for the other`, async () => {
      const { table, backends, proxier, pass, sync } = build(
        nodeIp === undefined ? {} : { nodeIp },
      );
      const addresses = ADDRESSES.map((address) => ({ type: 'InternalIP', address }));
      table.upsert(readNode({ metadata: { name: 'node-a' }, status: { addresses } }));
      sync('Service', 'EndpointSlice', 'Node');
      proxier.setNodeAddresses(ADDRESSES);
      await pass(0);
      assert.deepEqual(
        backends.map(({ nodeAddresses }) => nodeAddresses?.primary),
        expected,
      );
    });
  }

  it('uses all addresses as primary, without duplicates, without a Node object', async () => {
    const { backends, proxier, pass, sync } = build();
    sync('Service', 'EndpointSlice', 'Node');
    proxier.setNodeAddresses(['192.0.2.2', '127.0.0.1', '192.0.2.1', '192.0.2.2', '::1']);
    await pass(0);
    assert.deepEqual(
      backends.map(({ nodeAddresses }) => nodeAddresses),
      [
        { addresses: ['127.0.0.1', '192.0.2.1', '192.0.2.2'], primary: ['192.0.2.1', '192.0.2.2'] },
        { addresses: ['::1'], primary: [] },
      ],
    );
  });

  it('writes a single change at once, and batches many changes', async () => {
    const { table, backends, reports, proxier, pass, sync } = build();
    // Long enough to count as a whole in the rate limit.
    for (const backend of backends) backend.applyMs = 100;
    sync('Service', 'EndpointSlice', 'Node');
    proxier.setNodeAddresses(ADDRESSES);
    await pass(0);
    await pass(5000);
    table.upsert(service({ name: 'first' }));
    await pass(0);
    assert.equal(backends[0].applied.length, 2);
    for (let index = 0; index < 50; index++) {
      table.upsert(slice([endpoint(`10.0.0.${index + 1}`)], { serviceKey: 'default/first' }));
      await pass(10);
    }
    await pass(2000);
    // The first change at once, all others in one batch.
    assert.equal(backends[0].applied.length, 4);
    assert.deepEqual(
      reports.filter(({ family }) => family === 'IPv4').map(({ full }) => full),
      [true, false, false, false],
    );
    // No change concerned the other family.
    assert.equal(backends[1].applied.length, 1);
  });

  it('syncs one family while the other fails, and loses no change', async () => {
    const { table, backends, failures, proxier, pass, sync } = build();
    const [v4, v6] = backends;
    sync('Service', 'EndpointSlice', 'Node');
    proxier.setNodeAddresses(ADDRESSES);
    await pass(0);
    await pass(5000);
    v4.failures = 2;
    table.upsert(dualStack());
    await pass(0);
    assert.deepEqual([v4.applied.length, v6.applied.length, failures.length], [1, 2, 1]);
    table.upsert(service({ name: 'later', clusterIPs: ['10.96.0.11'] }));
    await pass(500);
    await pass(1000);
    assert.deepEqual(failures, ['IPv4', 'IPv4']);
    assert.deepEqual(v4.applied.at(-1), {
      full: true,
      routes: ['default/later/IPv4/TCP/', 'default/web/IPv4/TCP/'],
    });
  });

  it('runs a full sync every period while it is fast, and less often when it is slow', async () => {
    for (const [applyMs, expected] of [
      [1, 10],
      [600, 5],
      [3_600_000, 1],
    ] as const) {
      const { backends, proxier, pass, sync } = build();
      const [v4] = backends;
      v4.applyMs = applyMs;
      sync('Service', 'EndpointSlice', 'Node');
      proxier.setNodeAddresses(ADDRESSES);
      await pass(0);
      for (let period = 0; period < 9; period++) await pass(30_000);
      await pass(1000);
      assert.equal(v4.applied.filter(({ full }) => full).length, expected, `${applyMs} ms`);
    }
  });

  it('runs one more full sync when the watch starts, and rare full syncs afterwards', async () => {
    const { backends, proxier, pass, sync } = build();
    const [v4] = backends;
    v4.applyMs = 1;
    sync('Service', 'EndpointSlice', 'Node');
    proxier.setNodeAddresses(ADDRESSES);
    await pass(0);
    v4.watchesChanges = true;
    const compared = () => v4.applied.filter(({ full }) => full).length;
    for (let period = 0; period < 9; period++) await pass(30_000);
    assert.equal(compared(), 2);
    for (let period = 0; period < 120; period++) await pass(30_000);
    assert.equal(compared(), 3);
  });

  it('closes backends on stop, after the syncs in progress', async () => {
    const { backends, proxier, pass, sync } = build();
    const [v4, v6] = backends;
    const written = Promise.withResolvers<{ written: number }>();
    v4.apply = () => written.promise;
    sync('Service', 'EndpointSlice', 'Node');
    proxier.setNodeAddresses(ADDRESSES);
    await pass(0);
    const stopped = proxier.stop();
    await pass(60_000);
    assert.deepEqual([v4.closed, v6.applied.length], [0, 1]);
    written.resolve({ written: 1 });
    await stopped;
    assert.deepEqual([v4.closed, v6.closed], [1, 1]);
  });

  it('runs a full sync when rules were removed', async () => {
    const { backends, drift, proxier, pass, sync } = build();
    const [v4] = backends;
    v4.applyMs = 60_000;
    sync('Service', 'EndpointSlice', 'Node');
    proxier.setNodeAddresses(ADDRESSES);
    await pass(0);
    await pass(30_000);
    assert.equal(v4.applied.length, 1);
    v4.drift = 'device kube-ipvs0';
    await pass(30_000);
    await pass(1000);
    assert.deepEqual(drift, [['IPv4', 'device kube-ipvs0']]);
    assert.deepEqual(
      v4.applied.map(({ full }) => full),
      [true, true],
    );
  });

  it('checks one family for drift while the check of the other hangs', async () => {
    const { backends, drift, proxier, pass, sync } = build();
    const [v4, v6] = backends;
    for (const backend of backends) backend.applyMs = 60_000;
    sync('Service', 'EndpointSlice', 'Node');
    proxier.setNodeAddresses(ADDRESSES);
    await pass(0);
    const hung = Promise.withResolvers<string | undefined>();
    v4.findDrift = () => hung.promise;
    await pass(30_000);
    await pass(30_000);
    v6.drift = 'chain KUBE-PROXY-CANARY of table nat';
    await pass(30_000);
    assert.deepEqual(drift, [['IPv6', 'chain KUBE-PROXY-CANARY of table nat']]);
    hung.resolve('device kube-ipvs0');
    await pass(0);
    assert.deepEqual(drift.at(-1), ['IPv4', 'device kube-ipvs0']);
  });

  it('reports queued families and the result of each sync', async () => {
    const { table, backends, events, proxier, pass, sync } = build();
    const newEvents = () => events.splice(0);
    table.upsert(service());
    sync('Service', 'EndpointSlice', 'Node');
    await pass(0);
    assert.deepEqual(newEvents(), [], 'nothing is queued before all is known');
    proxier.setNodeAddresses(ADDRESSES);
    await pass(0);
    assert.deepEqual([...new Set(newEvents())].sort(), [
      'IPv4 queued',
      'IPv4 synced',
      'IPv6 queued',
      'IPv6 synced',
    ]);
    await pass(5000);
    backends[0].failures = 1;
    table.upsert(service({ affinitySeconds: 10 }));
    await pass(0);
    assert.deepEqual(newEvents().sort(), [
      'IPv4 failed',
      'IPv4 queued',
      'IPv6 queued',
      'IPv6 unchanged',
    ]);
    backends[0].failures = 1;
    await pass(500);
    await pass(1000);
    assert.deepEqual(newEvents(), ['IPv4 failed full', 'IPv4 synced']);
  });

  describe('network programming latency:', () => {
    const START = Date.UTC(2026, 0, 1);
    /** A proxier with all sources listed, after its first sync. */
    async function running() {
      let wall = START;
      const built = build({ wallClock: () => wall });
      const { table, reports, unchangedTriggers, pass, sync, proxier } = built;
      table.upsert(service());
      table.upsert(slice([endpoint('10.0.0.1')], { triggerTime: START + 1 }));
      sync('Service', 'EndpointSlice', 'Node');
      proxier.setNodeAddresses(ADDRESSES);
      await pass(5000);
      assert.deepEqual(
        [...reports.flatMap(({ triggerTimes }) => triggerTimes), ...unchangedTriggers],
        [],
      );
      reports.length = 0;
      const change = (triggerTime: number | undefined, address: string, fields = {}) =>
        table.upsert(slice([endpoint(address)], { triggerTime, ...fields }));
      const inForce = () => {
        const times = reports.flatMap(({ family, triggerTimes }) =>
          triggerTimes.map((time) => `${family} ${time - START}`),
        );
        reports.length = 0;
        return times;
      };
      const setWall = (time: number) => {
        wall = START + time;
      };
      return { ...built, change, inForce, setWall };
    }

    it('reports each trigger once, in the family of the slice', async () => {
      const { change, inForce, pass, setWall } = await running();
      setWall(1000);
      change(START + 500, '10.0.0.2');
      change(START + 600, '10.0.0.3');
      change(START + 700, 'fd00::1', { name: 'six', key: 'default/six', family: 'IPv6' });
      change(START + 600, '10.0.0.4');
      await pass(0);
      assert.deepEqual(inForce(), ['IPv4 500', 'IPv4 600']);
      await pass(5000);
      assert.deepEqual(inForce(), []);
    });

    it('reports triggers without a change to write', async () => {
      const { change, inForce, unchangedTriggers, pass } = await running();
      const gone = endpoint('10.0.0.9', { ready: false, serving: false });
      change(START + 500, '10.0.0.1', { endpoints: [endpoint('10.0.0.1'), gone] });
      change(START + 600, '10.0.0.1', { serviceKey: 'default/none', key: 'default/none-1' });
      await pass(0);
      // An endpoint that is not ready is part of the Route too, so the Route is written.
      assert.deepEqual([inForce(), unchangedTriggers], [['IPv4 500', 'IPv4 600'], []]);
      change(START + 700, '10.0.0.1', { serviceKey: 'default/none', key: 'default/none-1' });
      await pass(5000);
      assert.deepEqual([inForce(), unchangedTriggers], [[], [START + 700]]);
    });

    it('reports triggers with the first successful sync', async () => {
      const { change, backends, inForce, pass } = await running();
      backends[0].failures = 1;
      change(START + 500, '10.0.0.2');
      await pass(0);
      change(START + 600, '10.0.0.3');
      assert.deepEqual(inForce(), []);
      await pass(500);
      assert.deepEqual(inForce(), ['IPv4 500', 'IPv4 600']);
    });

    it('ignores triggers from before the start, of deleted slices, and in the future', async () => {
      const { change, table, inForce, unchangedTriggers, pass } = await running();
      change(undefined, '10.0.0.2');
      change(START, '10.0.0.3');
      change(START + 60_001, '10.0.0.4');
      await pass(5000);
      change(START + 500, '10.0.0.5');
      table.remove('EndpointSlice', 'default/web-1');
      await pass(5000);
      assert.deepEqual([inForce(), unchangedTriggers], [[], []]);
    });
  });

  it('releases a VIP that became a node address without waiting for the minimum period', async () => {
    const { table, backends, proxier, pass, sync } = build();
    const [v4] = backends;
    sync('Service', 'EndpointSlice', 'Node');
    proxier.setNodeAddresses(ADDRESSES);
    await pass(0);
    await pass(5000);
    table.upsert(service({ name: 'all', portsAnnotation: 'all', clusterIPs: ['10.96.0.20'] }));
    await pass(0);
    assert.deepEqual(v4.applied.at(-1)?.routes, ['default/all/IPv4']);
    proxier.setNodeAddresses([...ADDRESSES, '10.96.0.20']);
    await pass(0);
    assert.deepEqual(v4.applied.at(-1)?.routes, []);
  });

  it('succeeds when stale conntrack entries cannot be deleted', async () => {
    const { table, reports, failures, proxier, pass, sync } = build({ flowsFail: true });
    sync('Service', 'EndpointSlice', 'Node');
    table.upsert(service({ portsAnnotation: 'all' }));
    proxier.setNodeAddresses(ADDRESSES);
    await pass(0);
    assert.deepEqual(failures, []);
    const report = reports.find(({ family }) => family === 'IPv4');
    assert.match(String(report?.conntrackError), /no conntrack/);
  });

  describe('queued syncs for health checks:', () => {
    const started = async (options?: Parameters<typeof build>[0]) => {
      const built = build(options);
      built.sync('Service', 'EndpointSlice', 'Node');
      built.proxier.setNodeAddresses(ADDRESSES);
      await built.pass(0);
      await built.pass(5000);
      built.events.length = 0;
      return built;
    };
    /** Events of IPv4, without repetitions. */
    const v4 = (events: readonly string[]) =>
      events
        .filter((line) => line.startsWith('IPv4'))
        .map((line) => line.slice(5))
        .filter((line, index, all) => line !== all[index - 1]);

    it('queues no sync before all objects and node addresses are known, then the first sync', async () => {
      const { table, events, proxier, pass, sync } = build();
      table.upsert(dualStack());
      sync('Service', 'EndpointSlice', 'Node');
      await pass(5000);
      assert.deepEqual(events, []);
      proxier.setNodeAddresses(ADDRESSES);
      await pass(0);
      assert.deepEqual(v4(events), ['queued', 'synced']);
    });

    it('keeps a family in sync when only the other family changes', async () => {
      const { table, events, pass } = await started();
      table.upsert(service());
      await pass(0);
      assert.deepEqual(v4(events), ['queued', 'synced']);
      assert.deepEqual(
        events.filter((line) => line.startsWith('IPv6')),
        ['IPv6 queued', 'IPv6 unchanged'],
      );
    });

    it('keeps a change queued while syncs fail', async () => {
      const { table, backends, events, pass } = await started();
      backends[0].failures = 2;
      table.upsert(service());
      await pass(0);
      await pass(500);
      assert.deepEqual(v4(events), ['queued', 'failed', 'failed full']);
      await pass(1000);
      assert.deepEqual(v4(events), ['queued', 'failed', 'failed full', 'synced']);
    });

    it('queues a change that arrives during a sync when the sync has ended', async () => {
      const { table, backends, events, pass } = await started();
      const gate = Promise.withResolvers<void>();
      const apply = backends[0].apply.bind(backends[0]);
      backends[0].apply = async (full) => {
        await gate.promise;
        return apply(full);
      };
      table.upsert(service());
      await pass(0);
      events.length = 0;
      table.upsert(slice([endpoint('10.0.0.1')]));
      await pass(0);
      gate.resolve();
      await pass(0);
      assert.deepEqual(v4(events), ['queued', 'synced', 'queued']);
      await pass(1000);
      assert.deepEqual(v4(events), ['queued', 'synced', 'queued', 'synced']);
    });

    it('queues drift, but not a periodic full sync', async () => {
      const { backends, events, pass } = await started();
      await pass(30_000);
      await pass(1000);
      assert.deepEqual(v4(events), ['synced']);
      events.length = 0;
      backends[0].applyMs = 3_600_000;
      await pass(30_000);
      await pass(1000);
      events.length = 0;
      backends[0].drift = 'a chain';
      backends[0].failures = 1;
      await pass(30_000);
      await pass(100);
      assert.deepEqual(v4(events), ['queued', 'failed full']);
    });

    it('reports answers of health check node ports after the rules of their family', async () => {
      const { table, backends, reports, pass } = await started();
      backends[0].failures = 1;
      reports.length = 0;
      const reported = () =>
        reports.flatMap(({ family, healthChanges: health }) =>
          health.map(({ port, localEndpoints }) => [family, port, localEndpoints]),
        );
      const balanced = service({
        type: 'LoadBalancer',
        externalTrafficPolicy: 'Local',
        healthCheckNodePort: 30_001,
        clusterIPs: ['10.96.0.10', 'fd00::a'],
      });
      table.upsert(balanced);
      await pass(0);
      assert.deepEqual(reported(), [['IPv6', 30_001, 0]]);
      // Changes before the next attempt are reported with it, once.
      table.upsert(slice([endpoint('10.0.0.1')]));
      await pass(500);
      assert.deepEqual(reported(), [
        ['IPv6', 30_001, 0],
        ['IPv4', 30_001, 1],
      ]);
      reports.length = 0;
      // An endpoint without a port of the Service changes no Route.
      table.upsert(
        slice([endpoint('10.0.0.2')], {
          name: 'more',
          ports: [{ name: 'other', protocol: 'TCP', port: 1 }],
        }),
      );
      await pass(1000);
      assert.deepEqual(reported(), [['IPv4', 30_001, 2]]);
    });
  });
});

describe('proxier: Services with port ranges', () => {
  const ranged = (name: string, index: number, first: number) =>
    service({
      name,
      clusterIPs: [`10.97.0.${index}`],
      portsAnnotation: Array.from({ length: 800 }, (_, at) => `${first + 2 * at}/UDP`).join(),
    });

  it('are written in parts, and an ordinary change waits for one part only', async () => {
    const { table, proxier, pass, sync, backends, timers } = build();
    sync('Service', 'EndpointSlice', 'Node');
    proxier.setNodeAddresses(ADDRESSES);
    await pass(5000);
    const [{ applied }] = backends;
    applied.length = 0;
    const names = ['a', 'b', 'c'];
    for (const [index, name] of names.entries()) table.upsert(ranged(name, index, 1));
    table.upsert(service({ name: 'ordinary' }));
    await pass(0);
    const served = () =>
      (applied.at(-1)?.routes ?? []).map((id) => id.replace(/^default\/|\/IPv4.*/g, ''));
    assert.deepEqual(served(), ['a', 'ordinary']);
    // The rest follows, part by part, without further changes.
    for (let left = 10; left > 0 && served().length < 4; left--) await pass(1000);
    assert.deepEqual(served(), ['a', 'b', 'c', 'ordinary']);
    for (const name of names) table.remove('Service', `default/${name}`);
    table.remove('Service', 'default/ordinary');
    await pass(1000);
    assert.ok(!served().includes('ordinary'));
    for (let left = 10; left > 0 && served().length > 0; left--) await pass(1000);
    assert.deepEqual(served(), []);
    await proxier.stop();
    assert.equal(timers.pending, 0);
  });

  it('are all written by a full sync', async () => {
    const { table, proxier, pass, sync, backends } = build();
    for (const [index, name] of ['a', 'b', 'c'].entries()) table.upsert(ranged(name, index, 1));
    sync('Service', 'EndpointSlice', 'Node');
    proxier.setNodeAddresses(ADDRESSES);
    await pass(0);
    assert.deepEqual(
      backends[0].applied.map(({ full, routes }) => [full, routes.length]),
      [[true, 3]],
    );
    await proxier.stop();
  });
});

describe('proxier: changes without end', () => {
  it('put off no sync', async () => {
    const { table, proxier, pass, sync, backends } = build();
    for (let index = 0; index < 60; index++)
      table.upsert(service({ name: `s${index}`, clusterIPs: [`10.98.0.${index}`] }));
    sync('Service', 'EndpointSlice', 'Node');
    const endpoints = [endpoint('10.244.0.1')];
    let isOver = false;
    /** Changes a Service in each turn of the event loop. */
    const storm = async () => {
      while (!isOver) {
        table.upsert(slice(endpoints, { key: 'default/s1-x', serviceKey: 'default/s1' }));
        await nextTurn();
      }
    };
    const ended = storm();
    try {
      proxier.setNodeAddresses(ADDRESSES);
      for (let second = 0; second < 5; second++) await pass(1000);
      assert.ok(backends.every(({ applied }) => applied.length > 0));
    } finally {
      isOver = true;
      await ended;
      await proxier.stop();
    }
  });
});
