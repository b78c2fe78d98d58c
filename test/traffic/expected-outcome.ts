/**
 * What must become of a packet, said from Routes alone: the contract of the project read as a
 * function, without plans, chains and rules. What TrafficPlans say is compared with it, and what tracers find in
 * the rules of the modes.
 */
import ipaddr from 'ipaddr.js';
import { getOrCreate } from '../../api/collections.ts';
import type { Route } from '../../services/route.ts';

/** The first packet of a connection, as it comes in. */
export interface Packet {
  readonly source: string;
  readonly destination: string;
  readonly protocol: 'tcp' | 'udp' | 'sctp' | 'icmp';
  /** Destination port; 0 with icmp. */
  readonly port: number;
  /** undefined: one that nobody looks at. */
  readonly sourcePort?: number;
  /** undefined: the node itself sends. */
  readonly inInterface: string | undefined;
  /** What the kernel remembers for affinity; undefined: perhaps this, perhaps that. */
  readonly affinityEntries?: ReadonlySet<string>;
}

/** How a packet that nothing stopped leaves the rules. */
export interface PacketOutcome {
  /** Where it was sent instead. */
  readonly translated?: { readonly address: string; readonly port: number } | undefined;
  readonly masqueraded?: boolean;
  /** A rule of FORWARD or INPUT let it pass, so that a policy of DROP there does not matter. */
  readonly accepted?: boolean;
  /** It left by POSTROUTING with a mark, and would be masqueraded again once encapsulated. */
  readonly markLeft?: boolean;
}

/**
 * One line for people and for comparison: `10.244.0.1 port 80, masqueraded, accepted`. Packets that are
 * stopped have `DROP` or `REJECT icmp-port-unreachable` instead.
 */
export function outcomeText(fate: PacketOutcome): string {
  const { translated } = fate;
  return [
    translated === undefined ? 'untouched' : `${translated.address} port ${translated.port}`,
    ...(fate.masqueraded === true ? ['masqueraded'] : []),
    ...(fate.accepted === true ? ['accepted'] : []),
    ...(fate.markLeft === true ? ['mark left'] : []),
  ].join(', ');
}

/** What decides on fates besides the packet. All of one family. */
export interface Cluster {
  readonly routes: readonly Route[];
  /** The node's own addresses. */
  readonly nodeAddresses: readonly string[];
  /** Every address that the node holds: its own, and VIPs on a dummy device. */
  readonly local: ReadonlySet<string>;
  /** Those of them on which node ports are served. */
  readonly nodePortAddresses: ReadonlySet<string>;
  readonly masqueradeAll: boolean;
  /** Whether pods can be told from others; `isPod` is true for nobody otherwise. */
  readonly knowsPods: boolean;
  isPod(packet: Packet): boolean;
}

/** Every fate that a packet may meet, and whether its client stays with the endpoint it gets. */
export interface Expectation {
  readonly outcomes: ReadonlySet<string>;
  readonly sticky: boolean;
}

/** How a client came to a Route, which decides on its policies. */
type Access = 'cluster IP' | 'external IP' | 'load balancer IP' | 'node port';

/** The most specific Route that serves the address has the packet: port, then range, then all. */
export function expectedOutcomes(cluster: Cluster, packet: Packet): Expectation {
  const { destination: vip, port } = packet;
  const matching = cluster.routes.filter((route) => accessTo(route, vip) !== undefined);
  const protocol = packet.protocol.toUpperCase();
  const exact = matching.find(
    ({ match }) => match.kind === 'port' && match.protocol === protocol && match.port === port,
  );
  // That port of an all-ports VIP stays with the node (contract, line 5).
  const probed = matching.some(
    (route) =>
      route.match.kind !== 'port' &&
      route.loadBalancerIPs.includes(vip) &&
      isHealthCheck(route, packet),
  );
  if (exact === undefined && probed) return only(untouched(cluster, packet));
  const inRange = matching.find(
    ({ match }) =>
      match.kind === 'ranges' &&
      match.ranges.some(
        (each) => each.protocol === protocol && each.from <= port && port <= each.to,
      ),
  );
  const route = exact ?? inRange ?? matching.find(({ match }) => match.kind === 'all');
  const access = route === undefined ? undefined : accessTo(route, vip);
  if (route !== undefined && access !== undefined) return served(cluster, route, access, packet);
  if (matching.some(({ match }) => match.kind === 'ranges')) {
    return only(rejected(packet));
  }
  const onNodePort = cluster.routes.find(
    ({ match, nodePort }) =>
      match.kind === 'port' && match.protocol === protocol && nodePort > 0 && nodePort === port,
  );
  return onNodePort !== undefined && cluster.nodePortAddresses.has(vip)
    ? served(cluster, onNodePort, 'node port', packet)
    : only(untouched(cluster, packet));
}

