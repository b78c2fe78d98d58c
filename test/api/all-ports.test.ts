import assert from 'node:assert/strict';
import fc from 'fast-check';
import { ALL_PORT_FEATURES, parsePortsAnnotation, portScheme } from '../../api/all-ports.ts';
import type { Service } from '../../api/objects.ts';
import { PROTOCOLS } from '../../api/objects.ts';
import { MAX_RANGES } from '../../api/ports.ts';
import { service } from '../fixtures.ts';

const range = (protocol: 'TCP' | 'UDP' | 'SCTP', from: number, to = from) => ({
  protocol,
  from,
  to,
});
const every = (from: number, to = from) => PROTOCOLS.map((each) => range(each, from, to));

describe('all-ports: annotation portwide.dev/ports', () => {
  for (const [value, expected] of [
    ['all', { kind: 'all' }],
    [' all ', { kind: 'all' }],
    ['false', { kind: 'off' }],
    ['5060/UDP', { kind: 'ranges', ranges: [range('UDP', 5060)] }],
    [
      '5060/UDP,20000-50000/UDP,8000-8100',
      {
        kind: 'ranges',
        ranges: [
          range('TCP', 8000, 8100),
          range('UDP', 5060),
          range('UDP', 8000, 8100),
          range('UDP', 20000, 50000),
          range('SCTP', 8000, 8100),
        ],
      },
    ],
    [' 80/TCP , 443/TCP ', { kind: 'ranges', ranges: [range('TCP', 80), range('TCP', 443)] }],
    ['1-10/TCP,5-20/TCP,21/TCP', { kind: 'ranges', ranges: [range('TCP', 1, 21)] }],
    ['1-65535', { kind: 'ranges', ranges: every(1, 65535) }],
  ] as const) {
    it(`reads ${JSON.stringify(value)}`, () => {
      assert.deepEqual(parsePortsAnnotation(value), expected);
    });
  }

  for (const [value, reason] of [
    ['', /is not a port or range/],
    ['true', /is not a port or range/],
    ['ALL', /is not a port or range/],
    ['all,80', /is not a port or range/],
    ['80,', /is not a port or range/],
    ['0', /1 to 65535/],
    ['0-10/TCP', /1 to 65535/],
    ['65536', /1 to 65535/],
    ['1-65536/UDP', /1 to 65535/],
    ['20-10', /ends before it begins/],
    ['80/tcp', /TCP, UDP or SCTP/],
    ['80/ICMP', /TCP, UDP or SCTP/],
    ['80/', /TCP, UDP or SCTP/],
    ['80-90-100', /is not a port or range/],
    ['-5', /is not a port or range/],
    ['+80', /is not a port or range/],
    ['8e1', /is not a port or range/],
    ['80 -j ACCEPT', /is not a port or range/],
    ['80\n-A INPUT', /is not a port or range/],
    [
      Array.from({ length: MAX_RANGES + 1 }, (_, at) => `${2 * at + 1}/TCP`).join(),
      /more than 1024/,
    ],
  ] as const) {
    it(`rejects ${JSON.stringify(value).slice(0, 30)}`, () => {
      const parsed = parsePortsAnnotation(value);
      assert.ok(parsed.kind === 'bad');
      assert.match(parsed.message, reason);
    });
  }

  it('returns sorted, disjoint, valid ranges or an error for any text', () => {
    const item = fc.tuple(
      fc.nat(70000),
      fc.option(fc.nat(70000)),
      fc.constantFrom('', '/UDP', '/TCP'),
    );
    const text = fc.oneof(
      fc.string(),
      fc
        .array(item, { minLength: 1 })
        .map((items) =>
          items.map(([from, to, end]) => `${from}${to === null ? '' : `-${to}`}${end}`).join(),
        ),
    );
    fc.assert(
      fc.property(text, (value) => {
        const parsed = parsePortsAnnotation(value);
        if (parsed.kind !== 'ranges') return;
        for (const [index, { protocol, from, to }] of parsed.ranges.entries()) {
          assert.ok(from >= 1 && from <= to && to <= 65535);
          const next = parsed.ranges[index + 1];
          if (next?.protocol === protocol) assert.ok(to + 1 < next.from);
        }
      }),
      { seed: 1 },
    );
  });
});

