import assert from 'node:assert/strict';
import type { Service } from '../../api/objects.ts';
import { servedPorts } from '../../services/served-ports.ts';
import { VipConflicts } from '../../services/vip-conflicts.ts';
import { service, servicePort } from '../fixtures.ts';

const VIP = '203.0.113.1';

/** A load balancer Service on the shared VIP; `age` orders creation. */
function sharing(name: string, age: number, fields: Partial<Service> = {}): Service {
  return service({
    name,
    clusterIPs: [`10.96.1.${age}`],
    creationTimestamp: `2026-01-0${age}T00:00:00Z`,
    type: 'LoadBalancer',
    loadBalancerIngress: [{ ip: VIP, ipMode: 'VIP' }],
    ...fields,
  });
}

function put(ledger: VipConflicts, object: Service): string[] {
  const { ports } = servedPorts(object, true);
  return [...ledger.replace(object.key, object.creationTimestamp, ports)].sort();
}

const reasons = (ledger: VipConflicts, object: Service) =>
  [...ledger.refusals(object.key).values()].map(({ reason, field }) => [reason, field]);

const OVERLAP = [['Overlap', 'status.loadBalancer.ingress']];

describe('vip-ledger: who owns a VIP', () => {
  it('exact ports, ranges and all ports share it', () => {
    const ledger = new VipConflicts();
    const objects = [
      sharing('all', 1, { portsAnnotation: 'all' }),
      sharing('ranges', 2, { portsAnnotation: '80-90' }),
      sharing('exact', 3),
    ];
    for (const object of objects) put(ledger, object);
    for (const object of objects) assert.deepEqual(reasons(ledger, object), []);
  });

  for (const [title, annotation, other] of [
    ['all ports', 'all', 'all'],
    ['overlapping ranges', '80-90', '85-100/TCP'],
    ['the same port', undefined, undefined],
  ] as const) {
    it(`${title}: the older has it, the other takes over when it goes`, () => {
      const ledger = new VipConflicts();
      const young = sharing('a-young', 2, { portsAnnotation: annotation });
      const old = sharing('b-old', 1, { portsAnnotation: other });
      put(ledger, young);
      assert.deepEqual(reasons(ledger, young), []);
      assert.deepEqual(put(ledger, old), ['default/a-young']);
      assert.deepEqual(reasons(ledger, young), OVERLAP);
      assert.deepEqual(reasons(ledger, old), []);
      assert.deepEqual([...ledger.replace(old.key, '', [])], ['default/a-young']);
      assert.deepEqual(reasons(ledger, young), []);
    });
  }

  it('ranges that do not overlap share it, also of other protocols', () => {
    const ledger = new VipConflicts();
    const tcp = sharing('tcp', 1, { portsAnnotation: '80-90/TCP' });
    const udp = sharing('udp', 2, { portsAnnotation: '80-90/UDP,100/TCP' });
    put(ledger, tcp);
    put(ledger, udp);
    assert.deepEqual([...reasons(ledger, tcp), ...reasons(ledger, udp)], []);
  });

  it('a range refused for one owner does not block a third', () => {
    const ledger = new VipConflicts();
    const first = sharing('first', 1, { portsAnnotation: '1-10/TCP' });
    const second = sharing('second', 2, { portsAnnotation: '5-20/TCP' });
    const third = sharing('third', 3, { portsAnnotation: '15-30/TCP' });
    for (const object of [third, second, first]) put(ledger, object);
    assert.deepEqual(reasons(ledger, second), OVERLAP);
    assert.deepEqual(reasons(ledger, third), []);
  });

  it('age ties are broken by namespace and name', () => {
    const ledger = new VipConflicts();
    const b = sharing('b', 1, { portsAnnotation: 'all' });
    const a = sharing('a', 1, { portsAnnotation: 'all', clusterIPs: ['10.96.1.9'] });
    put(ledger, b);
    put(ledger, a);
    assert.deepEqual(reasons(ledger, a), []);
    assert.deepEqual(reasons(ledger, b), OVERLAP);
  });

  it('only the contested VIP is refused, and only the contested port', () => {
    const ledger = new VipConflicts();
    const old = sharing('old', 1, { ports: [servicePort({ name: 'a', port: 80 })] });
    const young = sharing('young', 2, {
      ports: [servicePort({ name: 'a', port: 80 }), servicePort({ name: 'b', port: 81 })],
    });
    put(ledger, old);
    put(ledger, young);
    assert.deepEqual([...ledger.refusals(young.key).keys()], [`default/young/IPv4/TCP/a ${VIP}`]);
  });

  it('node ports have one owner a family', () => {
    const ledger = new VipConflicts();
    const ports = [servicePort({ nodePort: 30080 })];
    const old = service({ name: 'old', type: 'NodePort', ports });
    const young = service({
      name: 'young',
      type: 'NodePort',
      ports,
      clusterIPs: ['10.96.0.11', 'fd00::b'],
      creationTimestamp: '2026-01-02T00:00:00Z',
    });
    put(ledger, old);
    put(ledger, young);
    assert.deepEqual(
      [...ledger.refusals(young.key).keys()],
      ['default/young/IPv4/TCP/ node port, IPv4'],
    );
  });
});

