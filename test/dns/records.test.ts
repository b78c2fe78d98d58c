import assert from 'node:assert/strict';
import type { EndpointSlice, Service } from '../../api/objects.ts';
import { podRecords } from '../../dns/records.ts';
import { endpoint, service, servicePort, slice } from '../fixtures.ts';
import { allRecords, byName, recordLine } from './zone-fixtures.ts';

const PLACEHOLDER = [servicePort({ name: 'placeholder', port: 1 })];
const REVERSE_10 = '10.0.96.10.in-addr.arpa';
const REVERSE_A = 'a.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.6.9.0.0.0.1.0.0.0.0.d.f.ip6.arpa';

interface Given {
  readonly slices?: readonly EndpointSlice[];
  readonly clusterDomain?: string;
}

function made(object: Service, given: Given = {}) {
  const { slices = [], clusterDomain = 'cluster.local' } = given;
  const { records, problems } = allRecords(object, slices, clusterDomain);
  return { records: byName(records), problems };
}

/** `name TYPE data` of all records. */
function lines(object: Service, given: Given = {}): string[] {
  const { records, problems } = made(object, given);
  assert.deepEqual(problems, []);
  return [...records].flatMap(([name, list]) =>
    list.map((record) => {
      assert.equal(record.name, name);
      return `${name} ${recordLine(record)}`;
    }),
  );
}

describe('records: Services with cluster IPs', () => {
  it('a Service with cluster IPs has an address and a PTR record for each, and an SRV record for each named port', () => {
    const ports = [
      servicePort({ name: 'sip', protocol: 'UDP', port: 5060 }),
      servicePort({ name: 'sips', protocol: 'TCP', port: 5061 }),
      servicePort({ name: 'm3ua', protocol: 'SCTP', port: 2905 }),
    ];
    const object = service({ clusterIPs: ['10.96.0.10', 'fd00:10:96::a'], ports });
    const target = 'web.default.svc.cluster.local';
    assert.deepEqual(lines(object), [
      `${target} A 10.96.0.10`,
      `${target} AAAA fd00:10:96::a`,
      `${REVERSE_10} PTR ${target}`,
      `${REVERSE_A} PTR ${target}`,
      `_sip._udp.${target} SRV 0 100 5060 ${target}`,
      `_sips._tcp.${target} SRV 0 100 5061 ${target}`,
      `_m3ua._sctp.${target} SRV 0 100 2905 ${target}`,
    ]);
  });

  it('a Service with cluster IPs has no records of endpoints, other addresses and node ports', () => {
    const plain = lines(service());
    const slices = [slice([endpoint('10.1.0.1', { hostname: 'a' })])];
    const more = service({
      type: 'LoadBalancer',
      externalIPs: ['192.0.2.1'],
      loadBalancerIngress: [{ ip: '203.0.113.1', ipMode: 'VIP' }],
      ports: [servicePort({ nodePort: 30080 })],
      publishNotReadyAddresses: true,
    });
    assert.deepEqual(plain, [
      'web.default.svc.cluster.local A 10.96.0.10',
      `${REVERSE_10} PTR web.default.svc.cluster.local`,
    ]);
    assert.deepEqual(lines(more, { slices }), plain);
  });

  it('a Service has records despite labels that exclude kube-proxy', () => {
    const plain = lines(service());
    assert.deepEqual(lines(service({ otherProxy: true })), plain);
    assert.deepEqual(lines(service({ headlessLabel: true })), plain);
  });

  it('a Service has no records before a cluster IP is assigned', () => {
    assert.deepEqual(lines(service({ clusterIPs: [], ports: PLACEHOLDER })), []);
  });
});

