/**
 * Compiles one TrafficPlan to rules. A packet passes these chains of table nat (PREROUTING and
 * OUTPUT):
 *
 *   KUBE-SERVICES ─ by VIP (and port) ─┬─ cluster IP ──────────────────────────► KUBE-SVC / KUBE-SVL
 *                                      └─ external IP, ─► KUBE-FW ─► KUBE-EXT ─► KUBE-SVC / KUBE-SVL
 *   KUBE-NODEPORTS ─ by node port ────────────────────────► KUBE-EXT
 *   KUBE-SVC, KUBE-SVL ─ session affinity, then random ─► KUBE-SEP ─ masquerade hairpin ─► DNAT
 *
 * In table filter, a packet that is still addressed to a VIP was not translated. It is rejected (no
 * endpoint), dropped (no endpoint on this node, or a client outside the source ranges), or belongs
 * to no Service.
 *
 * For all-ports Routes, the match on the VIP has no port or a port range, and the DNAT has no port,
 * so that the packet keeps its port. Untranslated packets to all-ports VIPs are rejected in table
 * filter even while the Routes have endpoints, so that no such packet reaches a listener of the host.
 */
import { socketAddress } from '../api/addresses.ts';
import type { Protocol } from '../api/objects.ts';
import type { Endpoint } from '../endpoints/select.ts';
import type { TrafficOptions } from '../traffic/options.ts';
import type { EndpointSet, TrafficPlan, UntranslatedVerdict, VipPlan } from '../traffic/plan.ts';
import {
  MARK_MASQ,
  RESET_OR_DROP,
  RESET_OR_REJECT,
  type ServiceChains,
  serviceChains,
} from './chains.ts';
import type { PortRule } from './port-tree.ts';
import {
  addrtypeMatch,
  exactAddress,
  fromNonPodClients,
  fromPods,
  type PortSpan,
  portGroups,
  type RuleSpec,
  recentMatch,
  reject,
  ruleText,
  statisticMatch,
} from './rule.ts';

/** Treatment of one match on one VIP; the dispatch trees order the entries of a VIP by precedence. */
export interface VipEntry {
  readonly vip: string;
  /**
   * In order of precedence: health check node port, one port, port ranges, all ports, ports
   * outside the ranges.
   */
  readonly kind: 'health' | 'port' | 'range' | 'all' | 'outside';
  /** undefined: every protocol. */
  readonly protocol: Protocol | undefined;
  /** See `RuleSpec.ports`. */
  readonly ports: readonly PortSpan[];
  readonly comment: string;
  /** Chain in table nat that translates the packet; undefined: the packet stays untranslated. */
  readonly chain: string | undefined;
  /** Whether the chain may return packets untranslated. */
  readonly returns: boolean;
  /** Target in table filter for untranslated packets. */
  readonly verdict: string | undefined;
  /** Whether packets from outside the source ranges are dropped. */
  readonly firewall: boolean;
}

/** Rules of one TrafficPlan. */
export interface CompiledRules {
  /** Chains of table nat with their rules. A chain jumps only to chains of greater `depth`. */
  readonly chains: ReadonlyMap<
    string,
    { readonly rules: readonly string[]; readonly depth: number }
  >;
  readonly vips: readonly VipEntry[];
  /** Rule in table nat that translates packets to the node port. */
  readonly nodePort: PortRule | undefined;
  /** Rule in table filter for untranslated packets to the node port. */
  readonly nodePortVerdict: PortRule | undefined;
  /** Rule in table filter that accepts health checks of load balancers. */
  readonly healthCheck: PortRule | undefined;
}

/** Depth of each kind of chain in the jump graph; a chain only jumps to deeper chains. */
export const DEPTH = {
  root: 0,
  branch: 1,
  leaf: 2,
  vip: 3,
  firewall: 4,
  external: 5,
  service: 6,
  endpoint: 7,
  mark: 8,
};

const SETS: readonly EndpointSet[] = ['cluster', 'local'];

