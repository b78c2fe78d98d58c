/**
 * One Route to its rules. What a packet does in table nat (PREROUTING and OUTPUT):
 *
 *   KUBE-SERVICES ─ by VIP (and port) ─┬─ cluster IP ──────────────────────────► KUBE-SVC / KUBE-SVL
 *                                      └─ external IP, ─► KUBE-FW ─► KUBE-EXT ─► KUBE-SVC / KUBE-SVL
 *   KUBE-NODEPORTS ─ by node port ────────────────────────► KUBE-EXT
 *   KUBE-SVC, KUBE-SVL ─ affinity, then equal chances ─► KUBE-SEP ─ masquerade a hairpin ─► DNAT
 *
 * In table filter, packets that are still addressed to a VIP were translated by nobody: they are
 * rejected (no endpoint), dropped (none on this node, or the client is outside the source ranges),
 * or were never a Service's.
 *
 * All-ports Routes differ in two places only: the match on the VIP carries no port, and the DNAT
 * carries none, which keeps the packet's. Their VIPs are rejected in filter even while they have
 * endpoints: nothing that escaped translation may reach a listener of the host.
 */
import { familyOf, socketAddress } from '../api/addresses.ts';
import type { IpFamily, Protocol } from '../api/objects.ts';
import type { Endpoint } from '../endpoints/select.ts';
import type { Route } from '../services/route.ts';
import { rangesCoverNode } from '../services/served-ports.ts';
import {
  MARK_MASQ,
  RESET_OR_DROP,
  RESET_OR_REJECT,
  type ServiceChains,
  serviceChains,
} from './chains.ts';
import {
  addressType,
  type Condition,
  host,
  oneIn,
  type RuleSpec,
  recent,
  reject,
  ruleText,
} from './rule.ts';

/** How traffic of this node's pods is told from other traffic (kube-proxy's detectLocal). */
export type LocalDetector =
  | { readonly kind: 'cidr'; readonly cidr: string }
  | { readonly kind: 'interface'; readonly name: string };

export interface CompileOptions {
  readonly family: IpFamily;
  readonly masqueradeAll: boolean;
  readonly localDetector: LocalDetector | undefined;
  /** This node's own addresses of the family. */
  readonly nodeAddresses: readonly string[];
  /** Packets of TCP connections whose endpoint was deleted are reset where no endpoint is left. */
  readonly resetsTcp: boolean;
}

export type Verdict = 'REJECT' | 'DROP';

/** The target of a rule with this verdict. */
export function verdictTarget(
  verdict: Verdict,
  { family, resetsTcp }: Pick<CompileOptions, 'family' | 'resetsTcp'>,
): string {
  if (resetsTcp) return verdict === 'REJECT' ? RESET_OR_REJECT : RESET_OR_DROP;
  return verdict === 'REJECT' ? reject(family) : verdict;
}

/** What one VIP does on one match; the dispatch trees order these by precedence. */
export interface VipEntry {
  readonly vip: string;
  /** In order of precedence: the node's own port, one port, a range, everything, what ranges leave. */
  readonly kind: 'health' | 'port' | 'range' | 'all' | 'outside';
  /** undefined: every protocol and port. */
  readonly ports: { protocol: Protocol; from: number; to: number } | undefined;
  readonly comment: string;
  /** Chain in table nat that translates; undefined leaves the packet as it is. */
  readonly chain: string | undefined;
  /** The chain returns some packets untranslated. */
  readonly returns: boolean;
  /** Fate of packets that nobody translated. */
  readonly verdict: Verdict | undefined;
  /** Packets outside the source ranges are dropped. */
  readonly firewall: boolean;
}

/** What one node port does. */
export interface NodePortEntry {
  readonly protocol: Protocol;
  readonly port: number;
  readonly comment: string;
  readonly chain: string | undefined;
  readonly verdict: Verdict | undefined;
}

export interface CompiledRoute {
  /** Chains of table nat with their rules; `depth` orders them: deeper ones are jumped to by lower. */
  readonly chains: ReadonlyMap<
    string,
    { readonly rules: readonly string[]; readonly depth: number }
  >;
  readonly vips: readonly VipEntry[];
  readonly nodePort: NodePortEntry | undefined;
  /** Port on which table filter admits health checks of load balancers. */
  readonly healthCheck: { readonly port: number; readonly comment: string } | undefined;
}

/** Depth of the chains in the jump graph; a chain only jumps to deeper ones. */
export const DEPTH = {
  root: 0,
  branch: 1,
  leaf: 2,
  firewall: 3,
  external: 4,
  service: 5,
  endpoint: 6,
  mark: 7,
};

