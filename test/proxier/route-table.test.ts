import assert from 'node:assert/strict';
import { type Node, POLICY_KINDS, SERVING_KINDS, type Service } from '../../api/objects.ts';
import { isSameOwner, ownerPairs } from '../../endpoints/slice-owners.ts';
import { RouteTable } from '../../proxier/route-table.ts';
import { endpoint, service, servicePort, slice, upsertWithPods } from '../fixtures.ts';
import { FakeTimers } from '../sync/fake-timers.ts';

const newTable = () =>
  new RouteTable({ nodeName: 'node-a', allPortsEnabled: true, onChange: () => {} });

const node = (zone: string, name = 'node-a'): Node => ({
  kind: 'Node',
  key: name,
  name,
  labels: {},
  zone,
  podCIDRs: [],
  addresses: [],
  deleting: false,
  taints: [],
});

/** Endpoints of each changed Route. */
const takeEndpoints = (table: RouteTable) =>
  table
    .takeChanges()
    .routes.upserts.map(({ name, clusterEndpoints }) => [
      name,
      clusterEndpoints.map(({ address }) => address).join(),
    ]);

describe('route-table: a VIP that Services of other namespaces request', () => {
  const owner = service();
  const claimant = (key: string, number: number, port = 22) =>
    service({
      key,
      namespace: key.split('/')[0] ?? '',
      clusterIPs: [`10.96.0.${number}`],
      externalIPs: ['10.96.0.10'],
      ports: [servicePort({ port })],
    });
  const changes = (table: RouteTable) => {
    const { raised, cleared, warnings } = table.takeChanges().refusals;
    const keys = (list: readonly { serviceKey: string }[]) =>
      list.map(({ serviceKey }) => serviceKey).sort();
    return { raised: keys(raised), cleared: keys(cleared), warned: keys(warnings) };
  };

  it('refuses the VIP and warns its owner, once for each namespace', () => {
    const table = newTable();
    for (const each of [owner, claimant('evil/a', 11), claimant('evil/b', 12)]) table.upsert(each);
    assert.deepEqual(changes(table), {
      raised: ['evil/a', 'evil/b'],
      cleared: [],
      warned: [owner.key],
    });
    assert.deepEqual(
      table.inspect(owner.key)?.warnings.map(({ message }) => message),
      [
        '10.96.0.10: Services of namespace evil request ports of this VIP that belong to Service default/web, and are refused; ask the owner of the namespace to remove the address',
      ],
    );
    table.upsert(claimant('evil/c', 13, 5060));
    table.upsert(claimant('evil/a', 11, 5060));
    assert.deepEqual(changes(table), { raised: ['evil/c'], cleared: [], warned: [] });
    table.upsert(claimant('other/a', 14));
    assert.deepEqual(changes(table).warned, [owner.key]);
    for (const name of ['evil/a', 'evil/b', 'evil/c', 'other/a']) table.remove('Service', name);
    changes(table);
    assert.deepEqual(table.inspect(owner.key)?.warnings, []);
  });

  it('gives the VIP to the claimant when its owner is deleted', () => {
    const table = newTable();
    for (const each of [owner, claimant('evil/a', 11)]) table.upsert(each);
    table.takeChanges();
    table.remove('Service', owner.key);
    assert.deepEqual(changes(table).cleared, ['evil/a']);
    assert.deepEqual(
      [...table.routes()].map(({ externalIPs }) => externalIPs),
      [['10.96.0.10']],
    );
  });

  it('resolves no claimant when the owner changes, however many there are', () => {
    const table = newTable();
    table.upsert(owner);
    for (let number = 0; number < 1000; number++) table.upsert(claimant(`evil/s${number}`, 11));
    table.takeChanges();
    table.upsert({ ...owner, portsAnnotation: 'all' });
    assert.equal(table.takeChanges({ services: 1, cost: 1 }).refusals.raised.length, 0);
    assert.equal(table.hasChanges, false);
  });
});

