import assert from 'node:assert/strict';
import { ALL_PORT_FEATURES } from '../../api/all-ports.ts';
import type { EndpointSlice, Service } from '../../api/objects.ts';
import { servedPorts } from '../../services/served-ports.ts';
import { serviceHealth } from '../../services/service-health.ts';
import { grantKey } from '../../services/vip-conflicts.ts';
import { endpoint, service, servicePort, slice } from '../fixtures.ts';

const VIPS = [
  { ip: '203.0.113.7', ipMode: 'VIP' },
  { ip: '2001:db8:113::7', ipMode: 'VIP' },
] as const;
const local = (fields: Partial<Service> = {}) =>
  service({
    type: 'LoadBalancer',
    externalTrafficPolicy: 'Local',
    healthCheckNodePort: 30_001,
    loadBalancerIngress: VIPS.slice(0, 1),
    ...fields,
  });
const BOTH = { clusterIPs: ['10.96.0.10', 'fd00::a'], loadBalancerIngress: VIPS };
const ALL = { portsAnnotation: 'all' };
const SLICES = [
  slice([endpoint('10.0.0.1'), endpoint('10.0.0.2', { nodeName: 'node-b' })]),
  slice([endpoint('fd00::1'), endpoint('fd00::2')], { family: 'IPv6', name: 'web-6' }),
];

/** Answers as `family:port:endpoints`, with these VIPs refused. */
function answers(
  object: Service,
  slices: readonly EndpointSlice[] = SLICES,
  refusedVips: readonly string[] = [],
) {
  const { ports } = servedPorts(object, ALL_PORT_FEATURES);
  const refused = new Map(
    ports.flatMap(({ id }) => refusedVips.map((vip) => [grantKey(id, vip), true] as const)),
  );
  return serviceHealth(object.key, ports, refused, slices, 'node-a').map((health) => {
    assert.equal(health.serviceKey, object.key);
    assert.equal(health.isOnlyFamily, object.clusterIPs.length === 1);
    return `${health.family}:${health.port}:${health.localEndpoints}`;
  });
}

describe('service-health: answers of health check node ports', () => {
  for (const [title, object, expected] of [
    ['for one family', local(), ['IPv4:30001:1']],
    [
      'for both families, each with its own endpoints',
      local(BOTH),
      ['IPv4:30001:1', 'IPv6:30001:2'],
    ],
    ['for an all-ports Service', local({ ...BOTH, ...ALL }), ['IPv4:30001:1', 'IPv6:30001:2']],
    ['for a port-range Service', local({ portsAnnotation: '5060/UDP' }), ['IPv4:30001:1']],
    ['before the load balancer has a VIP', local({ loadBalancerIngress: [] }), ['IPv4:30001:1']],
    ['none with externalTrafficPolicy Cluster', local({ externalTrafficPolicy: 'Cluster' }), []],
    ['none with another Service type', local({ type: 'NodePort' }), []],
    ['none without a health check node port', local({ healthCheckNodePort: 0 }), []],
    ['none for a Service of another proxy', local({ otherProxy: true }), []],
    ['none for a refused Service', local({ ...ALL, externalIPs: ['192.0.2.1'] }), []],
  ] as const) {
    it(`returns health check answers: ${title}`, () => assert.deepEqual(answers(object), expected));
  }

  it('counts an address once across ports and slices', () => {
    const ports = ['sip', 'rtp'].map((name, index) => servicePort({ name, port: 80 + index }));
    const slicePorts = ports.map(({ name, port }) => ({ name, protocol: 'TCP' as const, port }));
    const slices = [
      slice([endpoint('10.0.0.1'), endpoint('10.0.0.2')], { name: 'one', ports: slicePorts }),
      slice([endpoint('10.0.0.1')], { name: 'two', ports: slicePorts.slice(1) }),
    ];
    assert.deepEqual(answers(local({ ports }), slices), ['IPv4:30001:2']);
  });

  it('counts ready endpoints on this node, not draining ones', () => {
    const slices = [
      slice([
        endpoint('10.0.0.1', { ready: false, serving: true, terminating: true }),
        endpoint('10.0.0.2', { ready: false, serving: false }),
        endpoint('10.0.0.3', { nodeName: undefined }),
        endpoint('10.0.0.4', { nodeName: 'node-b' }),
      ]),
    ];
    for (const object of [local(), local(ALL)]) {
      assert.deepEqual(answers(object, slices), ['IPv4:30001:0']);
    }
  });

  it('counts an address that a new pod took over from a terminating pod', () => {
    const slices = [
      slice([endpoint('10.0.0.1', { ready: false, terminating: true })], { name: 'old' }),
      slice([endpoint('10.0.0.1')], { name: 'new' }),
    ];
    assert.deepEqual(answers(local(), slices), ['IPv4:30001:1']);
  });

  it('counts a slice without port numbers for all-ports Services only', () => {
    for (const ports of [[], [{ name: '', protocol: 'TCP' as const, port: undefined }]]) {
      const slices = [slice([endpoint('10.0.0.1')], { ports })];
      assert.deepEqual(answers(local(), slices), ['IPv4:30001:0']);
      assert.deepEqual(answers(local(ALL), slices), ['IPv4:30001:1']);
    }
  });

  it('returns no health check answer in a family whose load balancer VIPs are all refused', () => {
    const dual = local({ ...BOTH, ...ALL });
    assert.deepEqual(answers(dual, SLICES, ['203.0.113.7']), ['IPv6:30001:2']);
    assert.deepEqual(answers(dual, SLICES, ['10.96.0.10', 'fd00::a']), [
      'IPv4:30001:1',
      'IPv6:30001:2',
    ]);
    const two = local({
      ...ALL,
      loadBalancerIngress: [...VIPS, { ip: '203.0.113.8', ipMode: 'VIP' }],
    });
    assert.deepEqual(answers(two, SLICES, ['203.0.113.7']), ['IPv4:30001:1']);
  });
});
