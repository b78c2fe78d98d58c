import assert from 'node:assert/strict';
import { RouteTable } from '../../proxier/route-table.ts';
import { endpoint, pod, podAt, service, slice } from '../fixtures.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

const OWNED = { ownedPortsAnnotation: '20000-20999/UDP', portsPerPodAnnotation: '100' };
const NO_POD =
  'endpoints own no ports, because no Pod of their namespace has their address in status.podIPs; select pods of the namespace, and with --manifests add their Pods';
const NOT_LISTED =
  'endpoints own no ports, because the Pods of their namespace cannot be listed; see the log, and let the agent list and watch pods';

/** Milliseconds for which a watch outlives the last Service that needs it. */
const KEPT = 30_000;

/** A table with watches of Pods, whose calls are recorded. */
function watching({ isListed = true } = {}) {
  const timers = new FakeTimers();
  const calls: string[] = [];
  /** Answers a list of Pods with 403. */
  const forbid = new Map<string, () => void>();
  let changes = 0;
  const table = new RouteTable({
    nodeName: 'node-a',
    allPortsEnabled: true,
    timers,
    onChange: () => changes++,
  });
  table.usePodWatches({
    begin: (namespace, onForbidden) => {
      calls.push(`begin ${namespace}`);
      forbid.set(namespace, onForbidden);
    },
    end: (namespace) => calls.push(`end ${namespace}`),
  });
  const sync = () => {
    for (const kind of ['Service', 'EndpointSlice', 'Node'] as const) table.synced(kind);
  };
  if (isListed) sync();
  const add = (namespace: string, name = 'media', address = '10.0.0.1', fields = {}) => {
    table.upsert(service({ namespace, name, clusterIPs: ['10.96.0.20'], ...OWNED, ...fields }));
    const own = { key: `${namespace}/${name}-1`, namespace, name: `${name}-1` };
    const endpoints = [endpoint(address, { ordinal: 0 })];
    table.upsert(slice(endpoints, { ...own, serviceKey: `${namespace}/${name}`, ports: [] }));
  };
  /** Owners of the Routes after all changes, and new warnings. */
  const take = () => {
    const { warnings } = table.takeChanges().refusals;
    const owners = [...table.routes()].flatMap(({ owned }) => owned?.owners ?? []);
    return [owners.map(({ address }) => address), warnings.map(({ message }) => message)];
  };
  /** Whether a change affects a Service. */
  const affects = (change: () => void) => {
    table.takeChanges();
    const before = changes;
    change();
    assert.equal(table.hasChanges, changes > before);
    return table.hasChanges;
  };
  return { table, timers, calls, forbid, sync, add, take, affects };
}

describe('owner pods: watches', () => {
  it('that wait for their list release a former listed port, which another Service gets', () => {
    const { table } = watching();
    const shared = {
      type: 'LoadBalancer' as const,
      loadBalancerIngress: [{ ip: '203.0.113.1', ipMode: 'VIP' as const }],
    };
    const old = { ...shared, name: 'old', key: 'default/old', clusterIPs: ['10.96.0.9'] };
    table.upsert(service({ ...old, creationTimestamp: '2026-01-01' }));
    table.upsert(service({ ...shared, creationTimestamp: '2026-02-01' }));
    table.takeChanges();
    table.upsert(service({ ...old, ...OWNED, creationTimestamp: '2026-01-01' }));
    const { upserts, removals } = table.takeChanges({ services: 50, cost: 0 }).routes;
    assert.deepEqual(
      [upserts, removals].map((list) => list.map(({ serviceKey }) => serviceKey)),
      [['default/web'], ['default/old']],
    );
  });

  it('begin with the first Service with owned ports of a namespace, and end with the last', () => {
    const { table, timers, calls, add } = watching();
    table.upsert(service({ namespace: 'shop', portsAnnotation: 'all' }));
    assert.deepEqual(calls, []);
    add('shop', 'a');
    add('shop', 'b');
    add('games', 'c');
    assert.deepEqual(calls.splice(0), ['begin shop', 'begin games']);
    table.remove('Service', 'shop/a');
    table.upsert(service({ namespace: 'games', name: 'c' }));
    timers.advance(KEPT);
    assert.deepEqual(calls.splice(0), ['end games']);
    table.upsert(service({ namespace: 'shop', name: 'b', ...OWNED, portsPerPodAnnotation: '0' }));
    timers.advance(KEPT);
    assert.deepEqual(calls.splice(0), ['end shop'], 'refused');
    add('games', 'c');
    assert.deepEqual(calls.splice(0), ['begin games']);
  });

  it('list no Pods again for a Service that changes to and fro', () => {
    const { table, timers, calls, add, take } = watching();
    for (let change = 0; change < 100; change++) {
      add('shop');
      if (change === 0) {
        table.upsert(podAt('10.0.0.1', 'shop'));
        table.synced('Pod', 'shop');
      }
      assert.deepEqual(take()[0], ['10.0.0.1']);
      table.remove('Service', 'shop/media');
      timers.advance(KEPT / 2);
    }
    assert.deepEqual(calls, ['begin shop']);
    timers.advance(KEPT);
    assert.deepEqual(calls, ['begin shop', 'end shop']);
  });

  it('do not begin if the mode has no owned ports', () => {
    const table = new RouteTable({
      nodeName: 'node-a',
      allPortsEnabled: true,
      modeWithoutOwnedPorts: 'ipvs',
      onChange: () => {},
    });
    table.usePodWatches({ begin: assert.fail, end: assert.fail });
    table.upsert(service(OWNED));
    table.remove('Service', 'default/web');
  });

  it('leave no Pods in the table when they end', () => {
    const { table, timers, add, take } = watching();
    add('shop');
    table.upsert(podAt('10.0.0.1', 'shop'));
    table.synced('Pod', 'shop');
    assert.deepEqual(take(), [['10.0.0.1'], []]);
    table.remove('Service', 'shop/media');
    timers.advance(KEPT);
    table.upsert(podAt('10.0.0.1', 'shop'));
    table.takeChanges();
    add('shop');
    table.synced('Pod', 'shop');
    assert.deepEqual(take(), [[], []]);
  });
});

