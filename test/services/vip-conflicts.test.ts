import assert from 'node:assert/strict';
import { ALL_PORT_FEATURES } from '../../api/all-ports.ts';
import type { Service } from '../../api/objects.ts';
import { rangeText } from '../../api/ports.ts';
import { servedPorts } from '../../services/served-ports.ts';
import { VipConflicts } from '../../services/vip-conflicts.ts';
import { service, servicePort } from '../fixtures.ts';

const VIP = '203.0.113.1';

/** A load balancer Service on the shared VIP; `age` orders creation. */
function onSharedVip(name: string, age: number, fields: Partial<Service> = {}): Service {
  return service({
    name,
    clusterIPs: [`10.96.1.${age}`],
    creationTimestamp: `2026-01-0${age}T00:00:00Z`,
    type: 'LoadBalancer',
    loadBalancerIngress: [{ ip: VIP, ipMode: 'VIP' }],
    ...fields,
  });
}

function put(conflicts: VipConflicts, object: Service): string[] {
  const { ports } = servedPorts(object, ALL_PORT_FEATURES);
  return [...conflicts.replaceService(object, ports)].sort();
}

const reasons = (conflicts: VipConflicts, object: Service) =>
  [...conflicts.refusals(object.key).values()].map(({ reason, field }) => [reason, field]);

const OVERLAP = [['Overlap', 'status.loadBalancer.ingress']];

describe('vip-conflicts: owner of a VIP', () => {
  it('grants a VIP to exact ports, port ranges and all ports together', () => {
    const conflicts = new VipConflicts();
    const objects = [
      onSharedVip('all', 1, { portsAnnotation: 'all' }),
      onSharedVip('ranges', 2, { portsAnnotation: '80-90' }),
      onSharedVip('exact', 3),
    ];
    for (const object of objects) put(conflicts, object);
    for (const object of objects) assert.deepEqual(reasons(conflicts, object), []);
  });

  for (const [title, annotation, other] of [
    ['all ports', 'all', 'all'],
    ['overlapping ranges', '80-90', '85-100/TCP'],
    ['the same port', undefined, undefined],
  ] as const) {
    it(`grants the VIP to the older Service, and to the other when it is deleted (${title})`, () => {
      const conflicts = new VipConflicts();
      const young = onSharedVip('a-young', 2, { portsAnnotation: annotation });
      const old = onSharedVip('b-old', 1, { portsAnnotation: other });
      put(conflicts, young);
      assert.deepEqual(reasons(conflicts, young), []);
      assert.deepEqual(put(conflicts, old), ['default/a-young']);
      assert.deepEqual(reasons(conflicts, young), OVERLAP);
      assert.deepEqual(reasons(conflicts, old), []);
      assert.deepEqual([...conflicts.removeService(old.key)], ['default/a-young']);
      assert.deepEqual(reasons(conflicts, young), []);
    });
  }

  it('grants a VIP to port ranges that do not overlap, also by protocol', () => {
    const conflicts = new VipConflicts();
    const tcp = onSharedVip('tcp', 1, { portsAnnotation: '80-90/TCP' });
    const udp = onSharedVip('udp', 2, { portsAnnotation: '80-90/UDP,100/TCP' });
    put(conflicts, tcp);
    put(conflicts, udp);
    assert.deepEqual([...reasons(conflicts, tcp), ...reasons(conflicts, udp)], []);
  });

  it('does not refuse a range for an overlap with a refused range', () => {
    const conflicts = new VipConflicts();
    const first = onSharedVip('first', 1, { portsAnnotation: '1-10/TCP' });
    const second = onSharedVip('second', 2, { portsAnnotation: '5-20/TCP' });
    const third = onSharedVip('third', 3, { portsAnnotation: '15-30/TCP' });
    for (const object of [third, second, first]) put(conflicts, object);
    assert.deepEqual(reasons(conflicts, second), OVERLAP);
    assert.deepEqual(reasons(conflicts, third), []);
  });

  it('prefers the first by namespace and name among Services of equal age', () => {
    const conflicts = new VipConflicts();
    const b = onSharedVip('b', 1, { portsAnnotation: 'all' });
    const a = onSharedVip('a', 1, { portsAnnotation: 'all', clusterIPs: ['10.96.1.9'] });
    put(conflicts, b);
    put(conflicts, a);
    assert.deepEqual(reasons(conflicts, a), []);
    assert.deepEqual(reasons(conflicts, b), OVERLAP);
  });

  it('refuses only the conflicting VIP and port', () => {
    const conflicts = new VipConflicts();
    const old = onSharedVip('old', 1, { ports: [servicePort({ name: 'a', port: 80 })] });
    const young = onSharedVip('young', 2, {
      ports: [servicePort({ name: 'a', port: 80 }), servicePort({ name: 'b', port: 81 })],
    });
    put(conflicts, old);
    put(conflicts, young);
    assert.deepEqual(
      [...conflicts.refusals(young.key).keys()],
      [`default/young/IPv4/TCP/a ${VIP}`],
    );
  });

  it('grants a node port to one Service per family', () => {
    const conflicts = new VipConflicts();
    const ports = [servicePort({ nodePort: 30080 })];
    const old = service({ name: 'old', type: 'NodePort', ports });
    const young = service({
      name: 'young',
      type: 'NodePort',
      ports,
      clusterIPs: ['10.96.0.11', 'fd00::b'],
      creationTimestamp: '2026-01-02T00:00:00Z',
    });
    put(conflicts, old);
    put(conflicts, young);
    assert.deepEqual(
      [...conflicts.refusals(young.key).keys()],
      ['default/young/IPv4/TCP/ node port, IPv4'],
    );
  });
});