describe('records: headless Services', () => {
  const headless = (fields: Partial<Service> = {}) =>
    service({ clusterIPs: [], headless: true, ...fields });
  const name = 'web.default.svc.cluster.local';

  it('SRV records of a headless Service have the port of the endpoint, to which the client connects', () => {
    const ports = [servicePort({ name: 'http', port: 80 })];
    const slices = [
      slice([endpoint('10.1.0.1')], {
        name: 'a',
        ports: [{ name: 'http', protocol: 'TCP', port: 8080 }],
      }),
      slice([endpoint('10.1.0.2')], {
        name: 'b',
        ports: [
          { name: 'http', protocol: 'TCP', port: 9090 },
          { name: 'any', protocol: 'TCP', port: undefined },
        ],
      }),
    ];
    assert.deepEqual(
      lines(headless({ ports }), { slices }).filter((each) => each.includes('SRV')),
      [
        `_http._tcp.${name} SRV 0 100 8080 10-1-0-1.${name}`,
        `_http._tcp.${name} SRV 0 100 9090 10-1-0-2.${name}`,
      ],
    );
  });

  it('a headless Service has each endpoint once, ready if it is ready in any slice', () => {
    const ports = [{ name: 'http', protocol: 'TCP', port: 80 }] as const;
    const one = [slice([endpoint('10.1.0.1', { hostname: 'a' })], { ports })];
    const several = [
      slice([endpoint('10.1.0.1', { hostname: 'a', ready: false })], { name: 'x', ports }),
      ...one,
      slice([endpoint('10.1.0.1', { hostname: 'a', nodeName: 'node-b' })], { name: 'y', ports }),
    ];
    assert.equal(lines(headless(), { slices: one }).length, 4);
    assert.deepEqual(lines(headless(), { slices: several }), lines(headless(), { slices: one }));
  });

  it('a headless Service has an address under each hostname of an endpoint', () => {
    const slices = [slice([endpoint('10.1.0.1', { hostname: 'a' }), endpoint('10.1.0.1')])];
    assert.deepEqual(lines(headless(), { slices }), [
      `${name} A 10.1.0.1`,
      `a.${name} A 10.1.0.1`,
      `1.0.1.10.in-addr.arpa PTR 10-1-0-1.${name}`,
      `1.0.1.10.in-addr.arpa PTR a.${name}`,
      `10-1-0-1.${name} A 10.1.0.1`,
    ]);
  });

  it('a headless Service has an SRV record for each port number of an endpoint in several slices', () => {
    const numbered = (port: number) =>
      slice([endpoint('10.1.0.1', { hostname: 'a' })], {
        name: `web-${port}`,
        ports: [{ name: 'http', protocol: 'TCP', port }],
      });
    const slices = [numbered(9090), numbered(8080), numbered(8081)];
    assert.deepEqual(
      lines(headless(), { slices }).filter((each) => each.includes('SRV')),
      [8080, 8081, 9090].map((port) => `_http._tcp.${name} SRV 0 100 ${port} a.${name}`),
    );
  });

  it('a headless Service has records of ready endpoints only, not of serving ones', () => {
    const draining = endpoint('10.1.0.1', { ready: false, serving: true, terminating: true });
    assert.deepEqual(lines(headless(), { slices: [slice([draining])] }), []);
  });
});

describe('records: all-ports Services', () => {
  const target = 'web.default.svc.cluster.local';
  const addresses = [`${target} A 10.96.0.10`, `${REVERSE_10} PTR ${target}`];
  const srv = `_placeholder._tcp.${target} SRV 0 100 1 ${target}`;

  const rows: readonly (readonly [string, Partial<Service>, boolean])[] = [
    ['no annotation', {}, true],
    ['annotation "false"', { portsAnnotation: 'false' }, true],
    ['annotation "all"', { portsAnnotation: 'all' }, false],
    ['annotation with ranges', { portsAnnotation: '1-10,5060/UDP' }, false],
    ['spec.allPorts: false', { allPorts: false }, true],
    ['spec.allPorts: true', { allPorts: true, ports: [] }, false],
    ['refused: ports beside spec.allPorts', { allPorts: true }, false],
    ['refused: malformed annotation', { portsAnnotation: 'al' }, false],
    ['refused: NodePort', { type: 'NodePort', portsAnnotation: 'all' }, false],
    ['refused: external IPs', { externalIPs: ['192.0.2.1'], portsAnnotation: 'all' }, false],
  ];
  for (const [what, fields, hasPorts] of rows) {
    it(`${what}: addresses, ${hasPorts ? 'and' : 'no'} SRV records`, () => {
      const object = service({ ports: PLACEHOLDER, ...fields });
      const expected = hasPorts ? [...addresses, srv] : addresses;
      assert.deepEqual(lines(object), expected);
    });
  }

  it('a headless all-ports Service (refused) has endpoint names without SRV records', () => {
    const object = service({ clusterIPs: [], headless: true, portsAnnotation: 'all' });
    const ports = [{ name: 'placeholder', protocol: 'TCP', port: 1 }] as const;
    assert.deepEqual(lines(object, { slices: [slice([endpoint('10.1.0.1')], { ports })] }), [
      `${target} A 10.1.0.1`,
      `10-1-0-1.${target} A 10.1.0.1`,
      `1.0.1.10.in-addr.arpa PTR 10-1-0-1.${target}`,
    ]);
  });

  it('an all-ports Service of type ExternalName (refused) has its CNAME record', () => {
    const fields = { type: 'ExternalName', clusterIPs: [], portsAnnotation: 'all' } as const;
    assert.deepEqual(lines(service({ ...fields, externalName: 'example.com' })), [
      `${target} CNAME example.com`,
    ]);
  });
});

