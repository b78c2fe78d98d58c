/**
 * The expected outcome of a packet, computed from Routes alone: the contract of the project as a
 * function, without plans, chains and rules. Tests compare it with TrafficPlans, and with the outcomes that tracers
 * find in the rules of the proxy modes.
 */
import ipaddr from 'ipaddr.js';
import { getOrCreate } from '../../api/collections.ts';
import type { Route } from '../../services/route.ts';

/** The first packet of a connection, before any rule. */
export interface Packet {
  readonly source: string;
  readonly destination: string;
  readonly protocol: 'tcp' | 'udp' | 'sctp' | 'icmp';
  /** Destination port; 0 with icmp. */
  readonly port: number;
  /** undefined if the source port does not matter. */
  readonly sourcePort?: number;
  /** undefined for packets that the node itself sends. */
  readonly inInterface: string | undefined;
  /** Affinity entries in the kernel; undefined if they are unknown, so that any outcome is possible. */
  readonly affinityEntries?: ReadonlySet<string>;
}

/** The outcome of a packet that was neither dropped nor rejected. */
export interface PacketOutcome {
  /** The new destination after DNAT. */
  readonly translated?: { readonly address: string; readonly port: number } | undefined;
  readonly masqueraded?: boolean;
  /** A rule of FORWARD or INPUT accepted it, so a DROP policy there has no effect. */
  readonly accepted?: boolean;
  /** It left POSTROUTING with the masquerade mark, and would be masqueraded again after encapsulation. */
  readonly markLeft?: boolean;
}

/**
 * The outcome as one line: `10.244.0.1 port 80, masqueraded, accepted`. For packets that are not forwarded the
 * line is `DROP` or `REJECT icmp-port-unreachable`.
 */
export function outcomeText(outcome: PacketOutcome): string {
  const { translated } = outcome;
  return [
    translated === undefined ? 'untouched' : `${translated.address} port ${translated.port}`,
    ...(outcome.masqueraded === true ? ['masqueraded'] : []),
    ...(outcome.accepted === true ? ['accepted'] : []),
    ...(outcome.markLeft === true ? ['mark left'] : []),
  ].join(', ');
}

/** The state of the cluster and node that outcomes depend on, for one IP family. */
export interface Cluster {
  readonly routes: readonly Route[];
  /** The node's own addresses. */
  readonly nodeAddresses: readonly string[];
  /** All local addresses: the node's own, and VIPs on a dummy interface. */
  readonly local: ReadonlySet<string>;
  /** Local addresses on which node ports are served. */
  readonly nodePortAddresses: ReadonlySet<string>;
  readonly masqueradeAll: boolean;
  /** Whether local pods can be detected. If not, `isPod` is always false. */
  readonly knowsPods: boolean;
  isPod(packet: Packet): boolean;
}

/** All possible outcomes of a packet, and whether session affinity applies. */
export interface Expectation {
  readonly outcomes: ReadonlySet<string>;
  readonly sticky: boolean;
}

/** The kind of address that a client uses, which decides on the traffic policy. */
type Access = 'cluster IP' | 'external IP' | 'load balancer IP' | 'node port';

/** The possible outcomes of a packet. The most specific Route of the VIP handles it: port, then range, then all ports. */
export function expectedOutcomes(cluster: Cluster, packet: Packet): Expectation {
  const { destination: vip, port } = packet;
  const matching = cluster.routes.filter((route) => accessTo(route, vip) !== undefined);
  const protocol = packet.protocol.toUpperCase();
  const exact = matching.find(
    ({ match }) => match.kind === 'port' && match.protocol === protocol && match.port === port,
  );
  // The node itself answers the health check node port of an all-ports VIP (contract, line 5).
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
  // All ports are 1 to 65535; port 0 is dropped.
  const hasPort = packet.protocol !== 'icmp';
  if (hasPort && packet.port === 0) return only('DROP');
  const outcomes = endpoints.map(({ address, port = packet.port }) => {
    // Hairpin: a pod must see the node as the source of its own connection, or it would answer itself directly.
    const masqueraded = masquerade || address === packet.source;
    const forwarded = packet.inInterface !== undefined;
    return outcomeText({
      translated: { address, port },
      masqueraded,
      accepted: forwarded && masqueraded,
    });
  });
  return { outcomes: new Set(outcomes), sticky: route.affinitySeconds > 0 };
}

/** The endpoints for this client by traffic policy, and whether it is masqueraded. */
function policy(cluster: Cluster, route: Route, access: Access, packet: Packet) {
  const { clusterEndpoints, localEndpoints } = route;
  const isPod = cluster.isPod(packet);
  if (access === 'cluster IP') {
    const endpoints = route.internalLocal ? localEndpoints : clusterEndpoints;
    return { endpoints, masquerade: cluster.masqueradeAll || (cluster.knowsPods && !isPod) };
  }
  if (!route.externalLocal) return { endpoints: clusterEndpoints, masquerade: true };
  // externalTrafficPolicy Local applies to external clients only, not to pods and the node.
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
  // When the node holds the VIP and connects to it, the source address may be the VIP.
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

/** The packet is not for a Service. Health checks of load balancers are accepted for any policy of INPUT. */
function untouched(cluster: Cluster, packet: Packet): string {
  const arrives = cluster.local.has(packet.destination);
  const accepted = arrives && cluster.routes.some((route) => isHealthCheck(route, packet));
  return outcomeText({ accepted });
}

function rejected({ destination }: Packet): string {
  return `REJECT ${destination.includes(':') ? 'icmp6' : 'icmp'}-port-unreachable`;
}

function only(outcome: string): Expectation {
  return { outcomes: new Set([outcome]), sticky: false };
}

const parsed = new Map<string, readonly number[]>();

/** Whether an address is in a CIDR, or equals an address under any mask (`0.0.0.5/0.0.0.15`). */
export function network(value: string): (address: string) => boolean {
  const [base = '', mask = ''] = value.split('/');
  const kind = base.includes(':') ? ipaddr.IPv6 : ipaddr.IPv4;
  const isLength = /^\d+$/.test(mask);
  const kept = bytes(isLength ? `${kind.subnetMaskFromPrefixLength(Number(mask))}` : mask);
  const expected = bytes(base).map((byte, index) => byte & (kept[index] ?? 0));
  return (address) => {
    const found = bytes(address);
    return expected.every((byte, index) => ((found[index] ?? 0) & (kept[index] ?? 0)) === byte);
  };
}

function bytes(address: string): readonly number[] {
  return getOrCreate(parsed, address, () => ipaddr.parse(address).toByteArray());
}
