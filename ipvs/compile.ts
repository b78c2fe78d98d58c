/**
 * One Route to what the kernel must hold for it. What a packet to a VIP does on its way in (from
 * a process of the node: the same, in OUTPUT instead of PREROUTING):
 *
 *   mangle PREROUTING ─ all-ports: the Service's mark, out of an ipset ─ drops by policy
 *   nat PREROUTING ──── is it to be masqueraded? noted in the connection's mark
 *   routing ─────────── the VIP is on kube-ipvs0, so the packet is for this host
 *   filter INPUT ────── what no Service has is rejected
 *   IPVS ────────────── service by mark, or by protocol, VIP and port ─► endpoint
 *   nat POSTROUTING ─── masquerade
 *
 * All-ports Routes become fwmark services whose destinations have port 0, which keeps the packet's
 * (KEP-2610, open question 1c). So do the clients inside the cluster of a Route whose external
 * traffic policy is Local: pods and the node itself may use every endpoint, and IPVS cannot tell
 * clients apart, but marks can.
 */
import { isDeepStrictEqual } from 'node:util';
import type { IpFamily, Protocol } from '../api/objects.ts';
import type { Endpoint } from '../endpoints/select.ts';
import type { SetEntry } from '../netlink/ipset/ipset.ts';
import type { IpvsServiceKey } from '../netlink/ipvs/ipvs.ts';
import { type Route, vipsOf } from '../services/route.ts';
import { rangesCoverNode } from '../services/served-ports.ts';
import type { Item } from './items.ts';
import type { VerdictMarks } from './marks.ts';
import type { SetName } from './sets.ts';

export interface CompileOptions {
  readonly family: IpFamily;
  /** `--ipvs-scheduler`. */
  readonly scheduler: string;
  /** All of this node's own addresses. */
  readonly nodeAddresses: readonly string[];
  /** Those on which node ports are served. */
  readonly nodePortAddresses: readonly string[];
  readonly verdicts: VerdictMarks;
  /** Whether a listed Route has this port of an address that is the node's own: node ports yield. */
  isVip(ip: string, protocol: Protocol, port: number): boolean;
  /** The mark of an owner, see `markOwner`; undefined when there is none left. */
  markOf(owner: string): number | undefined;
}

/** Which endpoints a mark leads to. */
type Side = 'cluster' | 'local';

/** Who a mark belongs to, as `portwide ipvs marks` prints it. */
export function markOwner(route: Route, side: Side): string {
  const { match, name } = route;
  return match.kind === 'port' ? `${name} ${match.protocol} ${side}` : `${name} ${side}`;
}

/** The owners of the marks that a Route needs. */
export function markOwners(route: Route): string[] {
  return sidesOf(route).map((side) => markOwner(route, side));
}

function sidesOf(route: Route): Side[] {
  const isExternal = route.loadBalancerIPs.length + route.externalIPs.length > 0;
  if (route.match.kind === 'port') return needsInside(route) ? ['cluster'] : [];
  const sides = new Set<Side>();
  if (route.clusterIP !== undefined) sides.add(route.internalLocal ? 'local' : 'cluster');
  if (isExternal) sides.add('cluster');
  if (isExternal && route.externalLocal) sides.add('local');
  return [...sides];
}

/** Clients inside reach other endpoints than those outside (externalTrafficPolicy Local). */
function needsInside(route: Route): boolean {
  const isExternal =
    route.loadBalancerIPs.length + route.externalIPs.length > 0 || route.nodePort > 0;
  if (!isExternal || !route.externalLocal || route.clusterEndpoints.length === 0) return false;
  return !isDeepStrictEqual(route.clusterEndpoints, route.localEndpoints);
}

