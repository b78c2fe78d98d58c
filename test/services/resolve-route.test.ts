import assert from 'node:assert/strict';
import { ALL_PORT_FEATURES } from '../../api/all-ports.ts';
import type { Service } from '../../api/objects.ts';
import { resolveRoute } from '../../services/resolve-route.ts';
import { servedPorts } from '../../services/served-ports.ts';
import { VipConflicts } from '../../services/vip-conflicts.ts';
import { endpoint, service, servicePort, slice } from '../fixtures.ts';

const CLUSTER_IP = '10.96.0.10';
/** In the order of the status, which is not the order of addresses. */
const [FIRST, SECOND] = ['203.0.113.9', '203.0.113.1'] as const;

const media = (fields: Partial<Service> = {}) =>
  service({
    name: 'media',
    type: 'LoadBalancer',
    clusterIPs: [CLUSTER_IP],
    loadBalancerIngress: [
      { ip: FIRST, ipMode: 'VIP' },
      { ip: SECOND, ipMode: 'VIP' },
    ],
    ownedPortsAnnotation: '20000-20019/UDP',
    portsPerPodAnnotation: '10',
    ...fields,
  });

/** The owned ports of a Service beside other Services. */
function ownedOf(of: Service, others: readonly Service[] = []) {
  const conflicts = new VipConflicts();
  for (const each of [of, ...others]) {
    const { ports } = servedPorts(each, ALL_PORT_FEATURES);
    conflicts.replaceService(each, ports);
  }
  const [port] = servedPorts(of, ALL_PORT_FEATURES).ports.filter(({ ownership }) => ownership);
  assert.ok(port !== undefined);
  const pods = [endpoint('10.244.0.1', { ordinal: 0, ordinalPrefix: 'media-' })];
  const resolved = resolveRoute(of, port, [slice(pods)], {
    node: { name: 'node-a', zone: undefined },
    pods: { holderOf: () => 'pod' },
    refused: conflicts.refusals(of.key),
    portsTakenFrom: (each, vip) => conflicts.portsTakenFrom(each, vip),
  });
  assert.ok(resolved?.route.owned !== undefined);
  return resolved.route.owned;
}

describe('resolve-route: owned ports', () => {
  it('owners speak as the first load balancer IP of the status, else as the cluster IP', () => {
    assert.equal(ownedOf(media()).udpVip, FIRST);
    const proxied = [
      { ip: FIRST, ipMode: 'Proxy' as const },
      { ip: SECOND, ipMode: 'VIP' as const },
    ];
    assert.equal(ownedOf(media({ loadBalancerIngress: proxied })).udpVip, SECOND);
    assert.equal(ownedOf(media({ loadBalancerIngress: [] })).udpVip, CLUSTER_IP);
    assert.equal(ownedOf(media({ type: 'ClusterIP' })).udpVip, CLUSTER_IP);
  });

  it('owners speak as no other VIP while an older Service has theirs', () => {
    const older = media({
      key: 'default/older',
      name: 'older',
      creationTimestamp: '2025-01-01T00:00:00Z',
      clusterIPs: ['10.96.0.11'],
      loadBalancerIngress: [{ ip: FIRST, ipMode: 'VIP' }],
    });
    assert.equal(ownedOf(media(), [older]).udpVip, undefined);
  });

  it('ports that another Service lists are taken on the VIP where it lists them only', () => {
    const dns = service({
      key: 'default/dns',
      name: 'dns',
      clusterIPs: ['10.96.0.11'],
      type: 'LoadBalancer',
      loadBalancerIngress: [{ ip: SECOND, ipMode: 'VIP' }],
      ports: [servicePort({ protocol: 'UDP', port: 20_005 })],
    });
    assert.deepEqual(
      [...ownedOf(media(), [dns]).taken],
      [[SECOND, [{ protocol: 'UDP', from: 20_005, to: 20_005 }]]],
    );
  });
});