describe('route-table: incremental resolution', () => {
  it('resolves affected Services and returns changed Routes only', () => {
    const table = newTable();
    for (const name of ['a', 'b']) {
      table.upsert(service({ name, clusterIPs: [name === 'a' ? '10.96.0.1' : '10.96.0.2'] }));
    }
    table.takeChanges();
    table.upsert(slice([endpoint('10.0.0.1')], { serviceKey: 'default/a' }));
    assert.deepEqual(takeEndpoints(table), [['default/a', '10.0.0.1']]);
    table.upsert(slice([endpoint('10.0.0.1', { zone: 'elsewhere' })], { serviceKey: 'default/a' }));
    assert.deepEqual(takeEndpoints(table), []);
    assert.equal(table.hasChanges, false);
  });

  it('removes a slice from its old Service when its label changes', () => {
    const table = newTable();
    table.upsert(service({ name: 'a', clusterIPs: ['10.96.0.1'] }));
    table.upsert(service({ name: 'b', clusterIPs: ['10.96.0.2'] }));
    const moving = { name: 'moving', key: 'default/moving' };
    table.upsert(slice([endpoint('10.0.0.1')], { ...moving, serviceKey: 'default/a' }));
    table.takeChanges();
    table.upsert(slice([endpoint('10.0.0.1')], { ...moving, serviceKey: 'default/b' }));
    assert.deepEqual(takeEndpoints(table).sort(), [
      ['default/a', ''],
      ['default/b', '10.0.0.1'],
    ]);
  });

  it('removes a slice that gets the headless label', () => {
    const table = newTable();
    table.upsert(service());
    table.upsert(slice([endpoint('10.0.0.1')]));
    assert.deepEqual(takeEndpoints(table), [['default/web', '10.0.0.1']]);
    table.upsert(slice([endpoint('10.0.0.1')], { headlessLabel: true }));
    assert.deepEqual(takeEndpoints(table), [['default/web', '']]);
  });

  it('uses slices that arrived before their Service', () => {
    const table = newTable();
    table.upsert(slice([endpoint('10.0.0.1')]));
    assert.deepEqual(takeEndpoints(table), []);
    table.upsert(service());
    assert.deepEqual(takeEndpoints(table), [['default/web', '10.0.0.1']]);
  });

  it("resolves every Service when this node's zone changes, none for other nodes", () => {
    const table = newTable();
    table.upsert(service());
    table.upsert(
      slice([
        endpoint('10.0.0.1', { hintedZones: ['east'] }),
        endpoint('10.0.0.2', { hintedZones: ['west'] }),
      ]),
    );
    table.upsert(node('east'));
    assert.deepEqual(takeEndpoints(table), [['default/web', '10.0.0.1']]);
    table.upsert(node('west', 'node-b'));
    assert.deepEqual(takeEndpoints(table), []);
    table.upsert(node('west'));
    assert.deepEqual(takeEndpoints(table), [['default/web', '10.0.0.2']]);
  });

  it('ignores objects of other kinds', () => {
    let changes = 0;
    const table = new RouteTable({
      nodeName: 'node-a',
      allPortsEnabled: true,
      onChange: () => changes++,
    });
    for (const kind of ['Service', 'EndpointSlice'] as const) table.synced(kind);
    assert.equal(changes, 2);
    table.upsert(node('z1', 'node-b'));
    table.upsert({ kind: 'Namespace', key: 'a', name: 'a', labels: {} });
    table.remove('Namespace', 'a');
    table.remove('Pod', 'default/a');
    for (const kind of POLICY_KINDS) table.synced(kind);
    assert.equal(changes, 2);
    assert.equal(table.isSynced, false);
    assert.deepEqual(
      [table.changeCounts.Service.total, table.changeCounts.EndpointSlice.total],
      [0, 0],
    );
    table.synced('Node');
    assert.equal(table.isSynced, true);
  });

  it('is synced when all kinds are listed that rules depend on', () => {
    const table = new RouteTable({
      nodeName: 'node-a',
      allPortsEnabled: true,
      awaitedKinds: [...SERVING_KINDS, 'ServiceCIDR'],
      onChange: () => {},
    });
    for (const kind of SERVING_KINDS) table.synced(kind);
    assert.deepEqual([table.isSynced, [...table.unsynced]], [false, ['ServiceCIDR']]);
    table.synced('ServiceCIDR');
    assert.equal(table.isSynced, true);
  });

  it('serves after 30 seconds, though a kind that Services do not need cannot be listed', () => {
    const timers = new FakeTimers();
    let changes = 0;
    const table = new RouteTable({
      nodeName: 'node-a',
      allPortsEnabled: true,
      awaitedKinds: [...SERVING_KINDS, 'ServiceCIDR'],
      timers,
      onChange: () => changes++,
    });
    timers.advance(60_000);
    for (const kind of SERVING_KINDS) table.synced(kind);
    timers.advance(29_999);
    assert.equal(table.isSynced, false);
    const before = changes;
    timers.advance(1);
    assert.deepEqual([table.isSynced, changes > before], [true, true]);
  });

  it('reports refusals when they are raised and cleared', () => {
    const table = newTable();
    const refused = service({ portsAnnotation: 'all', type: 'NodePort' });
    table.upsert(refused);
    const reasons = (list: readonly { reason: string }[]) => list.map(({ reason }) => reason);
    assert.deepEqual(reasons(table.takeChanges().refusals.raised), ['NodePort']);
    assert.deepEqual(reasons([...table.refusals()]), ['NodePort']);
    table.upsert({ ...refused, affinitySeconds: 10 });
    assert.deepEqual(table.takeChanges().refusals.raised, []);
    table.upsert({ ...refused, type: 'ClusterIP' });
    const { refusals, routes } = table.takeChanges();
    assert.deepEqual([reasons(refusals.raised), reasons(refusals.cleared)], [[], ['NodePort']]);
    assert.equal(routes.upserts.length, 1);
    assert.deepEqual([...table.refusals()], []);
  });

  it('reports Services that are refused as a whole, and then served or deleted', () => {
    const table = newTable();
    const web = service({ portsAnnotation: 'all' });
    const changes = () => [...table.takeChanges().refused];
    table.upsert(web);
    assert.deepEqual(changes(), []);
    table.upsert({ ...web, type: 'NodePort' });
    assert.deepEqual(changes(), [[web.key, 'refused']]);
    table.upsert({ ...web, portsAnnotation: 'nonsense' });
    assert.deepEqual(changes(), []);
    table.upsert(web);
    assert.deepEqual(changes(), [[web.key, 'served']]);
    table.remove('Service', web.key);
    assert.deepEqual(changes(), [[web.key, 'deleted']]);
    table.upsert({ ...web, type: 'NodePort' });
    table.takeChanges();
    table.remove('Service', web.key);
    assert.deepEqual(changes(), [[web.key, 'deleted']]);
    // A deleted Service that was never refused is not reported.
    table.upsert(web);
    table.remove('Service', web.key);
    assert.deepEqual(changes(), []);
    // Refused for one VIP only, which another Service owns.
    for (const name of ['a', 'b']) table.upsert({ ...web, key: `default/${name}`, name });
    assert.equal(table.takeChanges().refusals.raised.length, 1);
    assert.deepEqual(changes(), []);
  });

  it('reports changed health check node ports', () => {
    const table = newTable();
    const balanced = service({
      type: 'LoadBalancer',
      externalTrafficPolicy: 'Local',
      healthCheckNodePort: 30_001,
      clusterIPs: ['10.96.0.10', 'fd00::a'],
    });
    const warnings = () =>
      table
        .takeChanges()
        .health.map(
          ({ serviceKey, family, port, localEndpoints }) =>
            `${serviceKey} ${family} ${port} ${localEndpoints}`,
        );
    table.upsert(balanced);
    table.upsert(service({ name: 'other', clusterIPs: ['10.96.0.11'] }));
    assert.deepEqual(warnings(), ['default/web IPv4 30001 0', 'default/web IPv6 30001 0']);
    table.upsert(slice([endpoint('10.0.0.1')]));
    assert.deepEqual(warnings(), ['default/web IPv4 30001 1']);
    table.upsert(slice([endpoint('10.0.0.1'), endpoint('10.0.1.1', { nodeName: 'node-b' })]));
    table.upsert(slice([endpoint('10.0.0.2')], { serviceKey: 'default/other' }));
    assert.deepEqual(warnings(), []);
    table.upsert({ ...balanced, clusterIPs: ['10.96.0.10'], healthCheckNodePort: 30_002 });
    assert.deepEqual(warnings(), ['default/web IPv6 0 0', 'default/web IPv4 30002 1']);
    table.upsert({ ...balanced, externalTrafficPolicy: 'Cluster' });
    assert.deepEqual(warnings(), ['default/web IPv4 0 0']);
    table.upsert(balanced);
    table.takeChanges();
    table.remove('Service', balanced.key);
    assert.deepEqual(warnings(), ['default/web IPv4 0 0', 'default/web IPv6 0 0']);
    table.upsert(balanced);
    assert.deepEqual(warnings(), ['default/web IPv4 30001 1', 'default/web IPv6 30001 0']);
  });

  it('counts changes of Services and EndpointSlices, and pending ones', () => {
    const table = newTable();
    const counts = () => {
      const { Service, EndpointSlice } = table.changeCounts;
      return [Service.total, Service.pending, EndpointSlice.total, EndpointSlice.pending];
    };
    table.upsert(service({ name: 'a', clusterIPs: ['10.96.0.1'] }));
    table.upsert(service({ name: 'b', clusterIPs: ['10.96.0.2'] }));
    table.upsert(slice([endpoint('10.0.0.1')], { serviceKey: 'default/a' }));
    table.upsert(node('east'));
    assert.deepEqual(counts(), [2, 2, 1, 1]);
    table.takeChanges({ services: 1, cost: 1 });
    assert.deepEqual(counts(), [2, 2, 1, 1]);
    table.takeChanges({ services: 1, cost: 1 });
    assert.deepEqual(counts(), [2, 0, 1, 0]);
    table.remove('EndpointSlice', 'default/a-1');
    table.remove('Service', 'default/b');
    table.remove('Node', 'node-a');
    assert.deepEqual(counts(), [3, 1, 2, 1]);
  });

  it('warns once of a host-network pod behind an all-ports VIP', () => {
    const table = newTable();
    table.setNodeAddresses(new Set(['192.0.2.1']));
    table.upsert(service({ portsAnnotation: 'all' }));
    table.upsert(slice([endpoint('192.0.2.1')]));
    assert.equal(table.takeChanges().refusals.warnings.length, 1);
    table.upsert(slice([endpoint('192.0.2.1'), endpoint('10.0.0.1')]));
    assert.equal(table.takeChanges().refusals.warnings.length, 0);
  });

  describe('warns once of manifests that do not match:', () => {
    const table = () =>
      new RouteTable({
        nodeName: 'node-a',
        allPortsEnabled: true,
        warnsOfMismatches: true,
        onChange: () => {},
      });
    const warnings = (of: RouteTable) =>
      of
        .takeChanges()
        .refusals.warnings.map(({ serviceKey, sliceKey, message }) => [
          sliceKey ?? serviceKey,
          message,
        ]);
    const one = [endpoint('10.0.0.1')];

    it('warns of a Service without a cluster IP', () => {
      const of = table();
      of.upsert(service({ name: 'a', type: 'NodePort', clusterIPs: [] }));
      of.upsert(service({ name: 'b', clusterIPs: [] }));
      of.upsert(service({ name: 'headless', headless: true, clusterIPs: [] }));
      of.upsert(service({ name: 'alias', type: 'ExternalName', clusterIPs: [] }));
      of.upsert(service({ name: 'refused', portsAnnotation: 'all', clusterIPs: [] }));
      assert.deepEqual(warnings(of), [
        [
          'default/a',
          'spec.clusterIPs: no cluster IP, so the Service is not served, not even on its node ports and load balancer IPs; an API server assigns a cluster IP, but a manifest must set it',
        ],
        [
          'default/b',
          'spec.clusterIPs: no cluster IP, so the Service is not served; an API server assigns a cluster IP, but a manifest must set it',
        ],
      ]);
      of.upsert(service({ name: 'a', type: 'NodePort', clusterIPs: [], affinitySeconds: 5 }));
      assert.deepEqual(warnings(of), []);
    });

    it('warns of a slice without a port of its Service', () => {
      const of = table();
      const ports = [{ name: 'https', protocol: 'TCP' as const, port: 8080 }];
      of.upsert(service({ ports: [servicePort({ name: 'http' })] }));
      of.upsert(slice(one, { ports }));
      of.upsert(slice([], { name: 'empty', key: 'default/empty', ports: [] }));
      assert.deepEqual(warnings(of), [
        [
          'default/web-1',
          'ports: no numbered port matches name and protocol of a port of Service default/web ("http" TCP), so this slice is not used; name the ports as in the Service',
        ],
      ]);
      of.upsert(slice(one, { ports: [{ name: 'http', protocol: 'UDP', port: 1 }] }));
      assert.deepEqual(warnings(of), [], 'the warning is reported once');
      of.upsert(slice(one, { ports: [{ name: 'http', protocol: 'TCP', port: 1 }] }));
      assert.deepEqual(warnings(of), []);
      of.upsert(slice(one, { ports: [{ name: 'http', protocol: 'TCP', port: undefined }] }));
      assert.equal(warnings(of).length, 1, 'a new slice is reported again');
      of.upsert(service({ portsAnnotation: 'all', ports: [servicePort({ name: 'http' })] }));
      assert.deepEqual(warnings(of), [], 'an all-ports Service uses every slice');
    });

    it('warns of a slice of a Service that does not exist', () => {
      const of = table();
      of.upsert(slice(one, { serviceKey: 'default/typo' }));
      assert.deepEqual(warnings(of), [
        [
          'default/typo-1',
          'metadata.labels["kubernetes.io/service-name"]: Service default/typo does not exist, so this slice is not used; correct the name or add the Service',
        ],
      ]);
      of.upsert(service({ name: 'typo' }));
      assert.deepEqual(warnings(of), []);
      of.remove('Service', 'default/typo');
      assert.equal(warnings(of).length, 1);
    });

    it('does not warn when objects come from an API server in any order', () => {
      const of = newTable();
      of.upsert(slice(one, { serviceKey: 'default/later' }));
      of.upsert(service({ clusterIPs: [] }));
      of.upsert(slice(one, { ports: [{ name: 'other', protocol: 'TCP', port: 1 }] }));
      assert.deepEqual(warnings(of), []);
    });
  });

  describe('warns once of a Service port that hides a listener of the node:', () => {
    const table = (isLoopbackServed = true) =>
      new RouteTable({
        nodeName: 'node-a',
        allPortsEnabled: true,
        listeners: [
          { name: 'ssh', port: 22, isOnLoopbackOnly: false },
          { name: 'metrics', port: 10249, isOnLoopbackOnly: true },
        ],
        isLoopbackServed,
        onChange: () => {},
      });
    const warnings = (of: RouteTable) =>
      of
        .takeChanges()
        .refusals.warnings.map(({ serviceKey, isOfThisNode, message }) => [
          serviceKey,
          isOfThisNode,
          message,
        ]);
    const nodePort = (port: number) => ({
      name: `n${port}`,
      type: 'NodePort' as const,
      clusterIPs: [`10.96.2.${port % 250}`, `fd00::${port}`],
      ports: [servicePort({ nodePort: port })],
    });

    it('warns of a node port that hides a listener', () => {
      const of = table();
      of.upsert(service(nodePort(22)));
      of.upsert(service(nodePort(10249)));
      of.upsert(service(nodePort(30022)));
      of.upsert(
        service({
          ...nodePort(22),
          name: 'udp',
          ports: [servicePort({ protocol: 'UDP', nodePort: 22 })],
        }),
      );
      const message = (port: string, name: string) =>
        `spec.ports.nodePort: ${port}/TCP is also the port of ${name} on nodes: the Service receives connections to it on node port addresses; use another node port`;
      assert.deepEqual(warnings(of), [
        ['default/n22', undefined, message('22', 'ssh')],
        ['default/n10249', undefined, message('10249', 'metrics')],
      ]);
      assert.equal(of.servicesOnListenerPorts, 2);
      assert.ok(
        [...of.routes()].some(({ nodePort: port }) => port === 22),
        'it is served',
      );
      of.remove('Service', 'default/n22');
      assert.deepEqual([warnings(of), of.servicesOnListenerPorts], [[], 1]);
    });

    it('does not warn of loopback listeners when node ports are not served on loopback', () => {
      const of = table(false);
      of.upsert(service(nodePort(10249)));
      assert.deepEqual([warnings(of), of.servicesOnListenerPorts], [[], 0]);
    });

    it('warns of a VIP that is or becomes a node address', () => {
      const of = table();
      const ports = [servicePort({ port: 22 })];
      of.setNodeAddresses(new Set(['192.0.2.1']));
      of.upsert(service({ externalIPs: ['192.0.2.1', '192.0.2.2'], ports }));
      const other = { name: 'web', key: 'x/web', clusterIPs: ['10.96.0.11'] };
      of.upsert(service({ ...other, externalIPs: ['192.0.2.1'] }));
      const message = (ip: string) =>
        `spec.externalIPs: ${ip} is an address of this node, and 22/TCP is the port of ssh there: the Service receives connections to it; use another address or port`;
      assert.deepEqual(warnings(of), [['default/web', true, message('192.0.2.1')]]);
      of.setNodeAddresses(new Set(['192.0.2.1', '192.0.2.2']));
      assert.deepEqual(warnings(of), [['default/web', true, message('192.0.2.2')]]);
      of.setNodeAddresses(new Set());
      assert.deepEqual([warnings(of), of.servicesOnListenerPorts], [[], 0]);
    });
  });

  it('warns once of unknown annotations, and again when they change', () => {
    const table = newTable();
    const warnings = (...unknownAnnotations: readonly string[]) => {
      table.upsert(service({ unknownAnnotations }));
      return table.takeChanges().refusals.warnings.length;
    };
    assert.deepEqual([warnings('a'), warnings('a'), warnings('b')], [1, 0, 1]);
  });
});