/** Compiles one Route; equal Routes and options give equal text. */
export function compileRoute(route: Route, options: CompileOptions): CompiledRoute {
  const names = serviceChains(
    route.name,
    route.match.kind === 'port' ? route.match.protocol : undefined,
  );
  const chains = new Map<string, { rules: string[]; depth: number }>();
  const rulesOf = (name: string, depth: number) => {
    const rules: RuleSpec[] = [];
    return {
      add: (rule: RuleSpec) => rules.push(rule),
      done: () => chains.set(name, { depth, rules: rules.map((rule) => ruleText(name, rule)) }),
    };
  };

  const isExternal =
    route.nodePort > 0 || route.externalIPs.length > 0 || route.loadBalancerIPs.length > 0;
  const hasCluster = route.clusterEndpoints.length > 0;
  const hasLocal = route.localEndpoints.length > 0;
  const internal = route.internalLocal ? hasLocal : hasCluster;
  const reachable = hasCluster || hasLocal;
  const usesClusterChain = hasCluster && (!route.internalLocal || isExternal);

  for (const endpoint of uniqueEndpoints(route)) {
    const chain = rulesOf(names.endpoint(endpoint.address, endpoint.port), DEPTH.endpoint);
    for (const rule of endpointRules(route, names, endpoint)) chain.add(rule);
    chain.done();
  }
  const spreads = [
    [names.cluster, usesClusterChain, route.clusterEndpoints, !route.internalLocal],
    [names.local, hasLocal, route.localEndpoints, route.internalLocal],
  ] as const;
  for (const [name, wanted, endpoints, servesClusterIP] of spreads) {
    if (!wanted) continue;
    const chain = rulesOf(name, DEPTH.service);
    const masquerade = servesClusterIP ? clusterIPMasquerade(route, options) : undefined;
    if (masquerade !== undefined) chain.add(masquerade);
    for (const rule of spreadRules(route, names, endpoints)) chain.add(rule);
    chain.done();
  }
  if (isExternal && reachable) {
    const chain = rulesOf(names.external, DEPTH.external);
    for (const rule of externalRules(route, names, options)) chain.add(rule);
    chain.done();
  }
  const firewalled =
    route.sourceRanges !== undefined && route.loadBalancerIPs.length > 0 && reachable;
  if (firewalled) {
    const chain = rulesOf(names.firewall, DEPTH.firewall);
    for (const rule of firewallRules(route, names, options)) chain.add(rule);
    chain.done();
  }

  const externalChain = isExternal && reachable ? names.external : undefined;
  const external = route.externalLocal ? hasLocal : hasCluster;
  const vips: VipEntry[] = [];
  if (route.clusterIP !== undefined) {
    const chain = internal ? (route.internalLocal ? names.local : names.cluster) : undefined;
    vips.push(...vipEntries(route, route.clusterIP, 'cluster IP', chain, verdict(route, internal)));
  }
  for (const vip of route.externalIPs) {
    vips.push(...vipEntries(route, vip, 'external IP', externalChain, verdict(route, external)));
  }
  for (const vip of route.loadBalancerIPs) {
    const chain = firewalled ? names.firewall : externalChain;
    vips.push(
      ...vipEntries(route, vip, 'loadbalancer IP', chain, verdict(route, external), firewalled),
    );
    if (route.match.kind !== 'port' && route.healthCheckNodePort > 0) {
      vips.push(healthCheckEntry(route, vip));
    }
  }
  return {
    chains,
    vips,
    nodePort: nodePortEntry(route, externalChain, verdict(route, external)),
    healthCheck:
      route.healthCheckNodePort > 0
        ? { port: route.healthCheckNodePort, comment: `${route.serviceKey} health check node port` }
        : undefined,
  };
}

function uniqueEndpoints(route: Route): Endpoint[] {
  const cluster = new Set(
    route.clusterEndpoints.map((each) => socketAddress(each.address, each.port)),
  );
  const extra = route.localEndpoints.filter(
    (each) => !cluster.has(socketAddress(each.address, each.port)),
  );
  return [...route.clusterEndpoints, ...extra];
}

function endpointRules(route: Route, names: ServiceChains, endpoint: Endpoint): RuleSpec[] {
  const name = names.endpoint(endpoint.address, endpoint.port);
  const protocol = route.match.kind === 'port' ? route.match.protocol : undefined;
  return [
    // A pod that is sent back to itself must see the node as source, or it would answer itself.
    { source: host(endpoint.address, route.family), target: MARK_MASQ },
    {
      protocol,
      matches: route.affinitySeconds > 0 ? [recent('--set', name, route.family)] : [],
      target: `DNAT --to-destination ${socketAddress(endpoint.address, endpoint.port)}`,
    },
  ];
}

/** Affinity first; it is keyed on the client alone, so with all ports it holds across ports. */
function spreadRules(
  route: Route,
  names: ServiceChains,
  endpoints: readonly Endpoint[],
): RuleSpec[] {
  const chains = endpoints.map((each) => names.endpoint(each.address, each.port));
  const sticky = chains.map((chain) => ({
    matches: [recent(`--rcheck --seconds ${route.affinitySeconds} --reap`, chain, route.family)],
    target: chain,
  }));
  const spread = chains.map((chain, index) => ({
    matches: index < chains.length - 1 ? [oneIn(chains.length - index)] : [],
    target: chain,
  }));
  return route.affinitySeconds > 0 ? [...sticky, ...spread] : spread;
}

