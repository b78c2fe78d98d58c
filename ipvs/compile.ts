/**
 * Compiles one TrafficPlan to the items that the kernel must hold. An incoming packet to a VIP
 * passes these hooks. A packet from a process on the node passes mangle OUTPUT, nat OUTPUT, IPVS,
 * filter OUTPUT and nat POSTROUTING instead.
 *
 *   mangle PREROUTING ─ all-ports: sets the Service's mark, from an ipset ─ drops by policy
 *   nat PREROUTING ──── decides on masquerade, recorded in the connection mark
 *   routing ─────────── the VIP is bound to kube-ipvs0, so the packet is for this host
 *   filter INPUT ────── rejects packets that belong to no Service
 *   IPVS ────────────── service by mark, or by protocol, VIP and port ─► endpoint
 *   nat POSTROUTING ─── masquerade
 *
 * All-ports Routes become fwmark services whose destinations have port 0, which keeps the packet's
 * port (KEP-2610, open question 1c). A Route with external traffic policy Local may get a fwmark
 * service too, for clients inside the cluster: pods and the node itself may use every endpoint.
 * IPVS cannot distinguish clients, but marks can.
 */
import { isDeepStrictEqual } from 'node:util';
import type { IpFamily, Protocol } from '../api/objects.ts';
import type { PortRange } from '../api/ports.ts';
import type { Endpoint } from '../endpoints/select.ts';
import type { IpsetEntry } from '../netlink/ipset/ipset.ts';
import type { IpvsServiceKey } from '../netlink/ipvs/ipvs.ts';
import type { RouteMatch } from '../services/route.ts';
import type {
  Dispatch,
  EndpointPool,
  EndpointSet,
  NodePortPlan,
  TrafficPlan,
} from '../traffic/plan.ts';
import type { IpvsItem } from './items.ts';
import type { VerdictMarks } from './marks.ts';
import type { SetName } from './sets.ts';

export interface IpvsCompileOptions {
  readonly family: IpFamily;
  /** `--ipvs-scheduler`. */
  readonly scheduler: string;
  /** All addresses of this node. */
  readonly nodeAddresses: readonly string[];
  /** Node addresses that serve node ports. */
  readonly nodePortAddresses: readonly string[];
  readonly verdicts: VerdictMarks;
  /**
   * Whether a Route lists this port on a VIP that is a node address. Such a VIP takes precedence
   * over the node port.
   */
  isVipPort(ip: string, protocol: Protocol, port: number): boolean;
  /** The owner's mark, see `markOwner`; undefined if the mark range is exhausted. */
  markOf(owner: string): number | undefined;
}

/** Owner of a mark, as `portwide ipvs marks` prints it. */
function markOwner({ match, name }: TrafficPlan, set: EndpointSet): string {
  return match.kind === 'port' ? `${name} ${match.protocol} ${set}` : `${name} ${set}`;
}

/** Owners of all marks that a plan needs. */
export function markOwners(plan: TrafficPlan): string[] {
  return markedSets(plan).map((set) => markOwner(plan, set));
}

/** Endpoint sets that need a mark. In an all-ports plan: each set that serves a client. */
function markedSets(plan: TrafficPlan): EndpointSet[] {
  if (plan.match.kind === 'port') return hasDistinctInsideEndpoints(plan) ? ['cluster'] : [];
  const sets = plan.vips.flatMap(({ dispatch: { podsAndNode, others } }) =>
    podsAndNode === undefined ? [others.set] : [podsAndNode.set, others.set],
  );
  return [...new Set(sets)];
}

/** Whether clients inside the cluster use other endpoints than external clients. */
function hasDistinctInsideEndpoints({ external }: TrafficPlan): boolean {
  const inside = external?.podsAndNode?.endpoints ?? [];
  return inside.length > 0 && !isDeepStrictEqual(inside, external?.others.endpoints);
}

/** Compiles one plan. Equal plans and options give equal items. */
export function compileIpvsItems(plan: TrafficPlan, options: IpvsCompileOptions): IpvsItem[] {
  const { match, vips } = plan;
  const bound = vips.filter(({ vip }) => !options.nodeAddresses.includes(vip));
  return [
    ...bound.flatMap(({ vip }): IpvsItem[] => [
      entry('KUBE-IPVS-IPS', { ip: vip }),
      { kind: 'address', address: vip },
    ]),
    ...healthCheckItems(plan),
    ...(match.kind === 'port'
      ? listedItems(plan, match, options)
      : allPortsItems(plan, match, options)),
  ];
}

/**
 * Entries that let load balancer health checks reach the node, on its own addresses and on the
 * VIPs.
 */
export function healthCheckItems({ healthCheckNodePort: port, vips }: TrafficPlan): IpvsItem[] {
  if (port === 0) return [];
  const balanced = vips.filter(({ kind }) => kind === 'loadbalancer IP');
  return [
    entry('KUBE-HEALTH-CHECK-NODE-PORT', { port }),
    ...balanced.map(({ vip: ip }) => entry('KUBE-HEALTH-CHECK-VIP', { ip, protocol: 'TCP', port })),
  ];
}