describe('route-table: a node port of another Service, on an external IP that is a node address', () => {
  const NODE = '192.0.2.1';
  const owner = (nodePort = 30_080) =>
    service({ type: 'NodePort', ports: [servicePort({ nodePort })] });
  const taker = (fields: Parameters<typeof servicePort>[0] = {}, externalIPs = [NODE]) =>
    service({
      key: 'evil/taker',
      namespace: 'evil',
      name: 'taker',
      clusterIPs: ['10.96.0.66'],
      externalIPs,
      ports: [servicePort({ port: 30_080, ...fields })],
    });
  const start = () => {
    const table = newTable();
    table.setNodeAddresses(new Set([NODE]));
    return table;
  };
  const raised = (table: RouteTable) =>
    table
      .takeChanges()
      .refusals.warnings.map(({ serviceKey, message }) => `${serviceKey} ${message}`)
      .sort();
  const TAKEN = [
    'default/web spec.ports.nodePort: 30080/TCP on 192.0.2.1 leads to a Service of namespace evil by its spec.externalIPs; use another node port, or ask the owner of the namespace to remove the address',
    'evil/taker spec.externalIPs: 192.0.2.1 is an address of this node, and 30080/TCP is the node port of another Service: this Service receives connections to it there; use another address or port',
  ];
  const inForce = (table: RouteTable) =>
    ['default/web', 'evil/taker'].flatMap((key) => table.inspect(key)?.warnings ?? []).length;

  it('warns both Services, whichever comes last, until one of them changes', () => {
    for (const services of [
      [owner(), taker()],
      [taker(), owner()],
    ]) {
      const table = start();
      const warnings = services.flatMap((each) => {
        table.upsert(each);
        return raised(table);
      });
      assert.deepEqual(warnings.sort(), TAKEN);
      table.upsert(taker({ port: 30_081 }));
      assert.deepEqual(raised(table), []);
      assert.equal(inForce(table), 0);
      table.upsert(taker());
      assert.deepEqual(raised(table), TAKEN);
      table.upsert(owner(30_081));
      table.takeChanges();
      assert.equal(inForce(table), 0);
    }
  });

  it('warns when the address becomes one of the node, and no longer when it is not', () => {
    const table = newTable();
    for (const each of [owner(), taker()]) table.upsert(each);
    assert.deepEqual(raised(table), []);
    table.setNodeAddresses(new Set([NODE]));
    assert.deepEqual(raised(table), TAKEN);
    table.setNodeAddresses(new Set());
    table.takeChanges();
    assert.equal(inForce(table), 0);
  });

  it('looks at the Services with a changed address only', () => {
    const table = newTable();
    const others = ['203.0.113.1', '203.0.113.2'].map((address, index) =>
      service({
        key: `default/other-${index}`,
        name: `other-${index}`,
        clusterIPs: [`10.96.1.${index}`],
        externalIPs: [address],
      }),
    );
    for (const each of [owner(), taker(), ...others]) table.upsert(each);
    table.takeChanges();
    const looked = new Set<string>();
    for (const route of table.routes()) {
      const { externalIPs, serviceKey } = route;
      Object.defineProperty(route, 'externalIPs', {
        get: () => {
          looked.add(serviceKey);
          return externalIPs;
        },
      });
    }
    for (const addresses of [[NODE], [NODE, '198.51.100.7'], ['203.0.113.1'], []])
      table.setNodeAddresses(new Set(addresses));
    // An affected Service is looked at for its warnings, too.
    assert.deepEqual([...looked].sort(), ['default/other-0', 'default/web', 'evil/taker']);
  });

  it('does not warn of another protocol, another address, or a Service with its own node port', () => {
    const table = start();
    const own = service({
      type: 'NodePort',
      name: 'own',
      key: 'default/own',
      clusterIPs: ['10.96.0.9'],
      externalIPs: [NODE],
      ports: [servicePort({ port: 30_090, nodePort: 30_090 })],
    });
    for (const each of [owner(), taker({ protocol: 'UDP' }), own]) table.upsert(each);
    assert.deepEqual(raised(table), []);
    table.upsert(taker({}, ['203.0.113.9']));
    assert.deepEqual(raised(table), []);
  });
});