/** Compiles one Route; equal Routes and options give equal items. */
export function compileRoute(route: Route, options: CompileOptions): Item[] {
  const items: Item[] = [];
  const add: Add = (set, entry) => items.push({ kind: 'entry', set, entry });
  for (const vip of vipsOf(route)) {
    if (options.nodeAddresses.includes(vip)) continue;
    add('KUBE-IPVS-IPS', { ip: vip });
    items.push({ kind: 'address', address: vip });
  }
  items.push(...healthCheckItems(route));
  if (route.match.kind === 'port') compileListed(route, route.match, options, items, add);
  else compileAllPorts(route, options, items, add);
  return items;
}

/** What lets health checks of load balancers reach the node, on its own addresses and on the VIPs. */
export function healthCheckItems(route: Route): Item[] {
  const port = route.healthCheckNodePort;
  if (port === 0) return [];
  return [
    { kind: 'entry', set: 'KUBE-HEALTH-CHECK-NODE-PORT', entry: { port } },
    ...route.loadBalancerIPs.map(
      (ip): Item => ({
        kind: 'entry',
        set: 'KUBE-HEALTH-CHECK-VIP',
        entry: { ip, protocol: 'TCP', port },
      }),
    ),
  ];
}

type Add = (set: SetName, entry: SetEntry) => void;

function compileListed(
  route: Route,
  { protocol, port }: { readonly protocol: Protocol; readonly port: number },
  options: CompileOptions,
  items: Item[],
  add: Add,
): void {
  const { clusterEndpoints, localEndpoints, hasEndpointsAnywhere } = route;
  const serve = (address: string, number: number, endpoints: readonly Endpoint[]) => {
    const service = {
      kind: 'address',
      family: route.family,
      protocol,
      address,
      port: number,
    } as const;
    pushService(items, route, service, endpoints, options);
  };

  if (route.clusterIP !== undefined) {
    const endpoints = route.internalLocal ? localEndpoints : clusterEndpoints;
    const at = { ip: route.clusterIP, protocol, port };
    serve(route.clusterIP, port, endpoints);
    add('KUBE-CLUSTER-IP', at);
    if (endpoints.length === 0 && hasEndpointsAnywhere) add('KUBE-DROP', at);
  }

  const outside = route.externalLocal ? localEndpoints : clusterEndpoints;
  const insideMark = needsInside(route) ? options.markOf(markOwner(route, 'cluster')) : undefined;
  const serveOutside = (at: { ip: string; protocol: Protocol; port: number }) => {
    serve(at.ip, at.port, outside);
    if (insideMark !== undefined) {
      add('KUBE-MARKS', { ip: at.ip, mark: insideMark, comment: markOwner(route, 'cluster') });
      add('KUBE-INSIDE-PORTS', { ...at, skbMark: insideMark });
    }
    if (outside.length === 0 && hasEndpointsAnywhere) {
      add(insideMark === undefined ? 'KUBE-DROP' : 'KUBE-DROP-OUTSIDE', at);
    }
  };
  if (insideMark !== undefined) {
    const service = { kind: 'mark', family: route.family, mark: insideMark } as const;
    // To a persistent service of a mark IPVS keeps the packet's port, whatever the destination's
    // (ip_vs_sched_persist): the right port is worth more than the same endpoint.
    const isMapped = clusterEndpoints.some((endpoint) => (endpoint.port ?? port) !== port);
    const affinitySeconds = isMapped ? 0 : route.affinitySeconds;
    pushService(items, { affinitySeconds }, service, clusterEndpoints, options);
  }
  for (const ip of route.externalIPs) {
    serveOutside({ ip, protocol, port });
    add(route.externalLocal ? 'KUBE-EXTERNAL-IP-LOCAL' : 'KUBE-EXTERNAL-IP', {
      ip,
      protocol,
      port,
    });
  }
  for (const ip of route.loadBalancerIPs) {
    const at = { ip, protocol, port };
    serveOutside(at);
    add('KUBE-LOAD-BALANCER', at);
    if (route.externalLocal) add('KUBE-LOAD-BALANCER-LOCAL', at);
    if (isFirewalled(route)) add('KUBE-LOAD-BALANCER-FW', at);
  }
  pushPortSources(route, { protocol, port }, options, add);
  if (route.nodePort > 0) {
    for (const set of nodePortSets(route, protocol)) {
      if (protocol !== 'SCTP') add(set, { port: route.nodePort });
    }
    for (const ip of options.nodePortAddresses) {
      const at = { ip, protocol, port: route.nodePort };
      if (options.isVip(ip, protocol, route.nodePort)) continue;
      serveOutside(at);
      if (protocol !== 'SCTP') continue;
      for (const set of nodePortSets(route, protocol)) add(set, at);
    }
  }
  for (const { address, port: target = port } of allEndpoints(route)) {
    add('KUBE-LOOP-BACK', { ip: address, protocol, port: target, ip2: address });
  }
}