describe('vip-conflicts: message of a refused overlap', () => {
  const messageFor = (age: number, fields: Partial<Service>, other: Partial<Service>) => {
    const conflicts = new VipConflicts();
    put(conflicts, onSharedVip('old', 1, fields));
    const young = onSharedVip('young', age, other);
    put(conflicts, young);
    return [...new Set(conflicts.refusals(young.key).values())].map(({ message }) => message);
  };
  const portsUpTo = (last: number) =>
    Array.from({ length: last }, (_, index) =>
      servicePort({ name: `p${index + 1}`, port: index + 1 }),
    );

  it('names the conflicting port', () => {
    assert.deepEqual(messageFor(2, {}, {}), [
      '203.0.113.1: port 80/TCP is already served for the older Service default/old',
    ]);
  });

  for (const [title, creationTimestamp] of [
    ['without a creation time', ''],
    ['created in the same second', '2026-01-01T00:00:00Z'],
  ] as const) {
    it(`says that the name decides between Services ${title}`, () => {
      const fields = { creationTimestamp };
      assert.deepEqual(messageFor(2, fields, fields), [
        '203.0.113.1: port 80/TCP is already served for Service default/old, the first by name',
      ]);
    });
  }

  it('names the node port and its family', () => {
    const fields: Partial<Service> = {
      type: 'NodePort',
      loadBalancerIngress: [],
      ports: [servicePort({ nodePort: 30080 })],
    };
    assert.deepEqual(messageFor(2, fields, fields), [
      'IPv4: node port 30080/TCP is already served for the older Service default/old',
    ]);
  });

  it('names the ports that two ranges share', () => {
    assert.deepEqual(
      messageFor(2, { portsAnnotation: '80-90/TCP' }, { portsAnnotation: '85-100/TCP,90/UDP' }),
      ['203.0.113.1: ports 85-90/TCP are already served for the older Service default/old'],
    );
  });

  it('reports that every port is already served', () => {
    assert.deepEqual(messageFor(2, { portsAnnotation: 'all' }, { portsAnnotation: 'all' }), [
      '203.0.113.1: every port is already served for the older Service default/old',
    ]);
  });

  it('gives one refusal for all ports of the older Service, which lists only the first five', () => {
    const ports = portsUpTo(1000);
    assert.deepEqual(messageFor(2, { ports }, { ports }), [
      '203.0.113.1: ports 1/TCP, 2/TCP, 3/TCP, 4/TCP, 5/TCP and 995 more are already served for the older Service default/old',
    ]);
  });
});