function entry(set: SetName, fields: IpsetEntry): IpvsItem {
  return { kind: 'entry', set, entry: fields };
}

type ListedPort = Required<Pick<IpsetEntry, 'ip' | 'port'>> & { readonly protocol: Protocol };

function* listedItems(
  plan: TrafficPlan,
  { protocol, port }: Extract<RouteMatch, { kind: 'port' }>,
  options: IpvsCompileOptions,
): Iterable<IpvsItem> {
  const { family, affinitySeconds, endpoints, nodePort } = plan;
  const owner = markOwner(plan, 'cluster');
  const insideMark = hasDistinctInsideEndpoints(plan) ? options.markOf(owner) : undefined;
  const serve = (at: ListedPort, { others }: Dispatch) => {
    const key = { family, protocol, address: at.ip, port: at.port };
    return serviceItems({ kind: 'address', ...key }, affinitySeconds, others.endpoints, options);
  };
  function* markOrDrop(
    at: ListedPort,
    { podsAndNode, untranslatedVerdict }: Dispatch,
  ): Iterable<IpvsItem> {
    const skbMark = podsAndNode && insideMark;
    if (skbMark !== undefined) {
      yield entry('KUBE-MARKS', { ip: at.ip, mark: skbMark, comment: owner });
      yield entry('KUBE-INSIDE-PORTS', { ...at, skbMark });
    }
    if (untranslatedVerdict !== 'drop') return;
    yield entry(skbMark === undefined ? 'KUBE-DROP' : 'KUBE-DROP-OUTSIDE', at);
  }

  for (const { vip: ip, kind, dispatch } of plan.vips) {
    if (kind !== 'cluster IP') continue;
    const at = { ip, protocol, port };
    yield* serve(at, dispatch);
    yield entry('KUBE-CLUSTER-IP', at);
    yield* markOrDrop(at, dispatch);
  }
  if (insideMark !== undefined) {
    // A persistent fwmark service keeps the packet's port, whatever the destination's port is
    // (ip_vs_sched_persist). If the ports differ, disable session affinity, so that packets reach
    // the correct port.
    const isMapped = endpoints.cluster.some((endpoint) => (endpoint.port ?? port) !== port);
    const service = { kind: 'mark', family, mark: insideMark } as const;
    yield* serviceItems(service, isMapped ? 0 : affinitySeconds, endpoints.cluster, options);
  }
  for (const { vip: ip, kind, dispatch, sources } of plan.vips) {
    if (kind === 'cluster IP') continue;
    const at = { ip, protocol, port };
    const isLocal = dispatch.podsAndNode !== undefined;
    yield* serve(at, dispatch);
    yield* markOrDrop(at, dispatch);
    if (kind === 'external IP') {
      yield entry(isLocal ? 'KUBE-EXTERNAL-IP-LOCAL' : 'KUBE-EXTERNAL-IP', at);
    } else {
      yield entry('KUBE-LOAD-BALANCER', at);
      if (isLocal) yield entry('KUBE-LOAD-BALANCER-LOCAL', at);
      if (sources !== undefined) yield entry('KUBE-LOAD-BALANCER-FW', at);
    }
  }
  for (const [ip, source] of allowedSources(plan)) {
    // kube-proxy has separate sets for single addresses and CIDRs.
    const end = source.includes('/') ? 'CIDR' : 'IP';
    yield entry(`KUBE-LOAD-BALANCER-SOURCE-${end}`, { ip, protocol, port, ip2: source });
  }
  if (nodePort !== undefined) {
    const sets = nodePortSets(nodePort);
    for (const set of sets) if (protocol !== 'SCTP') yield entry(set, { port: nodePort.port });
    for (const ip of options.nodePortAddresses) {
      const at = { ip, protocol, port: nodePort.port };
      if (options.isVipPort(ip, protocol, nodePort.port)) continue;
      yield* serve(at, nodePort.dispatch);
      yield* markOrDrop(at, nodePort.dispatch);
      for (const set of sets) if (protocol === 'SCTP') yield entry(set, at);
    }
  }
  for (const { address, port: target = port } of [...endpoints.cluster, ...endpoints.local]) {
    yield entry('KUBE-LOOP-BACK', { ip: address, protocol, port: target, ip2: address });
  }
}

function nodePortSets({ protocol, dispatch }: NodePortPlan): SetName[] {
  const end = protocol === 'SCTP' ? 'SCTP-HASH' : protocol;
  const all: SetName = `KUBE-NODE-PORT-${end}`;
  return dispatch.podsAndNode === undefined ? [all] : [all, `KUBE-NODE-PORT-LOCAL-${end}`];
}

const ALL_PORTS_SETS = {
  all: {
    others: 'KUBE-ALL-PORTS',
    inside: 'KUBE-INSIDE-ALL-PORTS',
    restricted: 'KUBE-ALL-PORTS-FW',
    sources: 'KUBE-ALL-PORTS-SOURCE',
  },
  ranges: {
    others: 'KUBE-PORT-RANGES',
    inside: 'KUBE-INSIDE-PORT-RANGES',
    restricted: 'KUBE-PORT-RANGES-FW',
    sources: 'KUBE-PORT-RANGES-SOURCE',
  },
} as const satisfies Readonly<Record<string, Readonly<Record<string, SetName>>>>;