describe('route-table: a Service with many addresses', () => {
  /** Microseconds that a Service with so many external IPs takes. */
  const cost = (count: number) => {
    const table = newTable();
    const externalIPs = Array.from(
      { length: count },
      (_, index) => `203.0.${index >> 8}.${index & 255}`,
    );
    const before = process.cpuUsage();
    table.upsert(service({ externalIPs }));
    table.takeChanges();
    const { user, system } = process.cpuUsage(before);
    return user + system;
  };

  it('costs what it has, not its square', function () {
    this.timeout(60_000);
    cost(1000);
    const [few, many] = [cost(1000), cost(16_000)];
    // 16 times as many, 256 times for the square.
    assert.ok(many < 64 * few, `${few} µs for 1,000 addresses, ${many} for 16,000`);
  });
});

describe('route-table: the budget of entries of a namespace', () => {
  const VIPS = 163;
  /** A Service with 32,800 entries. */
  const large = (name: string, clusterIP: string, count: number) =>
    service({
      namespace: 'evil',
      name,
      creationTimestamp: name,
      clusterIPs: [clusterIP],
      externalIPs: Array.from({ length: VIPS }, (_, index) => `203.0.113.${index}`),
      ports: Array.from({ length: count }, (_, index) =>
        servicePort({ name: `p${index}`, port: index + 1 }),
      ),
    });

  it('refuses what exceeds it, by the default of all modes, and says what to do', () => {
    const table = newTable();
    table.upsert(service());
    table.upsert(large('2026-01-01', '10.96.0.1', 200));
    const { routes, refusals } = table.takeChanges();
    assert.deepEqual(
      routes.upserts.map(({ serviceKey }) => serviceKey),
      ['default/web'],
    );
    const [{ reason, field, message } = assert.fail('no refusal')] = refusals.raised;
    assert.deepEqual([reason, field], ['Budget', 'spec.ports']);
    assert.match(message, /^32800 entries .* of the 32768 for namespace evil .*; list fewer ports/);
    table.upsert(large('2026-01-01', '10.96.0.1', 199));
    const changed = table.takeChanges();
    assert.equal(changed.routes.upserts.length, 199);
    assert.equal(changed.refusals.cleared.length, 1);
  });
});