describe('vip-conflicts: an address that belongs to another Service', () => {
  const CLUSTER_IP = '10.96.0.10';
  /** An older Service of another namespace with external IPs. */
  const intruder = (name: string, externalIPs: readonly string[], port = 22) =>
    service({
      namespace: 'other',
      name,
      clusterIPs: ['10.96.0.99'],
      creationTimestamp: '2020-01-01T00:00:00Z',
      externalIPs,
      ports: [servicePort({ port })],
    });
  const messages = (conflicts: VipConflicts, object: Service) =>
    [...conflicts.refusals(object.key).values()].map(({ message }) => message);

  it('refuses external IPs that are the cluster IP of another Service, until it is deleted', () => {
    const conflicts = new VipConflicts();
    const owner = service({ creationTimestamp: '2026-01-01T00:00:00Z' });
    const other = intruder('other', [CLUSTER_IP, '192.0.2.7']);
    put(conflicts, other);
    assert.deepEqual(put(conflicts, owner), [other.key]);
    assert.deepEqual(messages(conflicts, other), [
      '10.96.0.10: is the cluster IP of Service default/web, and no other Service gets a port of it',
    ]);
    assert.deepEqual(messages(conflicts, owner), []);
    assert.deepEqual([...conflicts.removeService(owner.key)], [other.key]);
    assert.deepEqual(messages(conflicts, other), []);
  });

  it('refuses load balancer IPs that are the cluster IP of another Service', () => {
    const conflicts = new VipConflicts();
    put(conflicts, service({ creationTimestamp: '2026-02-01T00:00:00Z' }));
    const other = onSharedVip('other', 1, {
      loadBalancerIngress: [{ ip: CLUSTER_IP, ipMode: 'VIP' }],
    });
    put(conflicts, other);
    assert.deepEqual(reasons(conflicts, other), OVERLAP);
  });

  for (const [title, fields] of [
    ['refused as a whole', { portsAnnotation: 'nonsense' }],
    ['of another proxy', { otherProxy: true }],
    ['labelled headless', { headlessLabel: true }],
  ] as const) {
    it(`a Service ${title} has its cluster IP and load balancer IP nevertheless`, () => {
      const conflicts = new VipConflicts();
      const owner = onSharedVip('owner', 2, { clusterIPs: [CLUSTER_IP], ...fields });
      const other = intruder('other', [CLUSTER_IP, VIP]);
      put(conflicts, other);
      put(conflicts, owner);
      assert.equal(messages(conflicts, other).length, 2);
    });
  }

  for (const ipMode of ['VIP', 'Proxy'] as const) {
    it(`refuses external IPs that are a load balancer IP (ipMode ${ipMode}) of a younger Service`, () => {
      const conflicts = new VipConflicts();
      const owner = onSharedVip('owner', 2, { loadBalancerIngress: [{ ip: VIP, ipMode }] });
      const other = intruder('other', [VIP]);
      put(conflicts, other);
      put(conflicts, owner);
      assert.deepEqual(messages(conflicts, other), [
        `${VIP}: is a load balancer IP of Service default/owner, and external IPs of other Services get no port of it`,
      ]);
    });
  }

  it('changes nothing for the Services that claim the cluster IP when its Service changes', () => {
    const conflicts = new VipConflicts();
    const owner = service();
    put(conflicts, owner);
    for (const name of ['a', 'b'])
      assert.deepEqual(put(conflicts, intruder(name, [CLUSTER_IP])), []);
    assert.deepEqual(put(conflicts, { ...owner, portsAnnotation: 'all' }), []);
    assert.deepEqual(put(conflicts, intruder('a', [CLUSTER_IP], 23)), []);
  });
});

describe('vip-conflicts: a load balancer IP of Services of several namespaces', () => {
  const foreign = (age: number, fields: Partial<Service> = {}) =>
    onSharedVip('foreign', age, { namespace: 'other', ...fields });

  for (const annotation of ['all', '70-90/TCP'] as const) {
    it(`refuses a listed port to a younger Service of another namespace (${annotation})`, () => {
      const conflicts = new VipConflicts();
      const old = onSharedVip('old', 1, { portsAnnotation: annotation });
      const young = foreign(2);
      const own = onSharedVip('own', 3);
      for (const object of [own, young, old]) put(conflicts, object);
      assert.deepEqual(reasons(conflicts, old), []);
      assert.deepEqual(reasons(conflicts, young), OVERLAP);
      assert.deepEqual(reasons(conflicts, own), []);
      assert.deepEqual([...conflicts.removeService(old.key)].sort(), [
        'default/own',
        'other/foreign',
      ]);
      assert.deepEqual(reasons(conflicts, young), []);
      assert.deepEqual(reasons(conflicts, own), OVERLAP);
    });

    it(`leaves a listed port to an older Service of another namespace (${annotation})`, () => {
      const conflicts = new VipConflicts();
      const young = onSharedVip('young', 2, { portsAnnotation: annotation });
      const old = foreign(1);
      for (const object of [young, old]) put(conflicts, object);
      assert.deepEqual([...reasons(conflicts, young), ...reasons(conflicts, old)], []);
    });
  }

  it('ignores claims to ports of a VIP that this node refuses as its own address', () => {
    const conflicts = new VipConflicts();
    const old = onSharedVip('old', 1, { portsAnnotation: 'all' });
    const young = foreign(2);
    for (const object of [old, young]) put(conflicts, object);
    assert.deepEqual([...conflicts.setNodeAddresses(new Set([VIP]))].sort(), [
      'default/old',
      'other/foreign',
    ]);
    assert.deepEqual(reasons(conflicts, young), []);
  });
});