function nodePortSets(route: Route, protocol: Protocol): SetName[] {
  const end = protocol === 'SCTP' ? 'SCTP-HASH' : protocol;
  const all: SetName = `KUBE-NODE-PORT-${end}`;
  return route.externalLocal ? [all, `KUBE-NODE-PORT-LOCAL-${end}`] : [all];
}

function compileAllPorts(route: Route, options: CompileOptions, items: Item[], add: Add): void {
  const { match } = route;
  const endpointsOf = (side: Side) =>
    side === 'local' ? route.localEndpoints : route.clusterEndpoints;
  const addMarks = (ip: string, skbMark: number, all: SetName, ranges: SetName) => {
    if (match.kind === 'all') add(all, { ip, skbMark });
    if (match.kind !== 'ranges') return;
    for (const { protocol, from, to } of match.ranges) {
      add(ranges, { ip, protocol, ...portsOf(from, to), skbMark });
    }
  };
  for (const ip of vipsOf(route)) add('KUBE-ALL-PORTS-IPS', { ip });
  const marks = new Map<Side, number>();
  for (const side of sidesOf(route)) {
    const mark = options.markOf(markOwner(route, side));
    if (mark !== undefined) marks.set(side, mark);
  }
  if (marks.size < sidesOf(route).length) {
    for (const ip of vipsOf(route)) {
      addMarks(ip, options.verdicts.reject, 'KUBE-ALL-PORTS', 'KUBE-PORT-RANGES');
    }
    return;
  }
  for (const [side, mark] of marks) {
    const service = { kind: 'mark', family: route.family, mark } as const;
    pushService(items, route, service, endpointsOf(side), options);
  }
  const markOf = (side: Side) => marks.get(side) ?? options.verdicts.reject;
  /** What packets that the policy leads to this side are marked with. */
  const verdictMark = (side: Side) => {
    if (endpointsOf(side).length > 0) return markOf(side);
    return route.hasEndpointsAnywhere ? options.verdicts.drop : options.verdicts.reject;
  };
  const own = (ip: string, side: Side) => {
    const mark = markOf(side);
    add('KUBE-MARKS', { ip, mark, comment: markOwner(route, side) });
    return { ip, mark };
  };

  if (route.clusterIP !== undefined) {
    const ip = route.clusterIP;
    const side = route.internalLocal ? 'local' : 'cluster';
    addMarks(ip, verdictMark(side), 'KUBE-ALL-PORTS', 'KUBE-PORT-RANGES');
    add('KUBE-CLUSTER-IP-MARK', own(ip, side));
  }
  const fw = match.kind === 'all' ? 'KUBE-ALL-PORTS-FW' : 'KUBE-PORT-RANGES-FW';
  for (const ip of route.loadBalancerIPs) {
    addMarks(
      ip,
      verdictMark(route.externalLocal ? 'local' : 'cluster'),
      'KUBE-ALL-PORTS',
      'KUBE-PORT-RANGES',
    );
    const sides: Side[] = route.externalLocal ? ['local', 'cluster'] : ['cluster'];
    const owned = sides.map((side) => own(ip, side));
    if (route.externalLocal) {
      const isServed = route.clusterEndpoints.length > 0;
      const mark = verdictMark(isServed ? 'cluster' : 'local');
      addMarks(ip, mark, 'KUBE-INSIDE-ALL-PORTS', 'KUBE-INSIDE-PORT-RANGES');
    } else {
      for (const each of owned) add('KUBE-LOAD-BALANCER-MARK', each);
    }
    if (isFirewalled(route)) for (const each of owned) add(fw, each);
  }
  for (const [ip, source] of allowedSources(route, options)) {
    const ip2 = asNet(source);
    if (match.kind === 'all') add('KUBE-ALL-PORTS-SOURCE', { ip: asNet(ip), ip2 });
    if (match.kind !== 'ranges') continue;
    for (const { protocol, from, to } of match.ranges) {
      add('KUBE-PORT-RANGES-SOURCE', { ip, protocol, ...portsOf(from, to), ip2 });
    }
  }
  for (const { address } of allEndpoints(route)) {
    add('KUBE-ALL-PORTS-LOOP-BACK', { ip: asNet(address), ip2: asNet(address) });
  }
}