describe('owner pods: holders of addresses', () => {
  it('are pods of the namespace that are neither finished nor on the host network', () => {
    const { table, add, take } = watching();
    add('shop');
    table.synced('Pod', 'shop');
    const own = { namespace: 'shop', addresses: ['10.0.0.1'] };
    const owners = (change: () => void) => {
      change();
      return take()[0];
    };
    assert.deepEqual(
      owners(() => table.upsert(podAt('10.0.0.1', 'other'))),
      [],
    );
    assert.deepEqual(
      owners(() => table.upsert(pod({ ...own, hostNetwork: true }))),
      [],
    );
    assert.deepEqual(
      owners(() => table.upsert(pod({ ...own, finished: true }))),
      [],
    );
    assert.deepEqual(
      owners(() => table.upsert(pod(own))),
      ['10.0.0.1'],
    );
    assert.deepEqual(
      owners(() => table.upsert(pod({ ...own, addresses: ['10.0.0.2'] }))),
      [],
    );
  });

  it('do not change while one pod hands its address over to another', () => {
    const { table, add, take, affects } = watching();
    add('shop');
    table.upsert(pod({ namespace: 'shop', name: 'old', addresses: ['10.0.0.1'] }));
    table.synced('Pod', 'shop');
    assert.deepEqual(take(), [['10.0.0.1'], []]);
    const next = pod({ namespace: 'shop', name: 'new', addresses: ['10.0.0.1'] });
    assert.equal(
      affects(() => table.upsert(next)),
      false,
    );
    assert.equal(
      affects(() => table.remove('Pod', 'shop/old')),
      false,
    );
    assert.equal(
      affects(() => table.remove('Pod', 'shop/new')),
      true,
    );
    assert.deepEqual(take()[0], []);
  });

  it('affect only Services of their namespace with an endpoint at the address', () => {
    const { table, add, affects } = watching();
    add('shop', 'a', '10.0.0.1');
    add('games', 'b', '10.0.0.1');
    add('shop', 'c', '10.0.0.3', { clusterIPs: ['10.96.0.21'] });
    for (const namespace of ['shop', 'games']) table.synced('Pod', namespace);
    table.takeChanges();
    assert.equal(
      affects(() => table.upsert(podAt('10.0.0.2', 'shop'))),
      false,
    );
    assert.equal(
      affects(() => table.upsert(podAt('10.0.0.1', 'shop'))),
      true,
    );
    let resolved = 0;
    for (; table.hasChanges; resolved++) table.takeChanges({ services: 1, cost: 1 });
    table.upsert(podAt('10.0.0.3', 'shop'));
    for (resolved = 0; table.hasChanges; resolved++) table.takeChanges({ services: 1, cost: 1 });
    assert.equal(resolved, 1);
  });
});

