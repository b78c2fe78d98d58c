/**
 * One TrafficPlan to what the kernel must hold for it. What a packet to a VIP does on its way in (from
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
import type { PortRange } from '../api/ports.ts';
import type { Endpoint } from '../endpoints/select.ts';
import type { SetEntry } from '../netlink/ipset/ipset.ts';
import type { IpvsServiceKey } from '../netlink/ipvs/ipvs.ts';
import type { Match } from '../services/route.ts';
import type {
  EndpointSet,
  NodePortPlan,
  Serving,
  TrafficPlan,
  Treatment,
} from '../traffic/plan.ts';
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

/** Who a mark belongs to, as `portwide ipvs marks` prints it. */
export function markOwner({ match, name }: TrafficPlan, set: EndpointSet): string {
  return match.kind === 'port' ? `${name} ${match.protocol} ${set}` : `${name} ${set}`;
}

/** The owners of the marks that a plan needs. */
export function markOwners(plan: TrafficPlan): string[] {
  return markedSets(plan).map((set) => markOwner(plan, set));
}

/** All-ports plans have a mark for each endpoint set that some client gets. */
function markedSets(plan: TrafficPlan): EndpointSet[] {
  if (plan.match.kind === 'port') return isServedApart(plan) ? ['cluster'] : [];
  const sets = plan.vips.flatMap(({ treatment: { inside, others } }) =>
    inside === undefined ? [others.set] : [inside.set, others.set],
  );
  return [...new Set(sets)];
}

/** Whether clients inside reach other endpoints than those outside. */
function isServedApart({ external }: TrafficPlan): boolean {
  const inside = external?.inside?.endpoints ?? [];
  return inside.length > 0 && !isDeepStrictEqual(inside, external?.others.endpoints);
}

/** Compiles one plan; equal plans and options give equal items. */
export function compilePlan(plan: TrafficPlan, options: CompileOptions): Item[] {
  const items: Item[] = [];
  const add: Add = (set, entry) => items.push({ kind: 'entry', set, entry });
  for (const { vip } of plan.vips) {
    if (options.nodeAddresses.includes(vip)) continue;
    add('KUBE-IPVS-IPS', { ip: vip });
    items.push({ kind: 'address', address: vip });
  }
  items.push(...healthCheckItems(plan));
  if (plan.match.kind === 'port') compileListed(plan, plan.match, options, items, add);
  else compileAllPorts(plan, plan.match, options, items, add);
  return items;
}

/** What lets health checks of load balancers reach the node, on its own addresses and on the VIPs. */
export function healthCheckItems({ healthCheckNodePort: port, vips }: TrafficPlan): Item[] {
  if (port === 0) return [];
  return [
    { kind: 'entry', set: 'KUBE-HEALTH-CHECK-NODE-PORT', entry: { port } },
    ...vips
      .filter(({ kind }) => kind === 'loadbalancer IP')
      .map(
        ({ vip: ip }): Item => ({
          kind: 'entry',
          set: 'KUBE-HEALTH-CHECK-VIP',
          entry: { ip, protocol: 'TCP', port },
        }),
      ),
  ];
}

type Add = (set: SetName, entry: SetEntry) => void;

interface ListedPort {
  readonly ip: string;
  readonly protocol: Protocol;
  readonly port: number;
}

function compileListed(
  plan: TrafficPlan,
  { protocol, port }: Extract<Match, { kind: 'port' }>,
  options: CompileOptions,
  items: Item[],
  add: Add,
): void {
  const { family, affinitySeconds, endpoints, nodePort } = plan;
  const owner = markOwner(plan, 'cluster');
  const insideMark = isServedApart(plan) ? options.markOf(owner) : undefined;
  const serve = ({ ip, port: number }: ListedPort, { others }: Treatment) => {
    const service = { kind: 'address', family, protocol, address: ip, port: number } as const;
    pushService(items, affinitySeconds, service, others.endpoints, options);
  };
  const addMarkOrDrop = (at: ListedPort, { inside, verdict }: Treatment) => {
    const mark = inside && insideMark;
    if (mark !== undefined) {
      add('KUBE-MARKS', { ip: at.ip, mark, comment: owner });
      add('KUBE-INSIDE-PORTS', { ...at, skbMark: mark });
    }
    if (verdict === 'drop') add(mark === undefined ? 'KUBE-DROP' : 'KUBE-DROP-OUTSIDE', at);
  };

  for (const { vip: ip, kind, treatment } of plan.vips) {
    if (kind !== 'cluster IP') continue;
    const at = { ip, protocol, port };
    serve(at, treatment);
    add('KUBE-CLUSTER-IP', at);
    addMarkOrDrop(at, treatment);
  }
  if (insideMark !== undefined) {
    const service = { kind: 'mark', family, mark: insideMark } as const;
    // To a persistent service of a mark IPVS keeps the packet's port, whatever the destination's
    // (ip_vs_sched_persist): the right port is worth more than the same endpoint.
    const isMapped = endpoints.cluster.some((endpoint) => (endpoint.port ?? port) !== port);
    pushService(items, isMapped ? 0 : affinitySeconds, service, endpoints.cluster, options);
  }
  for (const { vip: ip, kind, treatment, sources } of plan.vips) {
    if (kind === 'cluster IP') continue;
    const at = { ip, protocol, port };
    const isLocal = treatment.inside !== undefined;
    serve(at, treatment);
    addMarkOrDrop(at, treatment);
    if (kind === 'external IP') add(isLocal ? 'KUBE-EXTERNAL-IP-LOCAL' : 'KUBE-EXTERNAL-IP', at);
    else {
      add('KUBE-LOAD-BALANCER', at);
      if (isLocal) add('KUBE-LOAD-BALANCER-LOCAL', at);
      if (sources !== undefined) add('KUBE-LOAD-BALANCER-FW', at);
    }
  }
  for (const [ip, source] of allowedSources(plan)) {
    // A single address is in kube-proxy's other set.
    const end = source.includes('/') ? 'CIDR' : 'IP';
    add(`KUBE-LOAD-BALANCER-SOURCE-${end}`, { ip, protocol, port, ip2: source });
  }
  if (nodePort !== undefined) {
    const sets = nodePortSets(nodePort);
    for (const set of sets) if (protocol !== 'SCTP') add(set, { port: nodePort.port });
    for (const ip of options.nodePortAddresses) {
      const at = { ip, protocol, port: nodePort.port };
      if (options.isVip(ip, protocol, nodePort.port)) continue;
      serve(at, nodePort.treatment);
      addMarkOrDrop(at, nodePort.treatment);
      for (const set of sets) if (protocol === 'SCTP') add(set, at);
    }
  }
  for (const { address, port: target = port } of [...endpoints.cluster, ...endpoints.local]) {
    add('KUBE-LOOP-BACK', { ip: address, protocol, port: target, ip2: address });
  }
}