/** Compiles one plan. Equal plans and options give equal text. */
export function compileIptablesRules(plan: TrafficPlan, options: TrafficOptions): CompiledRules {
  const { name, match, vips, healthCheckNodePort } = plan;
  const names = serviceChains(name, match.kind === 'port' ? match.protocol : undefined);
  const chains = new Map<string, { rules: string[]; depth: number }>();
  const addChain = (chain: string, depth: number, rules: readonly RuleSpec[]) => {
    if (rules.length === 0) return;
    chains.set(chain, { depth, rules: rules.map((rule) => ruleText(chain, rule)) });
  };
  for (const endpoint of SETS.flatMap((set) => plan.endpoints[set])) {
    const chain = names.endpoint(endpoint.address, endpoint.port);
    if (!chains.has(chain)) addChain(chain, DEPTH.endpoint, endpointRules(plan, chain, endpoint));
  }
  for (const set of SETS) {
    const rules = loadBalancingRules(plan, names, set);
    if (rules.length === 0) continue;
    addChain(names[set], DEPTH.service, [...nonPodMasqueradeRules(plan, set, options), ...rules]);
  }
  addChain(names.external, DEPTH.external, externalRules(plan, names, options));
  addChain(names.firewall, DEPTH.firewall, firewallRules(plan, names));

  const existing = (chain: string) => (chains.has(chain) ? chain : undefined);
  const chainOf = ({ kind, dispatch, sources }: VipPlan) => {
    if (kind === 'cluster IP') return existing(names[dispatch.others.set]);
    return existing(sources === undefined ? names.external : names.firewall);
  };
  return {
    chains,
    vips: vips.flatMap((each) => vipEntries(plan, each, chainOf(each), options)),
    ...nodePortRules(plan, existing(names.external), options),
    healthCheck:
      healthCheckNodePort > 0
        ? {
            protocol: 'TCP',
            port: healthCheckNodePort,
            comment: `${plan.serviceKey} health check node port`,
            target: 'ACCEPT',
          }
        : undefined,
  };
}

function nodePortRules(
  { name, nodePort }: TrafficPlan,
  chain: string | undefined,
  options: TrafficOptions,
): Pick<CompiledRules, 'nodePort' | 'nodePortVerdict'> {
  if (nodePort === undefined) return { nodePort, nodePortVerdict: undefined };
  const { protocol, port, dispatch } = nodePort;
  const rule = { protocol, port, comment: name };
  const verdict = verdictTarget(dispatch.untranslatedVerdict, options);
  const matches = [addrtypeMatch('dst', 'LOCAL')];
  return {
    nodePort: chain === undefined ? undefined : { ...rule, target: chain },
    nodePortVerdict: verdict === undefined ? undefined : { ...rule, matches, target: verdict },
  };
}

/** Target in table filter for untranslated packets. */
function verdictTarget(
  verdict: UntranslatedVerdict | undefined,
  { family, resetsTcp }: TrafficOptions,
): string | undefined {
  if (verdict === undefined) return undefined;
  if (resetsTcp) return verdict === 'reject' ? RESET_OR_REJECT : RESET_OR_DROP;
  return verdict === 'reject' ? reject(family) : 'DROP';
}

function endpointRules(
  { family, match, affinitySeconds }: TrafficPlan,
  chain: string,
  { address, port }: Endpoint,
): RuleSpec[] {
  return [
    // Hairpin, see `needsHairpin`.
    { source: exactAddress(address, family), target: MARK_MASQ },
    {
      protocol: match.kind === 'port' ? match.protocol : undefined,
      matches: affinitySeconds > 0 ? [recentMatch('--set', chain, family)] : [],
      target: `DNAT --to-destination ${socketAddress(address, port)}`,
    },
  ];
}

/**
 * Session affinity first, then random selection. Affinity is keyed on the client address only, so
 * with all ports it holds across ports.
 */
function loadBalancingRules(
  { endpoints, affinitySeconds, family }: TrafficPlan,
  names: ServiceChains,
  set: EndpointSet,
): RuleSpec[] {
  const chains = endpoints[set].map((each) => names.endpoint(each.address, each.port));
  const sticky = chains.map((chain) => ({
    matches: [recentMatch(`--rcheck --seconds ${affinitySeconds} --reap`, chain, family)],
    target: chain,
  }));
  const spread = chains.map((chain, index) => ({
    matches: index < chains.length - 1 ? [statisticMatch(chains.length - index)] : [],
    target: chain,
  }));
  return affinitySeconds > 0 ? [...sticky, ...spread] : spread;
}

