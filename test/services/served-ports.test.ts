import assert from 'node:assert/strict';
import { ALL_PORT_FEATURES } from '../../api/all-ports.ts';
import type { Service } from '../../api/objects.ts';
import { EXTERNAL_IPS_OFF, servedPorts } from '../../services/served-ports.ts';
import { service, servicePort } from '../fixtures.ts';

const kinds = (object: Service) =>
  servedPorts(object, ALL_PORT_FEATURES).ports.map(({ match }) => match.kind);
const lb = (fields: Partial<Service> = {}) =>
  service({
    type: 'LoadBalancer',
    ports: [servicePort({ nodePort: 30080 })],
    loadBalancerIngress: [{ ip: '203.0.113.1', ipMode: 'VIP' }],
    ...fields,
  });

describe('served-ports: ports of a Service to serve', () => {
  for (const [title, object] of [
    ['a Service of another proxy', service({ otherProxy: true })],
    ['a Service with the headless label', service({ headlessLabel: true })],
    ['a headless Service', service({ headless: true, clusterIPs: [] })],
    ['an ExternalName Service', service({ type: 'ExternalName', clusterIPs: [] })],
    ['an all-ports Service of another proxy', service({ otherProxy: true, allPorts: true })],
  ] as const) {
    it(`serves no port of ${title}`, () => {
      assert.deepEqual(servedPorts(object, ALL_PORT_FEATURES), {
        ports: [],
        refusals: [],
        warnings: [],
      });
    });
  }

  it('serves each listed port in each family, with the name that kube-proxy uses', () => {
    const ports = [
      servicePort({ name: 'dns', port: 53, protocol: 'UDP' }),
      servicePort({ name: 'dns-tcp', port: 53 }),
    ];
    const served = servedPorts(
      service({ ports, clusterIPs: ['10.96.0.10', 'fd00::a'] }),
      ALL_PORT_FEATURES,
    );
    assert.deepEqual(
      served.ports.map(({ name, family, match }) => [name, family, match]),
      (['IPv4', 'IPv6'] as const).flatMap((family) => [
        ['default/web:dns', family, { kind: 'port', protocol: 'UDP', port: 53 }],
        ['default/web:dns-tcp', family, { kind: 'port', protocol: 'TCP', port: 53 }],
      ]),
    );
    assert.equal(new Set(served.ports.map(({ id }) => id)).size, 4);
  });

  it('serves no external IPs while the feature gate is off, with a warning, and the other addresses', () => {
    const object = lb({ externalIPs: ['198.51.100.7'] });
    const off = { ...ALL_PORT_FEATURES, externalIPs: false };
    const on = servedPorts(object, ALL_PORT_FEATURES);
    const { ports, refusals, warnings } = servedPorts(object, off);
    assert.deepEqual(
      on.ports.map(({ externalIPs }) => externalIPs),
      [['198.51.100.7']],
    );
    assert.deepEqual(
      ports,
      on.ports.map((port) => ({ ...port, externalIPs: [] })),
    );
    assert.deepEqual([refusals, on.warnings, warnings], [[], [], [EXTERNAL_IPS_OFF]]);
    assert.deepEqual(servedPorts(lb(), off).warnings, []);
  });

  it('serves all ports as one, without an allocated node port', () => {
    const { ports } = servedPorts(lb({ portsAnnotation: 'all' }), ALL_PORT_FEATURES);
    assert.deepEqual(
      ports.map(({ match, nodePort, loadBalancerIPs }) => [match, nodePort, loadBalancerIPs]),
      [[{ kind: 'all' }, 0, ['203.0.113.1']]],
    );
  });

  it('serves no port of a refused Service, not even its placeholder port', () => {
    const { ports, refusals } = servedPorts(
      service({ portsAnnotation: 'all', type: 'NodePort' }),
      ALL_PORT_FEATURES,
    );
    assert.deepEqual(ports, []);
    assert.equal(refusals.length, 1);
  });

  it('serves load balancer IPs except with ipMode Proxy', () => {
    const { ports } = servedPorts(
      lb({
        loadBalancerIngress: [
          { ip: '203.0.113.1', ipMode: 'VIP' },
          { ip: '203.0.113.2', ipMode: 'Proxy' },
          { ip: '2001:db8::1', ipMode: 'VIP' },
        ],
      }),
      ALL_PORT_FEATURES,
    );
    assert.deepEqual(ports[0]?.loadBalancerIPs, ['203.0.113.1']);
  });

  it('ignores load balancer fields of a Service that is no longer of type LoadBalancer', () => {
    const { ports } = servedPorts(
      lb({ type: 'ClusterIP', loadBalancerSourceRanges: ['10.0.0.0/8'] }),
      ALL_PORT_FEATURES,
    );
    const [port] = ports;
    assert.deepEqual(
      [port?.loadBalancerIPs, port?.nodePort, port?.sourceRanges],
      [[], 0, undefined],
    );
  });

  for (const [ranges, expected] of [
    [[], undefined],
    [['10.0.0.0/8'], ['10.0.0.0/8']],
    [['10.0.0.0/8', '0.0.0.0/0'], undefined],
    [['fd00::/8'], undefined],
  ] as const) {
    it(`source ranges ${JSON.stringify(ranges)} allow ${expected ?? 'all sources'}`, () => {
      const { ports } = servedPorts(lb({ loadBalancerSourceRanges: ranges }), ALL_PORT_FEATURES);
      assert.deepEqual(ports[0]?.sourceRanges, expected);
    });
  }

  it('warns of unknown annotations, also on a refused Service and one without VIP', () => {
    const unknownAnnotations = ['metadata.annotations["portwide.dev/port"]'];
    for (const fields of [
      {},
      { type: 'NodePort', portsAnnotation: 'all' },
      { headless: true },
    ] as const) {
      const { warnings } = servedPorts(
        service({ ...fields, unknownAnnotations }),
        ALL_PORT_FEATURES,
      );
      assert.equal(warnings.length, 1);
      assert.match(
        warnings[0] ?? '',
        /^metadata\.annotations\["portwide\.dev\/port"\]: unknown annotation/,
      );
    }
    const { warnings } = servedPorts(
      service({ otherProxy: true, unknownAnnotations }),
      ALL_PORT_FEATURES,
    );
    assert.deepEqual(warnings, []);
    const many = service({ unknownAnnotations: Array(3).fill(unknownAnnotations).flat() });
    assert.match(
      servedPorts(many, ALL_PORT_FEATURES).warnings.join(),
      /^[^,]*\] \(and 2 more\): unknown annotation/,
    );
  });

  it('warns when source ranges do not restrict a family', () => {
    const dual = lb({
      clusterIPs: ['10.96.0.10', 'fd00::a'],
      loadBalancerSourceRanges: ['10.0.0.0/8'],
    });
    const { warnings } = servedPorts(dual, ALL_PORT_FEATURES);
    assert.equal(warnings.length, 1);
    assert.match(warnings[0] ?? '', /all IPv6 sources are allowed/);
  });

  it('warns once of owned UDP ports among the local ports of sockets', () => {
    const warnings = (ownedPortsAnnotation: string, portsPerPodAnnotation = '100') =>
      servedPorts(
        service({
          clusterIPs: ['10.96.0.10', 'fd00::a'],
          ownedPortsAnnotation,
          portsPerPodAnnotation,
        }),
        ALL_PORT_FEATURES,
      ).warnings;
    assert.deepEqual(warnings('20000-32767/UDP,61000-65535/UDP'), []);
    assert.deepEqual(warnings('20000-20999/UDP,33000-39999/TCP,40000-41000/SCTP'), []);
    assert.deepEqual(warnings('32700-32799/UDP', '68'), [], 'the rest of the range is not owned');
    assert.deepEqual(warnings('20000-20999/UDP,30000-39999/UDP,60999-61098/UDP'), [
      'metadata.annotations["portwide.dev/owned-ports"]: 30000-39999/UDP (and 1 more) overlaps 32768-60999, Linux\' default net.ipv4.ip_local_port_range. A socket that gets an owned port as its source port loses the answers of Services such as DNS; own other ports, or narrow the sysctl in the pods',
    ]);
  });

  it('returns a health check node port only with externalTrafficPolicy Local', () => {
    const port = (fields: Partial<Service>) =>
      servedPorts(lb({ healthCheckNodePort: 32000, ...fields }), ALL_PORT_FEATURES).ports[0]
        ?.healthCheckNodePort;
    assert.equal(port({}), 0);
    assert.equal(port({ externalTrafficPolicy: 'Local' }), 32000);
  });
});

