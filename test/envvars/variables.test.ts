import assert from 'node:assert/strict';
import fc from 'fast-check';
import { REFUSAL_REASONS } from '../../api/all-ports.ts';
import type { Protocol, Service } from '../../api/objects.ts';
import { containerVariables, type EnvVar, serviceVariables } from '../../envvars/variables.ts';
import { service, servicePort } from '../fixtures.ts';

const lines = (variables: readonly EnvVar[]) =>
  variables.map(({ name, value }) => `${name}=${value}`);

/** A cluster IP of each family, and its form in a URL. */
const HOSTS = [
  { family: 'IPv4', host: '10.0.0.11', inUrl: '10.0.0.11' },
  { family: 'IPv6', host: 'fd00:10:96::b', inUrl: '[fd00:10:96::b]' },
] as const;

/** An entry of `spec.ports`: number, protocol, name. */
type Port = readonly [port: number, protocol?: Protocol, name?: string];

/**
 * The cases of the kubelet's test of envvars.FromServices, and the example in Kubernetes' documentation.
 * `H` stands for the host, `U` for the host in URLs.
 */
const KUBELET: readonly (readonly [title: string, name: string, Port[], expected: string])[] = [
  [
    'one port without a name',
    'redis-primary',
    [[6379]],
    `REDIS_PRIMARY_SERVICE_HOST=H
     REDIS_PRIMARY_SERVICE_PORT=6379
     REDIS_PRIMARY_PORT=tcp://U:6379
     REDIS_PRIMARY_PORT_6379_TCP=tcp://U:6379
     REDIS_PRIMARY_PORT_6379_TCP_PROTO=tcp
     REDIS_PRIMARY_PORT_6379_TCP_PORT=6379
     REDIS_PRIMARY_PORT_6379_TCP_ADDR=H`,
  ],
  [
    'two protocols on one port, and names with dashes',
    'dns-1',
    [
      [53, 'UDP', 'u-d-p'],
      [53, 'TCP', 't-c-p'],
    ],
    `DNS_1_SERVICE_HOST=H
     DNS_1_SERVICE_PORT=53
     DNS_1_SERVICE_PORT_U_D_P=53
     DNS_1_SERVICE_PORT_T_C_P=53
     DNS_1_PORT=udp://U:53
     DNS_1_PORT_53_UDP=udp://U:53
     DNS_1_PORT_53_UDP_PROTO=udp
     DNS_1_PORT_53_UDP_PORT=53
     DNS_1_PORT_53_UDP_ADDR=H
     DNS_1_PORT_53_TCP=tcp://U:53
     DNS_1_PORT_53_TCP_PROTO=tcp
     DNS_1_PORT_53_TCP_PORT=53
     DNS_1_PORT_53_TCP_ADDR=H`,
  ],
  [
    'an unnamed port and a port with a numeric name',
    'a-b-c',
    [
      [8082, 'TCP'],
      [8083, 'SCTP', '9999'],
    ],
    `A_B_C_SERVICE_HOST=H
     A_B_C_SERVICE_PORT=8082
     A_B_C_SERVICE_PORT_9999=8083
     A_B_C_PORT=tcp://U:8082
     A_B_C_PORT_8082_TCP=tcp://U:8082
     A_B_C_PORT_8082_TCP_PROTO=tcp
     A_B_C_PORT_8082_TCP_PORT=8082
     A_B_C_PORT_8082_TCP_ADDR=H
     A_B_C_PORT_8083_SCTP=sctp://U:8083
     A_B_C_PORT_8083_SCTP_PROTO=sctp
     A_B_C_PORT_8083_SCTP_PORT=8083
     A_B_C_PORT_8083_SCTP_ADDR=H`,
  ],
  [
    'names that start with a digit',
    '3com--x',
    [[80, 'TCP', '2nd']],
    `3COM__X_SERVICE_HOST=H
     3COM__X_SERVICE_PORT=80
     3COM__X_SERVICE_PORT_2ND=80
     3COM__X_PORT=tcp://U:80
     3COM__X_PORT_80_TCP=tcp://U:80
     3COM__X_PORT_80_TCP_PROTO=tcp
     3COM__X_PORT_80_TCP_PORT=80
     3COM__X_PORT_80_TCP_ADDR=H`,
  ],
];