/** Masquerade rules of the cluster IP that an endpoint set serves. */
function nonPodMasqueradeRules(
  { name, family, vips }: TrafficPlan,
  set: EndpointSet,
  options: TrafficOptions,
): RuleSpec[] {
  const served = vips.filter(
    ({ dispatch }) => dispatch.masquerade === 'non-pods' && dispatch.others.set === set,
  );
  return fromNonPodClients(options).flatMap((from) =>
    served.map(({ vip, kind }) => ({
      ...from,
      destination: exactAddress(vip, family),
      comment: `${name} ${kind}`,
      target: MARK_MASQ,
    })),
  );
}

function externalRules(
  { name, external }: TrafficPlan,
  names: ServiceChains,
  { localDetector }: TrafficOptions,
): RuleSpec[] {
  if (external === undefined) return [];
  const { podsAndNode, others, masquerade } = external;
  const comment = `${name} external destinations`;
  const rules: RuleSpec[] = [];
  if (podsAndNode !== undefined && podsAndNode.endpoints.length > 0) {
    const target = names[podsAndNode.set];
    // Pods keep their source address; traffic of the node itself is masqueraded.
    if (localDetector) rules.push({ ...fromPods(localDetector, false), comment, target });
    const node = { comment, matches: [addrtypeMatch('src', 'LOCAL')] };
    rules.push({ ...node, target: MARK_MASQ }, { ...node, target });
  }
  if (others.endpoints.length > 0) {
    if (masquerade === 'all') rules.push({ comment, target: MARK_MASQ });
    rules.push({ target: names[others.set] });
  }
  return rules;
}

/**
 * Rules of KUBE-FW: packets from allowed sources continue to KUBE-EXT. KUBE-PROXY-FIREWALL in table
 * filter drops all other packets to the VIP, because table nat cannot drop.
 */
function firewallRules({ name, family, vips }: TrafficPlan, names: ServiceChains): RuleSpec[] {
  const restricted = vips.find(({ sources }) => sources !== undefined);
  if (restricted?.sources === undefined) return [];
  const { ranges, ownVips } = restricted.sources;
  const own = ownVips.map((vip) => exactAddress(vip, family));
  const comment = `${name} ${restricted.kind}`;
  return [...ranges.map((value) => ({ value })), ...own].map((source) => ({
    source,
    comment,
    target: names.external,
  }));
}

function vipEntries(
  { name, match, external }: TrafficPlan,
  { vip, kind, dispatch, sources, healthCheckPort }: VipPlan,
  chain: string | undefined,
  options: TrafficOptions,
): VipEntry[] {
  const firewall = sources !== undefined;
  const returns = firewall || external?.others.endpoints.length === 0;
  const comment = `${name} ${kind}`;
  const verdict = verdictTarget(dispatch.untranslatedVerdict, options);
  const entry = { vip, comment, chain, returns, verdict, firewall };
  if (match.kind === 'port') {
    const { protocol, port } = match;
    return [{ ...entry, kind: 'port', protocol, ports: [{ from: port, to: port }] }];
  }
  const wide = { protocol: undefined, ports: [] };
  const outside = { ...entry, ...wide, chain: undefined, returns: false, firewall: false };
  const health: VipEntry = {
    ...outside,
    kind: 'health',
    protocol: 'TCP',
    ports: [{ from: healthCheckPort, to: healthCheckPort }],
    comment: `${name} health check node port`,
    verdict: undefined,
  };
  const kept = healthCheckPort > 0 ? [health] : [];
  if (match.kind === 'all') return [{ ...entry, ...wide, kind: 'all' }, ...kept];
  return [
    ...portGroups(match.ranges).map((group) => ({ ...entry, ...group, kind: 'range' as const })),
    {
      ...outside,
      kind: 'outside',
      comment: `${comment} outside its ranges`,
      verdict: verdictTarget('reject', options),
    },
    ...kept,
  ];
}