describe('route-table: Services that wait for ordinary ones', () => {
  const [SHARED, ORDINARY_ONLY] = ['203.0.113.1', { services: 50, cost: 0 }];
  /** A Service with 205 entries for each port, among them a node port. */
  const large = (ports: readonly number[]) =>
    service({
      type: 'LoadBalancer',
      name: 'large',
      key: 'default/large',
      creationTimestamp: '2026-01-01',
      clusterIPs: ['10.96.0.66'],
      externalIPs: Array.from({ length: 203 }, (_, index) => `198.51.100.${index}`),
      loadBalancerIngress: [{ ip: SHARED, ipMode: 'VIP' }],
      ports: ports.map((port) => servicePort({ name: `p${port}`, port, nodePort: 30_000 + port })),
    });
  const ranged = (portsAnnotation?: string) =>
    service({
      type: 'LoadBalancer',
      name: 'ranged',
      key: 'default/ranged',
      creationTimestamp: '2026-01-01',
      clusterIPs: ['10.96.0.67'],
      loadBalancerIngress: [{ ip: SHARED, ipMode: 'VIP' }],
      portsAnnotation,
    });
  const other = (fields: Partial<Service> = {}) =>
    service({
      type: 'LoadBalancer',
      creationTimestamp: '2026-02-01',
      loadBalancerIngress: [{ ip: SHARED, ipMode: 'VIP' }],
      ...fields,
    });
  const names = ({ upserts, removals }: ReturnType<RouteTable['takeChanges']>['routes']) =>
    [upserts, removals].map((list) => list.map(({ id }) => id).sort());
  const start = (...services: readonly Service[]) => {
    const table = newTable();
    for (const each of services) table.upsert(each);
    table.takeChanges();
    return table;
  };
  const PORTS = [80, 81, 82, 83, 84];

  it('a large Service waits, and an ordinary one does not', () => {
    const table = start(large(PORTS));
    table.upsert(large([80, 81, 82, 83, 85]));
    table.upsert(service());
    const { upserts } = table.takeChanges(ORDINARY_ONLY).routes;
    assert.deepEqual(
      upserts.map(({ serviceKey }) => serviceKey),
      ['default/web'],
    );
    assert.equal(table.waiting.ordinary, 0);
    const waited = names(table.takeChanges({ services: 50, cost: 1 }).routes);
    assert.deepEqual(waited, [['default/large/IPv4/TCP/p85'], ['default/large/IPv4/TCP/p84']]);
  });

  it('a large Service waits, though another one of its VIP changes', () => {
    const table = start(large(PORTS), other({ ports: [servicePort({ port: 90 })] }));
    table.upsert(large([80, 81, 82, 83, 85]));
    table.upsert(other({ ports: [servicePort({ port: 91 })] }));
    assert.deepEqual(names(table.takeChanges(ORDINARY_ONLY).routes)[1], []);
    assert.ok(table.hasChanges);
  });

  it('a Service gets a port together with the ordinary one that gives it up, though that waits behind it', () => {
    const first = other({ name: 'old', key: 'default/old', creationTimestamp: '2026-01-01' });
    const table = start(first, other());
    table.upsert(other({ affinitySeconds: 10 }));
    table.upsert({ ...first, loadBalancerIngress: [] });
    const { upserts, removals } = table.takeChanges({ services: 1, cost: 0 }).routes;
    const vips = [...upserts, ...removals].map((each) => [each.serviceKey, each.loadBalancerIPs]);
    assert.deepEqual(vips.sort(), [
      ['default/old', []],
      ['default/web', [SHARED]],
    ]);
  });

  it('a Service with ranges waits for nothing when its VIP becomes an address of the node', () => {
    const table = start(ranged('1000-2000'));
    table.setNodeAddresses(new Set([SHARED]));
    assert.equal(table.waiting.ordinary, 1);
    const { upserts } = table.takeChanges(ORDINARY_ONLY).routes;
    assert.deepEqual(
      upserts.map(({ loadBalancerIPs }) => loadBalancerIPs),
      [[]],
    );
  });

  for (const [title, before, after] of [
    ['gives up', large(PORTS), large([81, 82, 83, 84, 85])],
    ['has no longer, because it has ranges now', ranged(), ranged('1000-2000')],
  ] as const) {
    it(`a Service gets a port together with the change of a waiting one that ${title} the port`, () => {
      const lost = `default/${before.name}/IPv4/TCP/${before.name === 'large' ? 'p80' : ''}`;
      for (const isRefusedFirst of [true, false]) {
        const table = start(before, ...(isRefusedFirst ? [other()] : []));
        table.upsert(after);
        if (!isRefusedFirst) table.upsert(other());
        const [gained, removed] = names(table.takeChanges(ORDINARY_ONLY).routes);
        assert.ok(gained?.includes('default/web/IPv4/TCP/'), String(gained));
        assert.deepEqual(removed, [lost]);
      }
    });
  }

  it('a Service gets a port together with the removal of a waiting one, also a node port', () => {
    for (const fields of [
      {},
      { loadBalancerIngress: [], ports: [servicePort({ nodePort: 30_080 })] },
    ]) {
      const table = start(large(PORTS));
      table.remove('Service', 'default/large');
      table.upsert(other(fields));
      const [gained, removed] = names(table.takeChanges(ORDINARY_ONLY).routes);
      assert.deepEqual(gained, ['default/web/IPv4/TCP/']);
      assert.equal(removed?.length, PORTS.length);
    }
  });
});