/** Clients that are no pods of this cluster need masquerade, or replies would miss this node. */
function clusterIPMasquerade(route: Route, options: CompileOptions): RuleSpec | undefined {
  if (route.clusterIP === undefined) return undefined;
  const destination = host(route.clusterIP, route.family);
  const comment = `${route.name} cluster IP`;
  if (options.masqueradeAll) return { destination, comment, target: MARK_MASQ };
  if (options.localDetector === undefined) return undefined;
  return { ...fromPods(options.localDetector, true), destination, comment, target: MARK_MASQ };
}

function fromPods(
  detector: LocalDetector,
  not: boolean,
): { source?: Condition; inInterface?: Condition } {
  return detector.kind === 'cidr'
    ? { source: { value: detector.cidr, not } }
    : { inInterface: { value: detector.name, not } };
}

function externalRules(route: Route, names: ServiceChains, options: CompileOptions): RuleSpec[] {
  const comment = `${route.name} external destinations`;
  if (!route.externalLocal) {
    return [{ comment, target: MARK_MASQ }, { target: names.cluster }];
  }
  const rules: RuleSpec[] = [];
  if (route.clusterEndpoints.length > 0) {
    // Pods and the node itself do not come from outside: they reach every endpoint. Pods keep
    // their address, the node's own traffic cannot.
    if (options.localDetector !== undefined) {
      rules.push({ ...fromPods(options.localDetector, false), comment, target: names.cluster });
    }
    const local = { comment, matches: [addressType('src', 'LOCAL')] };
    rules.push({ ...local, target: MARK_MASQ }, { ...local, target: names.cluster });
  }
  if (route.localEndpoints.length > 0) rules.push({ target: names.local });
  return rules;
}

/** What falls through is dropped by KUBE-PROXY-FIREWALL in filter, for nat cannot drop. */
function firewallRules(route: Route, names: ServiceChains, options: CompileOptions): RuleSpec[] {
  const ranges = route.sourceRanges ?? [];
  const sources = ranges.map((cidr) => ({ value: cidr }));
  // A node inside the ranges that calls the VIP may have the VIP itself as source.
  const own = rangesCoverNode(ranges, options.nodeAddresses)
    ? route.loadBalancerIPs.map((vip) => host(vip, familyOf(vip)))
    : [];
  return [...sources, ...own].map((source) => ({
    source,
    comment: `${route.name} loadbalancer IP`,
    target: names.external,
  }));
}

/** Fate of packets that the nat table left alone. */
function verdict(route: Route, served: boolean): Verdict | undefined {
  if (served) return route.match.kind === 'port' ? undefined : 'REJECT';
  return route.hasEndpointsAnywhere ? 'DROP' : 'REJECT';
}

function vipEntries(
  route: Route,
  vip: string,
  what: string,
  chain: string | undefined,
  fate: Verdict | undefined,
  firewall = false,
): VipEntry[] {
  const { match } = route;
  const returns = firewall || (route.externalLocal && route.localEndpoints.length === 0);
  const entry = {
    vip,
    comment: `${route.name} ${what}`,
    chain,
    returns,
    verdict: fate,
    firewall,
  };
  if (match.kind === 'port') {
    const { protocol, port } = match;
    return [{ ...entry, kind: 'port', ports: { protocol, from: port, to: port } }];
  }
  if (match.kind === 'all') return [{ ...entry, kind: 'all', ports: undefined }];
  const inside = match.ranges.map((ports) => ({ ...entry, kind: 'range' as const, ports }));
  const comment = `${route.name} ${what} outside its ranges`;
  const outside = { ...entry, comment, chain: undefined, verdict: 'REJECT', firewall: false };
  return [...inside, { ...outside, kind: 'outside', ports: undefined } as VipEntry];
}

/** Load balancers that pass packets through probe the VIP itself; that port stays with the node. */
function healthCheckEntry(route: Route, vip: string): VipEntry {
  const port = route.healthCheckNodePort;
  return {
    vip,
    kind: 'health',
    ports: { protocol: 'TCP', from: port, to: port },
    comment: `${route.name} health check node port`,
    chain: undefined,
    returns: false,
    verdict: undefined,
    firewall: false,
  };
}

function nodePortEntry(
  route: Route,
  chain: string | undefined,
  fate: Verdict | undefined,
): NodePortEntry | undefined {
  if (route.nodePort === 0 || route.match.kind !== 'port') return undefined;
  const { protocol } = route.match;
  return { protocol, port: route.nodePort, comment: route.name, chain, verdict: fate };
}