describe('variables: serviceVariables', () => {
  for (const { family, host, inUrl } of HOSTS) {
    describe(family, () => {
      for (const [title, name, ports, expected] of KUBELET) {
        it(`has the kubelet's variables for ${title}`, () => {
          const made = serviceVariables(
            service({
              name,
              clusterIPs: [host],
              ports: ports.map(([port, protocol = 'TCP', portName = '']) =>
                servicePort({ port, protocol, name: portName }),
              ),
            }),
          );
          const filled = expected.replaceAll('=H', `=${host}`).replaceAll('//U', `//${inUrl}`);
          assert.deepEqual(
            lines(made),
            filled.split('\n').map((line) => line.trim()),
          );
        });
      }
    });
  }

  it('uses the first cluster IP of a dual-stack Service', () => {
    for (const clusterIPs of [
      ['10.0.0.1', 'fd00::1'],
      ['fd00::1', '10.0.0.1'],
    ]) {
      const made = serviceVariables(service({ clusterIPs }));
      assert.deepEqual(made, serviceVariables(service({ clusterIPs: clusterIPs.slice(0, 1) })));
    }
  });

  it('is empty without a cluster IP', () => {
    for (const fields of [
      { headless: true },
      { type: 'ExternalName', externalName: 'example.org' },
      {},
    ] as const) {
      assert.deepEqual(serviceVariables(service({ ...fields, clusterIPs: [] })), []);
    }
  });

  it('has only the host for a Service without ports', () => {
    assert.deepEqual(lines(serviceVariables(service({ ports: [] }))), [
      'WEB_SERVICE_HOST=10.96.0.10',
    ]);
  });

  it('includes Services of other proxies and labelled headless, like the kubelet', () => {
    const all = serviceVariables(service());
    assert.deepEqual(serviceVariables(service({ otherProxy: true })), all);
    assert.deepEqual(serviceVariables(service({ headlessLabel: true })), all);
  });
});

describe('variables: serviceVariables of an all-ports Service', () => {
  const HOST = ['WEB_SERVICE_HOST=10.96.0.10'];
  const named = [servicePort({ name: 'http' }), servicePort({ name: 'sip', port: 5060 })];

  it('has only the host, for the field and for the annotation', () => {
    for (const fields of [
      { allPorts: true, ports: [] },
      { portsAnnotation: 'all', ports: [servicePort({ port: 1 })] },
      { portsAnnotation: '5060/UDP,20000-50000/UDP', ports: named },
      { portsAnnotation: 'all', ports: named, type: 'LoadBalancer' },
    ] as const) {
      assert.deepEqual(lines(serviceVariables(service(fields))), HOST, JSON.stringify(fields));
    }
  });

  it('uses the first cluster IP', () => {
    const made = serviceVariables(
      service({ portsAnnotation: 'all', clusterIPs: ['fd00::1', '10.0.0.1'] }),
    );
    assert.deepEqual(lines(made), ['WEB_SERVICE_HOST=fd00::1']);
  });

  it('omits port variables while the Service is all-ports', () => {
    const listed = serviceVariables(service({ ports: named }));
    assert.equal(listed.length, 13);
    const at = (portsAnnotation: string | undefined, allPorts?: boolean) =>
      serviceVariables(service({ ports: named, portsAnnotation, allPorts }));
    assert.deepEqual(lines(at('all')), HOST);
    assert.deepEqual(lines(at('80')), HOST);
    assert.deepEqual(at('false'), listed);
    assert.deepEqual(at(undefined), listed);
    assert.deepEqual(at(undefined, false), listed);
    assert.deepEqual(lines(at(undefined, true)), HOST);
  });

  /** Reasons for a refusal in the Service itself; the other reasons depend on the node. */
  const REFUSED: Readonly<Record<string, Partial<Service>>> = {
    NodePort: { portsAnnotation: 'all', type: 'NodePort' },
    ExternalName: { portsAnnotation: 'all', type: 'ExternalName', clusterIPs: [] },
    Headless: { portsAnnotation: 'all', headless: true, clusterIPs: [] },
    ExternalIPs: { portsAnnotation: 'all', externalIPs: ['192.0.2.1'] },
    Ports: { allPorts: true },
    Annotation: { portsAnnotation: 'everything' },
  };

  it('has the host of a refused Service too', () => {
    const ofTheNode = [
      'OwnedPorts',
      'LoadBalancing',
      'FeatureGate',
      'NodeAddress',
      'Overlap',
      'Budget',
    ];
    assert.deepEqual(Object.keys(REFUSED).concat(ofTheNode), [...REFUSAL_REASONS]);
    for (const [reason, fields] of Object.entries(REFUSED)) {
      const expected = fields.clusterIPs === undefined ? HOST : [];
      assert.deepEqual(lines(serviceVariables(service(fields))), expected, reason);
    }
  });
});

