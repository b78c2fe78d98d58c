import assert from 'node:assert/strict';
import { InvalidObject } from '../../api/errors.ts';
import type { Service } from '../../api/objects.ts';
import { readService } from '../../api/read-service.ts';

type Raw = Record<string, unknown>;

const raw = (spec: Raw, more: { metadata?: Raw; status?: Raw } = {}): Raw => ({
  apiVersion: 'v1',
  kind: 'Service',
  metadata: { name: 'web', ...more.metadata },
  spec,
  status: more.status,
});
const ingress = (...entries: unknown[]) => ({ status: { loadBalancer: { ingress: entries } } });

describe('read-service: reading a Service', () => {
  it('applies the defaults of the API server', () => {
    assert.deepEqual(readService(raw({})), {
      kind: 'Service',
      key: 'default/web',
      namespace: 'default',
      name: 'web',
      uid: '',
      creationTimestamp: '',
      type: 'ClusterIP',
      clusterIPs: [],
      headless: false,
      externalName: undefined,
      publishNotReadyAddresses: false,
      ports: [],
      allPorts: undefined,
      portsAnnotation: undefined,
      externalIPs: [],
      loadBalancerIngress: [],
      loadBalancerSourceRanges: [],
      externalTrafficPolicy: 'Cluster',
      internalTrafficPolicy: 'Cluster',
      healthCheckNodePort: 0,
      affinitySeconds: 0,
      otherProxy: false,
      headlessLabel: false,
    } satisfies Service);
  });

  it('reads all fields', () => {
    const service = readService(
      raw(
        {
          type: 'LoadBalancer',
          clusterIP: 'FD00::0:1',
          clusterIPs: ['fd00::1', '10.0.0.1'],
          ports: [
            { name: 'sip', protocol: 'UDP', port: 5060, nodePort: 30060, targetPort: 'x' },
            { name: 'web', port: 80 },
          ],
          allPorts: true,
          externalIPs: ['192.0.2.1', '192.0.2.1'],
          loadBalancerSourceRanges: [' 10.1.2.3/8 ', '10.0.0.0/8', 'fd00::1/64'],
          externalTrafficPolicy: 'Local',
          internalTrafficPolicy: 'Local',
          healthCheckNodePort: 31000,
          sessionAffinity: 'ClientIP',
        },
        {
          metadata: {
            namespace: 'voice',
            uid: 'a-b-c',
            creationTimestamp: '2026-01-02T03:04:05Z',
            annotations: { 'portwide.dev/ports': 'all' },
            labels: {
              'service.kubernetes.io/service-proxy-name': '',
              'service.kubernetes.io/headless': '',
            },
          },
          ...ingress({ ip: '192.0.2.2', ipMode: 'Proxy' }, { ip: '192.0.2.3' }),
        },
      ),
    );
    assert.deepEqual(service, {
      kind: 'Service',
      key: 'voice/web',
      namespace: 'voice',
      name: 'web',
      uid: 'a-b-c',
      creationTimestamp: '2026-01-02T03:04:05Z',
      type: 'LoadBalancer',
      clusterIPs: ['fd00::1', '10.0.0.1'],
      headless: false,
      externalName: undefined,
      publishNotReadyAddresses: false,
      ports: [
        { name: 'sip', protocol: 'UDP', port: 5060, nodePort: 30060 },
        { name: 'web', protocol: 'TCP', port: 80, nodePort: 0 },
      ],
      allPorts: true,
      portsAnnotation: 'all',
      externalIPs: ['192.0.2.1'],
      loadBalancerIngress: [
        { ip: '192.0.2.2', ipMode: 'Proxy' },
        { ip: '192.0.2.3', ipMode: 'VIP' },
      ],
      loadBalancerSourceRanges: ['10.0.0.0/8', 'fd00::/64'],
      externalTrafficPolicy: 'Local',
      internalTrafficPolicy: 'Local',
      healthCheckNodePort: 31000,
      affinitySeconds: 10800,
      otherProxy: true,
      headlessLabel: true,
    } satisfies Service);
  });

  it('records unknown annotations under portwide.dev/', () => {
    const annotated = (annotations: unknown) =>
      readService(raw({}, { metadata: { annotations } })).unknownAnnotations;
    assert.deepEqual(
      annotated({ 'portwide.dev/ports': '80', 'portwide.dev/port': 'all', 'portwide.dev/"\n': 7 }),
      ['metadata.annotations["portwide.dev/port"]', 'metadata.annotations["portwide.dev/\\"\\n"]'],
    );
    for (const none of [undefined, null, {}, { 'portwide.dev/ports': '80', 'example.com/a': '' }]) {
      assert.equal(annotated(none), undefined);
    }
  });

  const fields: readonly (readonly [string, Raw, Partial<Service>])[] = [
    ['null as missing', raw({ ports: null, clusterIPs: null, type: null }), { ports: [] }],
    ['clusterIP alone', raw({ clusterIP: '10.0.0.1' }), { clusterIPs: ['10.0.0.1'] }],
    ['an empty clusterIP', raw({ clusterIP: '', clusterIPs: [] }), { clusterIPs: [] }],
    ['clusterIP None', raw({ clusterIP: 'None' }), { clusterIPs: [], headless: true }],
    ['clusterIPs None', raw({ clusterIP: 'None', clusterIPs: ['None'] }), { headless: true }],
    [
      'an ExternalName Service with an invalid clusterIP',
      raw({ type: 'ExternalName', clusterIP: 'x', externalName: 'example.org' }),
      { clusterIPs: [], headless: false, type: 'ExternalName', externalName: 'example.org' },
    ],
    [
      'a headless Service with publishNotReadyAddresses',
      raw({ clusterIP: 'None', publishNotReadyAddresses: true }),
      { headless: true, publishNotReadyAddresses: true },
    ],
    ['a link-local clusterIP', raw({ clusterIP: '169.254.1.1' }), { clusterIPs: ['169.254.1.1'] }],
    ['a single unnamed port', raw({ ports: [{ name: null, port: 1 }] }), {}],
    [
      'one port number for two protocols',
      raw({
        type: 'NodePort',
        ports: [
          { name: 'a', port: 53, nodePort: 30053 },
          { name: 'b', port: 53, protocol: 'UDP', nodePort: 30053 },
        ],
      }),
      {},
    ],
    [
      'a session affinity timeout',
      raw({
        sessionAffinity: 'ClientIP',
        sessionAffinityConfig: { clientIP: { timeoutSeconds: 86400 } },
      }),
      { affinitySeconds: 86400 },
    ],
    [
      'a timeout without session affinity',
      raw({ sessionAffinity: 'None', sessionAffinityConfig: { clientIP: { timeoutSeconds: 5 } } }),
      { affinitySeconds: 0 },
    ],
    [
      'ingress with a host name, a special address and a duplicate',
      raw(
        {},
        ingress(
          { hostname: 'lb.example' },
          { ip: '', hostname: 'x' },
          { ip: '127.0.0.1' },
          { ip: '192.0.2.1' },
          { ip: '192.0.2.1', ipMode: 'VIP' },
        ),
      ),
      { loadBalancerIngress: [{ ip: '192.0.2.1', ipMode: 'VIP' }] },
    ],
    [
      'an unknown ingress mode, as Proxy',
      raw({}, ingress({ ip: '192.0.2.1', ipMode: 'Tunnel' })),
      { loadBalancerIngress: [{ ip: '192.0.2.1', ipMode: 'Proxy' }] },
    ],
    ['unknown fields', raw({ newField: { a: [1] }, ports: [{ port: 1, new: 1 }] }), {}],
    [
      'an empty annotation',
      raw({}, { metadata: { annotations: { 'portwide.dev/ports': '' } } }),
      { portsAnnotation: '' },
    ],
    ['minus zero', raw({ healthCheckNodePort: -0 }), { healthCheckNodePort: 0 }],
  ];
  for (const [what, object, expected] of fields) {
    it(`accepts ${what}`, () => {
      const service = readService(object);
      assert.deepEqual({ ...service, ...expected }, service);
    });
  }

  it('reads leading zeros as Go does (ParseIPSloppy), and warns', () => {
    const service = readService(
      raw(
        {
          type: 'LoadBalancer',
          clusterIP: '010.000.0.08',
          externalIPs: ['192.168.099.011'],
          loadBalancerSourceRanges: [' 203.000.113.000/25 ', '0.0.0.0/00'],
        },
        ingress({ ip: '0203.0.113.7' }),
      ),
    );
    assert.deepEqual(
      [service.clusterIPs, service.externalIPs, service.loadBalancerSourceRanges],
      [['10.0.0.8'], ['192.168.99.11'], ['203.0.113.0/25', '0.0.0.0/0']],
    );
    assert.deepEqual(service.loadBalancerIngress, [{ ip: '203.0.113.7', ipMode: 'VIP' }]);
    assert.deepEqual(service.addressProblems, {
      warnings: [
        'spec.externalIPs[0]: "192.168.099.011" is read as 192.168.99.11; write it so',
        'status.loadBalancer.ingress[0].ip: "0203.0.113.7" is read as 203.0.113.7; write it so',
        'spec.loadBalancerSourceRanges[0]: "203.000.113.000/25" is read as 203.0.113.0/25; write it so (and 1 more)',
      ],
      hasUnreadableExternalIP: false,
      hasUnreadableSourceRange: false,
    });
  });

  it('reads IPv4-mapped IPv6 as IPv4, as Go does, and warns', () => {
    const service = readService(
      raw(
        {
          type: 'LoadBalancer',
          clusterIP: '::ffff:10.0.0.8',
          externalIPs: ['::FFFF:192.168.099.11', '0:0:0:0:0:ffff:c0a8:0163'],
          loadBalancerSourceRanges: ['::ffff:203.0.113.9/121', '::ffff:0:0/96', '::ffff:a00:0/95'],
        },
        ingress({ ip: '::ffff:203.0.113.7' }),
      ),
    );
    assert.deepEqual(
      [service.clusterIPs, service.externalIPs, service.loadBalancerSourceRanges],
      [['10.0.0.8'], ['192.168.99.11', '192.168.1.99'], ['203.0.113.0/25', '0.0.0.0/0']],
    );
    assert.deepEqual(service.loadBalancerIngress, [{ ip: '203.0.113.7', ipMode: 'VIP' }]);
    assert.deepEqual(service.addressProblems, {
      warnings: [
        'spec.externalIPs[0]: "::FFFF:192.168.099.11" is read as 192.168.99.11; write it so (and 1 more)',
        'status.loadBalancer.ingress[0].ip: "::ffff:203.0.113.7" is read as 203.0.113.7; write it so',
        'spec.loadBalancerSourceRanges[2]: must be a CIDR such as 10.0.0.0/8, not "::ffff:a00:0/95"; ignored',
        'spec.loadBalancerSourceRanges[0]: "::ffff:203.0.113.9/121" is read as 203.0.113.9/25; write it so (and 1 more)',
      ],
      hasUnreadableExternalIP: false,
      hasUnreadableSourceRange: true,
    });
  });

  for (const [what, object, warning] of [
    ['external IP', raw({ externalIPs: ['127.0.0.1'] }), /^spec.externalIPs.0.: .*loopback/],
    ['external IP', raw({ externalIPs: ['fe80::1'] }), /^spec.externalIPs.0.: .*link-local/],
    ['external IP', raw({ externalIPs: ['febf::1'] }), /^spec.externalIPs.0.: .*link-local/],
    ['external IP', raw({ externalIPs: ['10.0.0.256'] }), /^spec.externalIPs.0.: .*IP address/],
    ['external IP', raw({ externalIPs: [7] }), /^spec.externalIPs.0.: must be a string/],
    ['list of external IPs', raw({ externalIPs: 'x' }), /^spec.externalIPs: must be a list/],
    [
      'source range',
      raw({ loadBalancerSourceRanges: ['10.0.0.0'] }),
      /^spec.loadBalancerSourceRanges.0.: .*CIDR/,
    ],
    [
      'list of source ranges',
      raw({ loadBalancerSourceRanges: 'x' }),
      /^spec.loadBalancerSourceRanges: must be a list/,
    ],
    [
      'ingress IP',
      raw({}, ingress({ ip: 'x' })),
      /^status.loadBalancer.ingress.0..ip: .*IP address/,
    ],
  ] as const) {
    it(`ignores an unreadable ${what}, and warns: ${warning.source}`, () => {
      const { addressProblems } = readService(object);
      assert.ok(addressProblems !== undefined);
      const { warnings, hasUnreadableExternalIP, hasUnreadableSourceRange } = addressProblems;
      assert.equal(warnings.length, 1);
      assert.match(warnings[0] ?? '', warning);
      assert.deepEqual(
        [hasUnreadableExternalIP, hasUnreadableSourceRange],
        [what.includes('external'), what.includes('source')],
      );
    });
  }

  const port = (...ports: Raw[]) => raw({ type: 'NodePort', ports });
  const refused: readonly (readonly [Raw, string, RegExp])[] = [
    [{ ...raw({}), spec: null }, 'spec', /^is required$/],
    [{ ...raw({}), spec: [] }, 'spec', /^must be an object, not a list$/],
    [{ ...raw({}), metadata: 'x' }, 'metadata', /^must be an object, not "x"$/],
    [{ ...raw({}), metadata: {} }, 'metadata.name', /^is required$/],
    [raw({}, { metadata: { name: 'a.b' } }), 'metadata.name', /DNS label/],
    [raw({}, { metadata: { name: 'a'.repeat(64) } }), 'metadata.name', /DNS label/],
    [raw({}, { metadata: { name: 'a\n' } }), 'metadata.name', /not "a\\n"$/],
    [raw({}, { metadata: { namespace: 'A' } }), 'metadata.namespace', /DNS label/],
    [raw({}, { metadata: { namespace: 7 } }), 'metadata.namespace', /must be a string/],
    [raw({}, { metadata: { labels: [] } }), 'metadata.labels', /must be an object/],
    [
      raw({}, { metadata: { annotations: { 'portwide.dev/ports': false } } }),
      'metadata.annotations["portwide.dev/ports"]',
      /^must be a string \(in YAML, quote it\), not false$/,
    ],
    [
      raw({}, { metadata: { annotations: { 'portwide.dev/ports': null } } }),
      'metadata.annotations["portwide.dev/ports"]',
      /must be a string/,
    ],
    [raw({ type: 'Clusterip' }), 'spec.type', /one of ClusterIP, NodePort/],
    [raw({ allPorts: 'true' }), 'spec.allPorts', /true or false, not "true"/],
    [raw({ clusterIP: '10.0.0.1 -j DROP' }), 'spec.clusterIP', /must be an IP address/],
    [raw({ clusterIP: '0.0.0.0' }), 'spec.clusterIP', /unspecified/],
    [raw({ clusterIP: '::1' }), 'spec.clusterIP', /loopback/],
    [raw({ clusterIP: '239.1.1.1' }), 'spec.clusterIP', /multicast/],
    [raw({ clusterIP: 'ff02::1' }), 'spec.clusterIP', /multicast/],
    [raw({ clusterIP: '255.255.255.255' }), 'spec.clusterIP', /broadcast/],
    [raw({ clusterIPs: ['10.0.0.1', '10.0.0.2'] }), 'spec.clusterIPs', /one entry per IP family/],
    [raw({ clusterIPs: ['10.0.0.1', 'None'] }), 'spec.clusterIPs[1]', /IP address/],
    [
      raw({ clusterIP: '10.0.0.2', clusterIPs: ['10.0.0.1'] }),
      'spec.clusterIPs',
      /as its first entry/,
    ],
    [raw({ clusterIP: '10.0.0.2', clusterIPs: ['None'] }), 'spec.clusterIPs', /as its first entry/],
    [raw({ ports: {} }), 'spec.ports', /must be a list/],
    [raw({ ports: [null] }), 'spec.ports[0].port', /is required/],
    [raw({ ports: ['80'] }), 'spec.ports[0]', /must be an object/],
    [port({ port: 0 }), 'spec.ports[0].port', /from 1 to 65535, not 0/],
    [port({ port: 1.5 }), 'spec.ports[0].port', /not 1.5/],
    [port({ port: '80' }), 'spec.ports[0].port', /not "80"/],
    [port({ port: 1, protocol: 'tcp' }), 'spec.ports[0].protocol', /TCP, UDP, SCTP/],
    [port({ port: 1, name: 'a_b' }), 'spec.ports[0].name', /DNS label/],
    [port({ port: 1, nodePort: 65536 }), 'spec.ports[0].nodePort', /65535/],
    [raw({ ports: [{ port: 1, nodePort: 3 }] }), 'spec.ports[0].nodePort', /of type ClusterIP/],
    [port({ port: 1 }, { port: 2, name: 'b' }), 'spec.ports[0].name', /several ports/],
    [port({ port: 1, name: 'a' }, { port: 2, name: 'a' }), 'spec.ports[1].name', /duplicates/],
    [port({ port: 1, name: 'a' }, { port: 1, name: 'b' }), 'spec.ports[1].port', /duplicates/],
    [
      port({ port: 1, name: 'a', nodePort: 9 }, { port: 2, name: 'b', nodePort: 9 }),
      'spec.ports[1].nodePort',
      /duplicates the node port 9\/TCP/,
    ],
    [raw({ externalTrafficPolicy: 'local' }), 'spec.externalTrafficPolicy', /Cluster, Local/],
    [raw({ internalTrafficPolicy: 1 }), 'spec.internalTrafficPolicy', /must be a string/],
    [raw({ healthCheckNodePort: -1 }), 'spec.healthCheckNodePort', /from 0 to 65535/],
    [raw({ sessionAffinity: 'Cookie' }), 'spec.sessionAffinity', /None, ClientIP/],
    [
      raw({
        sessionAffinity: 'ClientIP',
        sessionAffinityConfig: { clientIP: { timeoutSeconds: 86401 } },
      }),
      'spec.sessionAffinityConfig.clientIP.timeoutSeconds',
      /from 1 to 86400/,
    ],
  ];
  for (const [object, field, reason] of refused) {
    it(`rejects ${field}: ${reason.source}`, () => {
      assert.throws(() => readService(object), invalid(field, reason));
    });
  }
});

function invalid(field: string, reason: RegExp): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof InvalidObject, String(error));
    assert.equal(error.field, field);
    assert.match(error.reason, reason);
    return true;
  };
}