describe('records: problems', () => {
  const problems = (object: Service, given: Given = {}) =>
    made(object, given).problems.map(({ message }) => message);
  const external = (externalName: string | undefined) =>
    service({ type: 'ExternalName', clusterIPs: [], externalName });

  it('reports an external name that is not a domain name', () => {
    for (const [given, reason] of [
      [undefined, 'is required'],
      ['10.3.0.1', 'must be a domain name, not "10.3.0.1"'],
      ['https://example.com/', 'must be a domain name, not "https://example.com/"'],
      ['.', 'must be a domain name, not ""'],
      [
        `${'x'.repeat(64)}.example`,
        `results in a label of more than 63 characters: ${'x'.repeat(64)}`,
      ],
    ] as const) {
      const { records, problems } = made(external(given));
      assert.equal(records.size, 0);
      assert.deepEqual(
        problems.map(({ object, field, reason }) => [object, field, reason]),
        [['Service default/web', 'spec.externalName', reason]],
      );
    }
    assert.deepEqual(lines(external('WWW.Example.COM.')), [
      'web.default.svc.cluster.local CNAME www.example.com',
    ]);
  });

  it('reports a port name that is too long with the underscore, and keeps the others', () => {
    const long = 'x'.repeat(63);
    const ports = [servicePort({ name: long }), servicePort({ name: 'y'.repeat(62), port: 81 })];
    const reason = `results in a label of more than 63 characters: _${long}`;
    assert.deepEqual(problems(service({ ports })), [
      `Service default/web: spec.ports[0].name: ${reason}`,
    ]);
    assert.equal(made(service({ ports })).records.size, 3);
    const headless = service({ clusterIPs: [], headless: true });
    const slices = [
      slice([endpoint('10.1.0.1')], { ports: [{ name: long, protocol: 'TCP', port: 80 }] }),
    ];
    assert.deepEqual(problems(headless, { slices }), [
      `EndpointSlice default/web-1: ports[0].name: ${reason}`,
    ]);
    assert.equal(made(headless, { slices }).records.size, 3);
  });

  it('reports names that are too long with a long cluster domain', () => {
    const domain = (length: number) =>
      'd.'.repeat(Math.ceil(length / 2) - 1) + 'z'.repeat(2 - (length % 2));
    const hostname = 'h'.repeat(63);
    const headless = service({ clusterIPs: [], headless: true });
    const slices = [slice([endpoint('10.1.0.1', { hostname }), endpoint('10.1.0.2')])];
    const under = (length: number) => ({ slices, clusterDomain: domain(length) });
    const wholeName = `${hostname}.web.default.svc.`.length;
    assert.deepEqual(problems(headless, under(253 - wholeName)), []);
    const tooLong = made(headless, under(254 - wholeName));
    assert.match(
      tooLong.problems.map(({ message }) => message).join(),
      /^EndpointSlice default\/web-1: endpoints\[0\]\.hostname: results in a name of more than 253 characters: h+\.web/,
    );
    // The Service's name has both addresses, the other endpoint has its own.
    assert.deepEqual(
      [...tooLong.records.values()].map((list) => list.length),
      [2, 1, 1],
    );
    assert.match(
      problems(service(), { clusterDomain: domain(240) }).join(),
      /^Service default\/web: metadata\.name: results in a name of more than 253/,
    );
    assert.equal(made(service(), { clusterDomain: domain(240) }).records.size, 0);
  });
});

describe('records: pod names', () => {
  it('pod names resolve to addresses of both families in any namespace', () => {
    const answer = (name: string) => podRecords(name, 'cluster.local')?.map(recordLine);
    assert.deepEqual(answer('10-3-0-1.default.pod.cluster.local'), ['A 10.3.0.1']);
    assert.deepEqual(answer('2001-db8--1.x.pod.cluster.local'), ['AAAA 2001:db8::1']);
    assert.deepEqual(answer('default.pod.cluster.local'), []);
    for (const name of [
      '10-3-0-256.default.pod.cluster.local',
      'web.default.pod.cluster.local',
      '10-3-0-2.10-3-0-1.default.pod.cluster.local',
      '10-3-0-1.-x.pod.cluster.local',
      '10-3-0-1..pod.cluster.local',
      '.pod.cluster.local',
      '10-3-0-1.default.pod.example.com',
      '10-3-0-1.default.xpod.cluster.local',
    ]) {
      assert.equal(answer(name), undefined, name);
    }
  });
});