describe('variables: containerVariables', () => {
  const at = (key: string, clusterIP: string, fields: Partial<Service> = {}) => {
    const [namespace, name] = key.split('/') as [string, string];
    return service({ namespace, name, clusterIPs: clusterIP === '' ? [] : [clusterIP], ...fields });
  };
  /** The Services of the kubelet's test of makeEnvironmentVariables. */
  const CLUSTER = [
    at('default/kubernetes', '10.0.0.1'),
    at('default/other', '10.0.0.2'),
    at('default/other-headless', '', { headless: true }),
    at('default/other-outside', '', { type: 'ExternalName', externalName: 'example.org' }),
    at('one/test', '10.0.0.3'),
    at('two/kubernetes', '10.0.0.4'),
    at('two/test', '10.0.0.5'),
    at('kube-system/kubernetes', '', { headless: true }),
    at('kube-system/kube-dns', '10.0.0.6', { portsAnnotation: 'all' }),
  ];
  const hosts = (variables: readonly EnvVar[]) =>
    lines(variables).filter((line) => line.includes('_SERVICE_HOST='));

  const API_SERVER = 'KUBERNETES_SERVICE_HOST=10.0.0.1';
  const HOSTS_SEEN: readonly (readonly [ns: string, links: boolean, expected: string[]])[] = [
    ['one', true, [API_SERVER, 'TEST_SERVICE_HOST=10.0.0.3']],
    ['one', false, [API_SERVER]],
    ['two', true, ['KUBERNETES_SERVICE_HOST=10.0.0.4', 'TEST_SERVICE_HOST=10.0.0.5']],
    ['two', false, [API_SERVER]],
    ['default', true, [API_SERVER, 'OTHER_SERVICE_HOST=10.0.0.2']],
    ['default', false, [API_SERVER]],
    ['kube-system', true, ['KUBE_DNS_SERVICE_HOST=10.0.0.6', API_SERVER]],
    ['empty', true, [API_SERVER]],
  ];
  for (const [namespace, links, expected] of HOSTS_SEEN) {
    it(`has the kubelet's hosts in namespace ${namespace} ${links ? 'with' : 'without'} service links`, () => {
      const made = containerVariables(CLUSTER, namespace, links);
      assert.deepEqual(hosts(made), expected);
      assert.deepEqual(containerVariables(CLUSTER.toReversed(), namespace, links), made);
    });
  }

  it('has all variables of each Service, in the order of Service names', () => {
    const made = containerVariables(CLUSTER, 'two', true);
    assert.deepEqual(
      made,
      [CLUSTER[5], CLUSTER[6]].flatMap((each) =>
        each === undefined ? [] : serviceVariables(each),
      ),
    );
    assert.equal(made.length, 14);
  });

  it('is empty without Services in the namespace and an API server', () => {
    assert.deepEqual(containerVariables([], 'default', true), []);
    assert.deepEqual(containerVariables(CLUSTER.slice(4), 'one', false), []);
  });

  it('uses the Service named by a variable that two Services have', () => {
    const both = [at('one/db-service', '10.0.0.8'), at('one/db', '10.0.0.7')];
    const made = lines(containerVariables(both, 'one', true));
    assert.deepEqual(
      made.filter((line) => line.startsWith('DB_SERVICE_PORT=')),
      ['DB_SERVICE_PORT=80'],
    );
    assert.ok(made.includes('DB_SERVICE_SERVICE_HOST=10.0.0.8'));
  });

  it('has each variable once, independent of the order of Services', () => {
    const label = fc.constantFrom('a', 'a-service', 'a-service-port', '1', 'kubernetes', 'b');
    const port = fc.record({
      port: fc.constantFrom(80, 443),
      protocol: fc.constantFrom<Protocol>('TCP', 'UDP'),
      name: fc.constantFrom('', 'x', 'http', '80-tcp'),
    });
    const cluster = fc.uniqueArray(
      fc.record({
        namespace: fc.constantFrom('default', 'one', 'two'),
        name: label,
        host: fc.constantFrom('', '10.0.0.1', 'fd00::1'),
        ports: fc.array(port, { maxLength: 3 }),
        portsAnnotation: fc.constantFrom(undefined, 'all', 'bad'),
      }),
      { selector: ({ namespace, name }) => `${namespace}/${name}` },
    );
    fc.assert(
      fc.property(cluster, fc.boolean(), fc.infiniteStream(fc.nat()), (drawn, links, random) => {
        const services = drawn.map(({ namespace, name, host, ports, portsAnnotation }) =>
          at(`${namespace}/${name}`, host, {
            ports: ports.map((each) => servicePort(each)),
            portsAnnotation,
          }),
        );
        const keys = new Map(services.map(({ key }) => [key, random.next().value ?? 0]));
        const shuffled = services.toSorted(
          (a, b) => (keys.get(a.key) ?? 0) - (keys.get(b.key) ?? 0),
        );
        const made = containerVariables(shuffled, 'one', links);
        assert.deepEqual(made, containerVariables(services, 'one', links));
        const names = made.map(({ name }) => name);
        assert.equal(new Set(names).size, names.length);
        for (const name of names) assert.match(name, /^[A-Z0-9_]+_(SERVICE_|PORT)/);
      }),
      { seed: 1 },
    );
  });
});