describe('all-ports: choosing the served ports (KEP-2610)', () => {
  const annotated = (fields: Partial<Service> = {}) =>
    service({ portsAnnotation: 'all', ...fields });
  const byField = (fields: Partial<Service> = {}) =>
    service({ allPorts: true, ports: [], ...fields });
  const lbVip = { ip: '203.0.113.1', ipMode: 'VIP' } as const;

  for (const [title, object, kind] of [
    ['no field and no annotation', service(), 'listed'],
    ['allPorts: false', service({ allPorts: false }), 'listed'],
    ['annotation "false"', annotated({ portsAnnotation: 'false' }), 'listed'],
    ['allPorts: true', byField(), 'all'],
    ['annotation all, with a placeholder port', annotated(), 'all'],
    ['allPorts: false with annotation all', annotated({ allPorts: false }), 'all'],
    ['allPorts: true with annotation all', byField({ portsAnnotation: 'all' }), 'all'],
    ['allPorts: true with annotation "false"', byField({ portsAnnotation: 'false' }), 'all'],
    ['annotation with ranges', annotated({ portsAnnotation: '80-90' }), 'ranges'],
    ['allPorts: true on a LoadBalancer', byField({ type: 'LoadBalancer' }), 'all'],
    [
      'annotation on a LoadBalancer with a node port',
      annotated({ type: 'LoadBalancer', loadBalancerIngress: [lbVip] }),
      'all',
    ],
    ['dual stack', byField({ clusterIPs: ['10.96.0.10', 'fd00::1'] }), 'all'],
    ['NodePort without all ports', service({ type: 'NodePort' }), 'listed'],
    ['headless without all ports', service({ headless: true, clusterIPs: [] }), 'listed'],
    ['a listed Service without ports', service({ ports: [] }), 'listed'],
  ] as const) {
    it(`${title}: ${kind}`, () => {
      const scheme = portScheme(object, ALL_PORT_FEATURES);
      const { spread } = scheme.kind === 'unlisted' ? scheme : { spread: scheme.kind };
      assert.equal(typeof spread === 'string' ? spread : 'ranges', kind);
    });
  }

  for (const [title, object, reason, field] of [
    ['allPorts: true on a NodePort', byField({ type: 'NodePort' }), 'NodePort', 'spec.type'],
    ['annotation on a NodePort', annotated({ type: 'NodePort' }), 'NodePort', 'spec.type'],
    [
      'ExternalName',
      annotated({ type: 'ExternalName', clusterIPs: [] }),
      'ExternalName',
      'spec.type',
    ],
    ['headless', byField({ headless: true, clusterIPs: [] }), 'Headless', 'spec.clusterIP'],
    ['no VIP', byField({ clusterIPs: [] }), 'Headless', 'spec.clusterIP'],
    ['externalIPs', byField({ externalIPs: ['203.0.113.9'] }), 'ExternalIPs', 'spec.externalIPs'],
    ['allPorts: true with ports', service({ allPorts: true }), 'Ports', 'spec.ports'],
    [
      'an invalid annotation',
      annotated({ portsAnnotation: 'everything' }),
      'Annotation',
      'metadata.annotations["portwide.dev/ports"]',
    ],
    [
      'allPorts: true with annotated ranges',
      byField({ portsAnnotation: '80' }),
      'Annotation',
      'metadata.annotations["portwide.dev/ports"]',
    ],
  ] as const) {
    it(`${title} is refused as ${reason}`, () => {
      const scheme = portScheme(object, ALL_PORT_FEATURES);
      assert.ok(scheme.kind === 'refused');
      assert.deepEqual(
        scheme.refusals.map((refusal) => [refusal.reason, refusal.field, refusal.serviceKey]),
        [[reason, field, 'default/web']],
      );
    });
  }

  it('reports every reason for refusal', () => {
    const scheme = portScheme(
      service({ allPorts: true, type: 'NodePort', externalIPs: ['203.0.113.9'] }),
      ALL_PORT_FEATURES,
    );
    assert.ok(scheme.kind === 'refused');
    assert.deepEqual(
      scheme.refusals.map(({ reason }) => reason),
      ['NodePort', 'ExternalIPs', 'Ports'],
    );
  });

  it('refuses all-ports Services when the feature gate is off, and serves others', () => {
    for (const object of [byField(), annotated(), annotated({ portsAnnotation: '80' })]) {
      const scheme = portScheme(object, { ...ALL_PORT_FEATURES, allPorts: false });
      assert.ok(scheme.kind === 'refused');
      assert.deepEqual(
        scheme.refusals.map(({ reason }) => reason),
        ['FeatureGate'],
      );
    }
    assert.equal(
      portScheme(service({ allPorts: false }), { ...ALL_PORT_FEATURES, allPorts: false }).kind,
      'listed',
    );
  });
});