describe('route-table: a Service with many owners of ports', () => {
  const LIMITS = { services: 0, cost: 1000, owners: 4 };
  const pods = (third: number) =>
    slice(
      Array.from({ length: 10 }, (_, ordinal) =>
        endpoint(`10.244.${third}.${ordinal}`, { ordinal, ordinalPrefix: 'web-' }),
      ),
    );
  const owned = (fields: Partial<Service> = {}) =>
    service({ ownedPortsAnnotation: '1000-1009/UDP', portsPerPodAnnotation: '1', ...fields });
  const take = (table: RouteTable, limits = LIMITS) => {
    const { upserts, removals, before } = table.takeChanges(limits).routes;
    const counts = upserts.map(({ id, owned: slices }) => {
      const old = before.get(id)?.owned?.owners ?? [];
      const now = slices?.owners ?? [];
      return [...ownerPairs(old, now)].filter(([a, b]) => !isSameOwner(a, b)).length;
    });
    return [...counts, ...removals.map(() => 'removed')];
  };
  const start = () => {
    const table = newTable();
    table.upsert(owned());
    for (const third of [2, 1, 0]) upsertWithPods(table, pods(third));
    return table;
  };

  it('changes in steps, and waits until the last of them', () => {
    const table = start();
    assert.deepEqual(take(table), [4]);
    assert.ok(table.hasChanges);
    assert.deepEqual([take(table), take(table), table.hasChanges], [[4], [2], false]);
    table.upsert(pods(1));
    assert.deepEqual([take(table), take(table), take(table)], [[4], [4], [2]]);
    assert.equal(table.hasChanges, false);
  });

  it('follows a change that comes in between', () => {
    const table = start();
    take(table);
    table.upsert(pods(1));
    const steps = [take(table), take(table), take(table)];
    assert.deepEqual(steps, [[4], [4], [2]]);
    const [route] = table.routes();
    assert.ok(route?.owned?.owners.every(({ address }) => address.startsWith('10.244.1.')));
  });

  it('is removed at once, also between two steps', () => {
    const table = start();
    take(table);
    table.remove('Service', 'default/web');
    assert.equal(table.waiting.costly, 1);
    assert.deepEqual([take(table), table.hasChanges], [['removed'], false]);
  });

  it('changes at once in a full sync, and if it served other ports before', () => {
    const table = start();
    take(table);
    assert.deepEqual(take(table, { services: 50, cost: Infinity, owners: Infinity }), [6]);
    table.upsert(service());
    table.takeChanges();
    table.upsert(owned());
    assert.deepEqual(take(table), [10, 'removed']);
  });
});