describe('owner pods: lists', () => {
  it('hold up a Service whose owners are not known, and nothing else', () => {
    const { table, add, take, affects } = watching();
    const spread = { portsAnnotation: '20000-20999/UDP', ownedPortsAnnotation: undefined };
    add('shop', 'media', '10.0.0.1', spread);
    table.takeChanges();
    add('shop');
    const [before] = table.takeChanges().routes.upserts;
    assert.equal(before, undefined, 'the Routes stay as they are');
    assert.equal([...table.routes()][0]?.servingEndpoints.length, 1);
    assert.equal(
      affects(() => table.upsert(service({ name: 'web' }))),
      true,
    );
    table.upsert(podAt('10.0.0.1', 'shop'));
    assert.deepEqual(take(), [[], []]);
    assert.equal(
      affects(() => table.synced('Pod', 'shop')),
      true,
    );
    assert.deepEqual(take(), [['10.0.0.1'], []]);
  });

  it('of all Pods count for each namespace', () => {
    const { table, add, take } = watching();
    add('shop');
    table.upsert(podAt('10.0.0.1', 'shop'));
    assert.deepEqual(take()[0], []);
    table.synced('Pod');
    assert.deepEqual(take()[0], ['10.0.0.1']);
  });

  it('are awaited at the start, for namespaces of the first list of Services only', () => {
    const { table, add, sync, timers } = watching({ isListed: false });
    add('shop');
    timers.advance(60_000);
    sync();
    assert.deepEqual([table.isSynced, [...table.awaitedPods]], [false, ['shop']]);
    add('games');
    table.synced('Pod', 'shop');
    assert.deepEqual([table.isSynced, [...table.awaitedPods]], [true, []]);
  });

  it('are not awaited for a namespace whose last Service goes', () => {
    const { table, add, sync, affects } = watching({ isListed: false });
    add('shop');
    sync();
    affects(() => table.remove('Service', 'shop/media'));
    assert.equal(table.isSynced, true);
  });

  it('that fail for 30 s hold up nothing any longer, and a warning says so until they succeed', () => {
    const { table, add, sync, timers, take, affects } = watching({ isListed: false });
    add('shop');
    table.upsert(podAt('10.0.0.1', 'shop'));
    sync();
    timers.advance(29_999);
    assert.equal(table.isSynced, false);
    assert.equal(
      affects(() => timers.advance(1)),
      true,
    );
    assert.equal(table.isSynced, true);
    assert.deepEqual(take(), [[], [NOT_LISTED]]);
    assert.deepEqual(
      [...table.endpointsWithoutSlice],
      [['is in a namespace whose pods cannot be listed', 1]],
    );
    assert.equal(
      affects(() => table.synced('Pod', 'shop')),
      true,
    );
    assert.deepEqual(take(), [['10.0.0.1'], []]);
    assert.deepEqual(table.inspect('shop/media')?.warnings, []);
    assert.equal(timers.pending, 0);
  });

  it('that are forbidden hold up nothing, and a warning says so until they succeed', () => {
    const { table, forbid, add, sync, timers, take, affects } = watching({ isListed: false });
    add('shop');
    add('games', 'other', '10.0.0.2', { clusterIPs: ['10.96.0.21'] });
    forbid.get('games')?.();
    sync();
    assert.deepEqual([...table.awaitedPods], ['shop']);
    assert.equal(
      affects(() => forbid.get('shop')?.()),
      true,
    );
    assert.equal(table.isSynced, true);
    assert.deepEqual(take(), [[], [NOT_LISTED]]);
    assert.equal(table.inspect('games/other')?.warnings.length, 1);
    assert.equal(timers.pending, 0);
    table.upsert(podAt('10.0.0.1', 'shop'));
    table.synced('Pod', 'shop');
    assert.deepEqual(take(), [['10.0.0.1'], []]);
    assert.equal(
      affects(() => forbid.get('shop')?.()),
      false,
      'what is known stays in force',
    );
    assert.deepEqual(take(), [['10.0.0.1'], []]);
  });

  it('of a namespace that comes later are awaited as long, by its Services only', () => {
    const { table, add, timers, take } = watching();
    add('shop');
    assert.deepEqual([table.isSynced, take()], [true, [[], []]]);
    timers.advance(30_000);
    assert.deepEqual(take(), [[], [NOT_LISTED]]);
  });
});

describe('owner pods: warnings of endpoints without a pod', () => {
  it('come only if the endpoint stays without a pod', () => {
    const { table, add, timers, take, affects } = watching();
    add('shop');
    table.synced('Pod', 'shop');
    assert.deepEqual(take(), [[], []]);
    timers.advance(9_999);
    table.upsert(podAt('10.0.0.1', 'shop'));
    assert.deepEqual(take(), [['10.0.0.1'], []]);
    assert.equal(timers.pending, 0);
    table.remove('Pod', podAt('10.0.0.1', 'shop').key);
    assert.deepEqual(take(), [[], []]);
    assert.equal(
      affects(() => timers.advance(10_000)),
      true,
    );
    assert.deepEqual(take(), [[], [NO_POD]]);
    add('shop', 'media', '10.0.0.7');
    assert.deepEqual(take(), [[], []], 'no second warning');
    table.remove('Service', 'shop/media');
    table.takeChanges();
    timers.advance(KEPT);
    assert.deepEqual([timers.pending, table.endpointsWithoutSlice.size], [0, 0]);
  });
});