describe('vip-ledger: the message of a refused overlap', () => {
  const messageFor = (age: number, fields: Partial<Service>, other: Partial<Service>) => {
    const ledger = new VipConflicts();
    put(ledger, sharing('old', 1, fields));
    const young = sharing('young', age, other);
    put(ledger, young);
    return [...new Set(ledger.refusals(young.key).values())].map(({ message }) => message);
  };
  const portsUpTo = (last: number) =>
    Array.from({ length: last }, (_, index) =>
      servicePort({ name: `p${index + 1}`, port: index + 1 }),
    );

  it('names the port', () => {
    assert.deepEqual(messageFor(2, {}, {}), [
      '203.0.113.1: port 80/TCP is already served for the older Service default/old',
    ]);
  });

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

  it('says that every port is contested', () => {
    assert.deepEqual(messageFor(2, { portsAnnotation: 'all' }, { portsAnnotation: 'all' }), [
      '203.0.113.1: every port is already served for the older Service default/old',
    ]);
  });

  it('is one for all ports that an older Service has, and does not list thousands', () => {
    const ports = portsUpTo(1000);
    assert.deepEqual(messageFor(2, { ports }, { ports }), [
      '203.0.113.1: ports 1/TCP, 2/TCP, 3/TCP, 4/TCP, 5/TCP and 995 more are already served for the older Service default/old',
    ]);
  });
});

describe('vip-ledger: a VIP that is an address of this node', () => {
  it('is refused to all ports and ranges while it is, and to exact ports never', () => {
    const ledger = new VipConflicts();
    const all = sharing('all', 1, { portsAnnotation: 'all' });
    const ranges = sharing('ranges', 2, { portsAnnotation: '80-90' });
    const exact = sharing('exact', 3);
    for (const object of [all, ranges, exact]) put(ledger, object);
    assert.deepEqual([...ledger.setNodeAddresses(new Set([VIP, '192.0.2.1']))].sort(), [
      'default/all',
      'default/ranges',
    ]);
    const refused = [['NodeAddress', 'status.loadBalancer.ingress']];
    assert.deepEqual(reasons(ledger, all), refused);
    assert.deepEqual(reasons(ledger, ranges), refused);
    assert.deepEqual(reasons(ledger, exact), []);
    assert.equal(ledger.setNodeAddresses(new Set(['192.0.2.1'])).size, 2);
    assert.deepEqual(reasons(ledger, all), []);
    assert.equal(ledger.setNodeAddresses(new Set(['192.0.2.2'])).size, 0);
  });
});