describe('vip-conflicts: a VIP that is an address of this node', () => {
  it('refuses a VIP that is a node address to all-ports and port-range Services, not to exact ports', () => {
    const conflicts = new VipConflicts();
    const all = onSharedVip('all', 1, { portsAnnotation: 'all' });
    const ranges = onSharedVip('ranges', 2, { portsAnnotation: '80-90' });
    const exact = onSharedVip('exact', 3);
    for (const object of [all, ranges, exact]) put(conflicts, object);
    assert.deepEqual([...conflicts.setNodeAddresses(new Set([VIP, '192.0.2.1']))].sort(), [
      'default/all',
      'default/ranges',
    ]);
    const refused = [['NodeAddress', 'status.loadBalancer.ingress']];
    assert.deepEqual(reasons(conflicts, all), refused);
    assert.deepEqual(reasons(conflicts, ranges), refused);
    assert.deepEqual(reasons(conflicts, exact), []);
    assert.equal(conflicts.setNodeAddresses(new Set(['192.0.2.1'])).size, 2);
    assert.deepEqual(reasons(conflicts, all), []);
    assert.equal(conflicts.setNodeAddresses(new Set(['192.0.2.2'])).size, 0);
  });
});

describe('vip-conflicts: owned ports', () => {
  const owning = (name: string, age: number, fields: Partial<Service> = {}) =>
    onSharedVip(name, age, {
      ownedPortsAnnotation: '80-99/TCP,80-99/UDP',
      portsPerPodAnnotation: '10',
      ...fields,
    });
  const taken = (conflicts: VipConflicts, object: Service) =>
    servedPorts(object, ALL_PORT_FEATURES)
      .ports.filter(({ ownership }) => ownership !== undefined)
      .flatMap((port) => conflicts.portsTakenFrom(port, VIP))
      .map(rangeText);
  const exact = onSharedVip('exact', 3);

  for (const order of ['before', 'after'] as const) {
    it(`lack the exact port of another Service, added ${order} them`, () => {
      const conflicts = new VipConflicts();
      const owner = owning('owner', 1);
      const affected = (order === 'before' ? [exact, owner] : [owner, exact]).map((object) =>
        put(conflicts, object),
      );
      assert.deepEqual(affected, [[], order === 'before' ? [] : ['default/owner']]);
      assert.deepEqual(taken(conflicts, owner), ['80/TCP']);
      assert.deepEqual(reasons(conflicts, owner), []);
      assert.deepEqual(reasons(conflicts, exact), []);
    });
  }

  it('lack the exact port of a Service of another namespace only if it is older', () => {
    for (const [age, expected] of [
      [2, []],
      [1, ['80/TCP']],
    ] as const) {
      const conflicts = new VipConflicts();
      const owner = owning('owner', age === 1 ? 2 : 1);
      const other = onSharedVip('other', age, { namespace: 'other' });
      for (const object of [owner, other]) put(conflicts, object);
      assert.deepEqual(taken(conflicts, owner), expected);
      assert.deepEqual(reasons(conflicts, other), age === 1 ? [] : OVERLAP);
    }
  });

  it('have the port again when the last Service that lists it is gone', () => {
    const conflicts = new VipConflicts();
    const owner = owning('owner', 1);
    const other = onSharedVip('other', 4);
    for (const object of [owner, exact, other]) put(conflicts, object);
    assert.deepEqual([...conflicts.removeService(exact.key)], ['default/other']);
    assert.deepEqual(taken(conflicts, owner), ['80/TCP']);
    assert.deepEqual([...conflicts.removeService(other.key)], ['default/owner']);
    assert.deepEqual(taken(conflicts, owner), []);
  });

  it('are not affected by exact ports outside their ranges', () => {
    const conflicts = new VipConflicts();
    const owner = owning('owner', 1, { ownedPortsAnnotation: '100-119/TCP' });
    put(conflicts, owner);
    assert.deepEqual(put(conflicts, exact), []);
    assert.deepEqual(taken(conflicts, owner), []);
  });

  it('conflict with ranges of other Services as ranges do, and not with ranges of their own Service', () => {
    const conflicts = new VipConflicts();
    const owner = owning('owner', 1, { portsAnnotation: '70-110' });
    const spread = onSharedVip('spread', 2, { portsAnnotation: '95-200/TCP' });
    for (const object of [spread, owner]) put(conflicts, object);
    assert.deepEqual(reasons(conflicts, owner), []);
    assert.deepEqual(reasons(conflicts, spread), OVERLAP);
  });
});