function served(cluster: Cluster, route: Route, access: Access, packet: Packet): Expectation {
  const reachable = route.clusterEndpoints.length + route.localEndpoints.length > 0;
  if (access === 'load balancer IP' && reachable && !mayUse(cluster, route, packet)) {
    return only('DROP');
  }
  const { endpoints, masquerade } = policy(cluster, route, access, packet);
  if (endpoints.length === 0) {
    return only(route.hasEndpointsAnywhere ? 'DROP' : rejected(packet));
  }
  // Nobody listens on port 0; all ports are 1 to 65535.
  const hasPort = packet.protocol !== 'icmp';
  if (hasPort && packet.port === 0) return only('DROP');
  const fates = endpoints.map(({ address, port = packet.port }) => {
    // A pod that reaches itself must see the node, or it would answer itself directly.
    const masqueraded = masquerade || address === packet.source;
    const forwarded = packet.inInterface !== undefined;
    return outcomeText({
      translated: { address, port },
      masqueraded,
      accepted: forwarded && masqueraded,
    });
  });
  return { outcomes: new Set(fates), sticky: route.affinitySeconds > 0 };
}

/** Which endpoints the traffic policies give this client, and whether it is masqueraded. */
function policy(cluster: Cluster, route: Route, access: Access, packet: Packet) {
  const { clusterEndpoints, localEndpoints } = route;
  const isPod = cluster.isPod(packet);
  if (access === 'cluster IP') {
    const endpoints = route.internalLocal ? localEndpoints : clusterEndpoints;
    return { endpoints, masquerade: cluster.masqueradeAll || (cluster.knowsPods && !isPod) };
  }
  if (!route.externalLocal) return { endpoints: clusterEndpoints, masquerade: true };
  // Pods and the node are inside: the policy Local does not bind them.
  const isInside = isPod || cluster.local.has(packet.source);
  if (!isInside || clusterEndpoints.length === 0) {
    return { endpoints: localEndpoints, masquerade: false };
  }
  return { endpoints: clusterEndpoints, masquerade: !isPod };
}

function mayUse(cluster: Cluster, route: Route, { source }: Packet): boolean {
  const { sourceRanges } = route;
  if (sourceRanges === undefined) return true;
  const covers = (address: string) => sourceRanges.some((cidr) => network(cidr)(address));
  // A node that holds the VIP may have it as its source when it calls it.
  return (
    covers(source) || (route.loadBalancerIPs.includes(source) && cluster.nodeAddresses.some(covers))
  );
}

function accessTo(route: Route, vip: string): Access | undefined {
  if (route.clusterIP === vip) return 'cluster IP';
  if (route.externalIPs.includes(vip)) return 'external IP';
  return route.loadBalancerIPs.includes(vip) ? 'load balancer IP' : undefined;
}

function isHealthCheck(route: Route, { protocol, port }: Packet): boolean {
  return protocol === 'tcp' && route.healthCheckNodePort > 0 && route.healthCheckNodePort === port;
}

/** Left to the host; load balancers' health checks are let in whatever the policy of INPUT. */
function untouched(cluster: Cluster, packet: Packet): string {
  const arrives = cluster.local.has(packet.destination);
  const accepted = arrives && cluster.routes.some((route) => isHealthCheck(route, packet));
  return outcomeText({ accepted });
}

function rejected({ destination }: Packet): string {
  return `REJECT ${destination.includes(':') ? 'icmp6' : 'icmp'}-port-unreachable`;
}

function only(fate: string): Expectation {
  return { outcomes: new Set([fate]), sticky: false };
}

const parsed = new Map<string, readonly number[]>();

/** Whether an address is in a CIDR, or equals an address under any mask (`0.0.0.5/0.0.0.15`). */
export function network(value: string): (address: string) => boolean {
  const [base = '', mask = ''] = value.split('/');
  const kind = base.includes(':') ? ipaddr.IPv6 : ipaddr.IPv4;
  const isLength = /^\d+$/.test(mask);
  const kept = bytes(isLength ? `${kind.subnetMaskFromPrefixLength(Number(mask))}` : mask);
  const wanted = bytes(base).map((byte, index) => byte & (kept[index] ?? 0));
  return (address) => {
    const found = bytes(address);
    return wanted.every((byte, index) => ((found[index] ?? 0) & (kept[index] ?? 0)) === byte);
  };
}

function bytes(address: string): readonly number[] {
  return getOrCreate(parsed, address, () => ipaddr.parse(address).toByteArray());
}