function nodePortSets({ protocol, treatment }: NodePortPlan): SetName[] {
  const end = protocol === 'SCTP' ? 'SCTP-HASH' : protocol;
  const all: SetName = `KUBE-NODE-PORT-${end}`;
  return treatment.inside === undefined ? [all] : [all, `KUBE-NODE-PORT-LOCAL-${end}`];
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

function compileAllPorts(
  plan: TrafficPlan,
  match: Exclude<Match, { kind: 'port' }>,
  options: CompileOptions,
  items: Item[],
  add: Add,
): void {
  const { family, affinitySeconds, endpoints, vips } = plan;
  const names = ALL_PORTS_SETS[match.kind];
  const ports = match.kind === 'all' ? [{}] : match.ranges.map(rangeEntry);
  const addMarks = (set: SetName, ip: string, skbMark: number) => {
    for (const each of ports) add(set, { ip, ...each, skbMark });
  };
  for (const { vip } of vips) add('KUBE-ALL-PORTS-IPS', { ip: vip });
  const marks = new Map<EndpointSet, number>();
  for (const set of markedSets(plan)) {
    const mark = options.markOf(markOwner(plan, set));
    if (mark !== undefined) marks.set(set, mark);
  }
  if (marks.size < markedSets(plan).length) {
    for (const { vip } of vips) addMarks(names.others, vip, options.verdicts.reject);
    return;
  }
  for (const [set, mark] of marks) {
    pushService(items, affinitySeconds, { kind: 'mark', family, mark }, endpoints[set], options);
  }
  const { verdicts } = options;
  const markOf = (set: EndpointSet) => marks.get(set) ?? verdicts.reject;

  for (const { vip: ip, kind, treatment, sources } of vips) {
    const { inside, others, verdict = 'reject' } = treatment;
    const markFor = ({ set, endpoints: { length } }: Serving) =>
      length > 0 ? markOf(set) : verdicts[verdict];
    addMarks(names.others, ip, markFor(others));
    const owned = [others, ...(inside === undefined ? [] : [inside])].map(({ set }) => {
      const mark = markOf(set);
      add('KUBE-MARKS', { ip, mark, comment: markOwner(plan, set) });
      return { ip, mark };
    });
    if (inside !== undefined) {
      addMarks(names.inside, ip, markFor(inside.endpoints.length > 0 ? inside : others));
    } else {
      const set = kind === 'cluster IP' ? 'KUBE-CLUSTER-IP-MARK' : 'KUBE-LOAD-BALANCER-MARK';
      for (const each of owned) add(set, each);
    }
    if (sources !== undefined) for (const each of owned) add(names.restricted, each);
  }
  for (const [vip, source] of allowedSources(plan)) {
    const ip = match.kind === 'all' ? asNet(vip) : vip;
    for (const each of ports) add(names.sources, { ip, ...each, ip2: asNet(source) });
  }
  for (const { address } of [...endpoints.cluster, ...endpoints.local]) {
    add('KUBE-ALL-PORTS-LOOP-BACK', { ip: asNet(address), ip2: asNet(address) });
  }
}

function pushService(
  items: Item[],
  persistenceSeconds: number,
  service: IpvsServiceKey,
  endpoints: readonly Endpoint[],
  { scheduler }: CompileOptions,
): void {
  const config = { scheduler, schedulerFlags: schedulerFlags(scheduler), persistenceSeconds };
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

/** Pairs of a VIP and who may use it: CIDRs and addresses. */
function allowedSources({ vips }: TrafficPlan): [vip: string, source: string][] {
  return vips.flatMap(({ vip, sources }) =>
    [...(sources?.ranges ?? []), ...(sources?.ownVips ?? [])].map((source): [string, string] => [
      vip,
      source,
    ]),
  );
}

function rangeEntry({ protocol, from, to }: PortRange): SetEntry {
  return { protocol, port: from, ...(from === to ? {} : { portTo: to }) };
}

/** `hash:net` types list every entry as a CIDR. */
function asNet(address: string): string {
  if (address.includes('/')) return address;
  return `${address}/${address.includes(':') ? 128 : 32}`;
}