function pushService(
  items: Item[],
  { affinitySeconds }: Pick<Route, 'affinitySeconds'>,
  service: IpvsServiceKey,
  endpoints: readonly Endpoint[],
  { scheduler }: CompileOptions,
): void {
  const config = {
    scheduler,
    schedulerFlags: schedulerFlags(scheduler),
    persistenceSeconds: affinitySeconds,
  };
  items.push({ kind: 'service', service, config });
  for (const { address, port = 0 } of endpoints) {
    items.push({ kind: 'destination', service, destination: { address, port } });
  }
}

/**
 * The hashing schedulers must look at the port (IP_VS_SVC_F_SCHED2), or all connections of a client
 * go to one endpoint, and pass over a destination of weight 0 (IP_VS_SVC_F_SCHED1), or clients of
 * one that drains are refused.
 */
function schedulerFlags(scheduler: string): number {
  return scheduler === 'mh' || scheduler === 'sh' ? 0x08 | 0x10 : 0;
}

/** Source ranges bind those whom some endpoint would serve; without one all are rejected alike. */
function isFirewalled(route: Route): boolean {
  const reachable = route.clusterEndpoints.length + route.localEndpoints.length > 0;
  return route.sourceRanges !== undefined && route.loadBalancerIPs.length > 0 && reachable;
}

/** Pairs of a load balancer VIP and who may use it. */
function allowedSources(route: Route, options: CompileOptions): [vip: string, source: string][] {
  if (!isFirewalled(route)) return [];
  const ranges = route.sourceRanges ?? [];
  // The node, calling a VIP that it holds, has the VIP itself as its source.
  const own = rangesCoverNode(ranges, options.nodeAddresses) ? route.loadBalancerIPs : [];
  return route.loadBalancerIPs.flatMap((vip) =>
    [...ranges, ...own].map((source): [string, string] => [vip, source]),
  );
}

function pushPortSources(
  route: Route,
  { protocol, port }: { protocol: Protocol; port: number },
  options: CompileOptions,
  add: Add,
): void {
  for (const [ip, source] of allowedSources(route, options)) {
    // A single address is in kube-proxy's other set.
    if (source.includes('/')) {
      add('KUBE-LOAD-BALANCER-SOURCE-CIDR', { ip, protocol, port, ip2: source });
    } else {
      add('KUBE-LOAD-BALANCER-SOURCE-IP', { ip, protocol, port, ip2: source });
    }
  }
}

function portsOf(from: number, to: number): { port: number; portTo?: number } {
  return from === to ? { port: from } : { port: from, portTo: to };
}

/** `hash:net` types list every entry as a CIDR. */
function asNet(address: string): string {
  if (address.includes('/')) return address;
  return `${address}/${address.includes(':') ? 128 : 32}`;
}

function allEndpoints(route: Route): readonly Endpoint[] {
  return [...route.clusterEndpoints, ...route.localEndpoints];
}
