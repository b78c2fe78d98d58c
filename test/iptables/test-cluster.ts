/** Addresses of the generated clusters (see `generated.ts`), and packets sent in them. */
import fc from 'fast-check';
import { familyOf } from '../../api/addresses.ts';
import type { IpFamily } from '../../api/objects.ts';
import type { BaseOptions } from '../../iptables/base-rules.ts';
import { RouteTable } from '../../proxier/route-table.ts';
import type { Route } from '../../services/route.ts';
import { route } from '../fixtures.ts';
import type { Cluster, Packet } from '../traffic/expected-outcome.ts';
import type { ClusterChange } from './generated.ts';
import { options } from './options.ts';

/** Addresses of the generated clusters, see `generated.ts`. */
export const ADDRESSES = {
  IPv4: {
    vips: ['203.0.113.1', '203.0.113.17'],
    clusterIPs: ['10.96.0.1', '10.96.0.2', '10.96.0.3', '10.96.0.4'],
    node: '192.0.2.7',
    clients: ['192.0.2.50', '198.51.100.9'],
    pods: ['10.244.0.2', '10.244.7.7'],
  },
  IPv6: {
    vips: ['2001:db8:113::1'],
    clusterIPs: ['fd00:10:96::1', 'fd00:10:96::2', 'fd00:10:96::3', 'fd00:10:96::4'],
    node: '2001:db8::7',
    clients: ['2001:db8::50', '2001:dba::9'],
    pods: ['fd00:10:244::2', 'fd00:10:244::77'],
  },
} as const;

export const VIP = ADDRESSES.IPv4.vips[0];
/** An all-ports endpoint on this node. */
const LOCAL_ENDPOINT = { address: '10.244.0.2', port: undefined };
export const REMOTE_ENDPOINT = { address: '10.244.0.3', port: undefined };

/** An all-ports Route of VIP to both endpoints. */
export function wideRoute(fields: Partial<Route> = {}): Route {
  return route({
    match: { kind: 'all' },
    loadBalancerIPs: [VIP],
    clusterEndpoints: [LOCAL_ENDPOINT, REMOTE_ENDPOINT],
    localEndpoints: [LOCAL_ENDPOINT],
    hasEndpointsAnywhere: true,
    ...fields,
  });
}

/** A packet from a client outside the cluster to port 80 of VIP. */
export function clientPacket(fields: Partial<Packet> = {}): Packet {
  return {
    source: ADDRESSES.IPv4.clients[0],
    destination: VIP,
    protocol: 'tcp',
    port: 80,
    inInterface: 'eth0',
    ...fields,
  };
}

const PORTS = [0, 22, 53, 80, 85, 90, 91, 5060, 8080, 30001, 32000];

export function* packets(family: IpFamily, local: ReadonlySet<string>): Iterable<Packet> {
  const { vips, clusterIPs, node, clients, pods } = ADDRESSES[family];
  for (const destination of [...vips, ...clusterIPs, node]) {
    const senders = [
      ...clients.map((source) => ({ source, inInterface: 'eth0' })),
      ...pods.map((source) => ({ source, inInterface: 'cali7' })),
      { source: node, inInterface: undefined },
      ...(local.has(destination) ? [{ source: destination, inInterface: undefined }] : []),
    ];
    for (const sender of senders) {
      yield { ...sender, destination, protocol: 'icmp', port: 0 };
      for (const protocol of ['tcp', 'udp', 'sctp'] as const) {
        for (const port of PORTS) yield { ...sender, destination, protocol, port };
      }
    }
  }
}

/** A cluster after some changes, as one family of the node sees it. */
export function clusterAfter(
  steps: readonly ClusterChange[],
  family: IpFamily,
  settings: Pick<BaseOptions, 'masqueradeAll' | 'localDetector'> & { holdsVips: boolean },
): Cluster {
  const table = new RouteTable({ nodeName: 'node-a', allPortsEnabled: true, onChange: () => {} });
  const own = Object.values(ADDRESSES).map(({ node }) => node);
  let nodeAddresses: readonly string[] = own;
  table.setNodeAddresses(new Set(own));
  for (const step of steps) {
    if ('upsert' in step) table.upsert(step.upsert);
    else if ('remove' in step) table.remove(step.remove.kind, step.remove.key);
    else {
      nodeAddresses = [...new Set([...own, ...step.nodeAddresses])];
      table.setNodeAddresses(new Set(nodeAddresses));
    }
  }
  table.takeChanges();
  const ofFamily = nodeAddresses.filter((address) => familyOf(address) === family);
  const knowsPods = settings.localDetector !== undefined;
  const local = new Set([...ofFamily, ...(settings.holdsVips ? ADDRESSES[family].vips : [])]);
  return {
    routes: [...table.routes()].filter((each) => each.family === family),
    nodeAddresses: ofFamily,
    local,
    nodePortAddresses: local,
    masqueradeAll: settings.masqueradeAll,
    knowsPods,
    isPod: ({ inInterface }) => knowsPods && inInterface === 'cali7',
  };
}

/** Local detectors, or none. */
export const localDetectors = (family: IpFamily): fc.Arbitrary<BaseOptions['localDetector']> =>
  fc.constantFrom(
    options({ family }).localDetector,
    { kind: 'interface' as const, name: 'cali+' },
    undefined,
  );