function* allPortsItems(
  plan: TrafficPlan,
  match: Exclude<RouteMatch, { kind: 'port' }>,
  options: IpvsCompileOptions,
): Iterable<IpvsItem> {
  const { family, affinitySeconds, endpoints, vips } = plan;
  const { verdicts } = options;
  const names = ALL_PORTS_SETS[match.kind];
  const ports = match.kind === 'all' ? [{}] : match.ranges.map(rangeEntry);
  const marking = (set: SetName, ip: string, skbMark: number) =>
    ports.map((each) => entry(set, { ip, ...each, skbMark }));
  for (const { vip } of vips) yield entry('KUBE-ALL-PORTS-IPS', { ip: vip });
  const marks = new Map<EndpointSet, number>();
  for (const set of markedSets(plan)) {
    const mark = options.markOf(markOwner(plan, set));
    if (mark !== undefined) marks.set(set, mark);
  }
  if (marks.size < markedSets(plan).length) {
    for (const { vip } of vips) yield* marking(names.others, vip, verdicts.reject);
    return;
  }
  for (const [set, mark] of marks) {
    yield* serviceItems({ kind: 'mark', family, mark }, affinitySeconds, endpoints[set], options);
  }
  const markOf = (set: EndpointSet) => marks.get(set) ?? verdicts.reject;

  for (const { vip: ip, kind, dispatch, sources } of vips) {
    const { podsAndNode, others, untranslatedVerdict = 'reject' } = dispatch;
    const markFor = (serving: EndpointPool) =>
      serving.endpoints.length > 0 ? markOf(serving.set) : verdicts[untranslatedVerdict];
    yield* marking(names.others, ip, markFor(others));
    const owned = [others, ...(podsAndNode === undefined ? [] : [podsAndNode])].map(
      ({ set }) => set,
    );
    const onVip = owned.map((set) => ({ ip, mark: markOf(set) }));
    for (const set of owned) {
      yield entry('KUBE-MARKS', { ip, mark: markOf(set), comment: markOwner(plan, set) });
    }
    if (podsAndNode !== undefined) {
      yield* marking(
        names.inside,
        ip,
        markFor(podsAndNode.endpoints.length > 0 ? podsAndNode : others),
      );
    } else {
      const set = kind === 'cluster IP' ? 'KUBE-CLUSTER-IP-MARK' : 'KUBE-LOAD-BALANCER-MARK';
      for (const each of onVip) yield entry(set, each);
    }
    if (sources !== undefined) for (const each of onVip) yield entry(names.restricted, each);
  }
  for (const [vip, source] of allowedSources(plan)) {
    const ip = match.kind === 'all' ? asNet(vip) : vip;
    for (const each of ports) yield entry(names.sources, { ip, ...each, ip2: asNet(source) });
  }
  for (const { address } of [...endpoints.cluster, ...endpoints.local]) {
    yield entry('KUBE-ALL-PORTS-LOOP-BACK', { ip: asNet(address), ip2: asNet(address) });
  }
}

function serviceItems(
  service: IpvsServiceKey,
  persistenceSeconds: number,
  endpoints: readonly Endpoint[],
  { scheduler }: IpvsCompileOptions,
): IpvsItem[] {
  const config = { scheduler, schedulerFlags: schedulerFlags(scheduler), persistenceSeconds };
  const destinations = endpoints.map(
    ({ address, port = 0 }): IpvsItem => ({
      kind: 'destination',
      service,
      destination: { address, port },
    }),
  );
  return [{ kind: 'service', service, config }, ...destinations];
}

/**
 * Flags of the hashing schedulers. IP_VS_SVC_F_SCHED2 hashes the port too: otherwise all
 * connections of a client reach one endpoint. IP_VS_SVC_F_SCHED1 skips destinations of weight 0:
 * otherwise clients of a draining endpoint are refused.
 */
function schedulerFlags(scheduler: string): number {
  return scheduler === 'mh' || scheduler === 'sh' ? 0x08 | 0x10 : 0;
}

/** Pairs of a VIP and an allowed source, which is a CIDR or an address. */
function allowedSources({ vips }: TrafficPlan): [vip: string, source: string][] {
  return vips.flatMap(({ vip, sources }) =>
    [...(sources?.ranges ?? []), ...(sources?.ownVips ?? [])].map((source): [string, string] => [
      vip,
      source,
    ]),
  );
}

function rangeEntry({ protocol, from, to }: PortRange): IpsetEntry {
  return { protocol, port: from, ...(from === to ? {} : { portTo: to }) };
}

/** The address as a CIDR, because ipsets of `hash:net` types list every entry as a CIDR. */
function asNet(address: string): string {
  if (address.includes('/')) return address;
  return `${address}/${address.includes(':') ? 128 : 32}`;
}