describe('served-ports: transitions of an all-ports Service (KEP-2610)', () => {
  const all = service({ portsAnnotation: 'all' });
  for (const [title, steps, expected] of [
    ['all ports set and unset', [service(), all, service()], [['port'], ['all'], ['port']]],
    [
      'type ClusterIP to LoadBalancer and back',
      [all, { ...lb(), portsAnnotation: 'all' }, all],
      [['all'], ['all'], ['all']],
    ],
    [
      'type ClusterIP to NodePort and back',
      [all, { ...all, type: 'NodePort' }, all],
      [['all'], [], ['all']],
    ],
    ['external IPs set', [all, { ...all, externalIPs: ['203.0.113.7'] }], [['all'], []]],
    [
      'all ports explicitly false',
      [{ ...all, portsAnnotation: 'false', allPorts: false }],
      [['port']],
    ],
    [
      'all ports to port ranges',
      [all, { ...all, portsAnnotation: '80/TCP' }],
      [['all'], ['ranges']],
    ],
  ] as const) {
    it(`serves the right ports: ${title}`, () => {
      assert.deepEqual(
        steps.map((step) => kinds(step as Service)),
        expected,
      );
    });
  }
});

describe('served-ports: addresses that could not be read', () => {
  const closed = (fields: Partial<Service>, hasUnreadableExternalIP = false) => {
    const balanced = service({
      type: 'LoadBalancer',
      clusterIPs: ['10.96.0.10', 'fd00::a'],
      loadBalancerIngress: [
        { ip: '203.0.113.1', ipMode: 'VIP' },
        { ip: '2001:db8::1', ipMode: 'VIP' },
      ],
      addressProblems: {
        warnings: ['spec.x: unreadable'],
        hasUnreadableExternalIP,
        hasUnreadableSourceRange: !hasUnreadableExternalIP,
      },
      ...fields,
    });
    const { ports, warnings, refusals } = servedPorts(balanced, ALL_PORT_FEATURES);
    return { ips: ports.map(({ loadBalancerIPs }) => loadBalancerIPs), warnings, refusals };
  };

  it('serves no load balancer IP of a family without readable range, and its cluster IP', () => {
    assert.deepEqual(closed({}).ips, [[], []]);
    const { ips, warnings } = closed({ loadBalancerSourceRanges: ['192.0.2.0/24'] });
    assert.deepEqual(ips, [['203.0.113.1'], []]);
    assert.deepEqual(warnings, [
      'spec.x: unreadable',
      'spec.loadBalancerSourceRanges: no IPv6 range can be read, so no IPv6 load balancer IP is served',
    ]);
  });

  it('refuses an all-ports Service with an unreadable external IP, as the admission policy does', () => {
    assert.deepEqual(closed({ portsAnnotation: 'all' }).refusals, []);
    assert.deepEqual(
      closed({ portsAnnotation: 'all' }, true).refusals.map(({ field }) => field),
      ['spec.externalIPs'],
    );
  });
});