describe('route-table: the budget of ranges of a namespace', () => {
  const ranged = (name: string, creationTimestamp: string, portsAnnotation: string) =>
    service({
      name,
      creationTimestamp,
      portsAnnotation,
      clusterIPs: [`10.96.0.${name.charCodeAt(0)}`],
    });

  it('refuses the younger Service as a whole, and serves it when the older one needs less', () => {
    const table = new RouteTable({
      nodeName: 'node-a',
      allPortsEnabled: true,
      rangeLimit: { max: 3, unit: 'ranges' },
      onChange: () => {},
    });
    table.upsert(ranged('young', '2026-02-01', '1/UDP,3/UDP'));
    assert.deepEqual(table.takeChanges().refusals.raised, []);
    table.upsert(ranged('old', '2026-01-01', '1/UDP,3/UDP'));
    const { routes, refusals, refused } = table.takeChanges();
    assert.deepEqual([...refused], [['default/young', 'refused']]);
    assert.deepEqual(
      refusals.raised.map(({ serviceKey, reason }) => [serviceKey, reason]),
      [['default/young', 'Budget']],
    );
    assert.deepEqual(
      [routes.upserts, routes.removals].map((list) => list.map(({ name }) => name)),
      [['default/old'], ['default/young']],
    );
    assert.equal(table.inspect('default/young')?.routes.length, 0);
    // A change of a refused Service changes nothing while it does not fit.
    table.upsert(ranged('young', '2026-02-01', '5/UDP,7/UDP'));
    assert.deepEqual(table.takeChanges().routes.upserts, []);
    table.upsert(ranged('old', '2026-01-01', 'all'));
    const again = table.takeChanges();
    assert.deepEqual(
      again.refusals.cleared.map(({ serviceKey }) => serviceKey),
      ['default/young'],
    );
    assert.deepEqual(again.routes.upserts.map(({ name }) => name).sort(), [
      'default/old',
      'default/young',
    ]);
    assert.deepEqual(table.inspect('default/young')?.refusals, []);
  });
});
