/**
 * Static rules, which do not depend on Services: the chains around the dispatch trees, and the
 * jumps from built-in chains. Rules that kube-proxy also has get kube-proxy's text, in iptables-save
 * format, so that rules left by kube-proxy are taken over unchanged.
 */
import { PROTOCOLS } from '../api/objects.ts';
import { LOOPBACK_CIDRS } from '../services/node-port-addresses.ts';
import {
  CANARY,
  EXTERNAL_SERVICES,
  FIREWALL,
  FORWARD,
  MARK_MASQ,
  NODE_PORTS,
  POSTROUTING,
  PROXY_FIREWALL,
  RESET_OR_DROP,
  RESET_OR_REJECT,
  SERVICES,
  type Table,
} from './chains.ts';
import { DEPTH } from './compile.ts';
import {
  addrtypeMatch,
  ctstateMatch,
  exactAddress,
  hex,
  type RuleSpec,
  reject,
  ruleText,
} from './rule.ts';
import type { IptablesCompileOptions } from './ruleset.ts';
import type { TreeChain } from './vip-tree.ts';

/** Options of the static rules and the compiled Routes of the iptables mode. */
export interface BaseOptions extends IptablesCompileOptions {
  /** 0 to 31 (`--iptables-masquerade-bit`). */
  readonly masqueradeBit: number;
  /** `all`: every local address; otherwise these addresses of the node (`--nodeport-addresses`). */
  readonly nodePortAddresses: 'all' | readonly string[];
  /** Whether to serve node ports on 127.0.0.1 (`--iptables-localhost-nodeports`); IPv4 only. */
  readonly localhostNodePorts: boolean;
  /**
   * Whether to drop packets in conntrack state INVALID. False if nf_conntrack_tcp_be_liberal is
   * set.
   */
  readonly dropInvalid: boolean;
  /** Whether MASQUERADE supports --random-fully (iptables 1.6.2). */
  readonly randomFully: boolean;
}

/**
 * A rule in a chain shared with other programs. It is added if missing; other rules stay untouched.
 */
export interface SharedRule {
  readonly table: Table;
  readonly chain: string;
  readonly builtin: boolean;
  readonly rule: string;
}

/** A chain that does not depend on Services. */
export function staticChain(
  table: Table,
  name: string,
  rules: readonly RuleSpec[],
  depth = DEPTH.root,
): TreeChain {
  return { table, name, depth, rules: rules.map((rule) => ruleText(name, rule)) };
}

/**
 * Detects a flush. The rule is in a chain that nothing jumps to. kube-proxy checks only for its
 * canary chain, which `iptables -F` leaves in place; `iptables -F` does delete this rule.
 */
export const CANARY_RULE = ruleText(CANARY, { comment: 'Portwide canary', target: 'RETURN' });

/** The canary chain of each table. */
export function canaryChains(): TreeChain[] {
  const canary = { name: CANARY, depth: DEPTH.root, rules: [CANARY_RULE] };
  return (['mangle', 'nat', 'filter'] as const).map((table) => ({ table, ...canary }));
}

function baseChains(options: BaseOptions): TreeChain[] {
  // `1 << 31` is negative in JavaScript.
  const mark = hex((1 << options.masqueradeBit) >>> 0);
  return [
    ...canaryChains(),
    staticChain('nat', MARK_MASQ, [{ target: `MARK --set-xmark ${mark}/${mark}` }], DEPTH.mark),
    staticChain('nat', POSTROUTING, [
      { matches: [`-m mark ! --mark ${mark}/${mark}`], target: 'RETURN' },
      // Clear the mark, so that the packet is not masqueraded again after encapsulation.
      { target: `MARK --set-xmark ${mark}/0x0` },
      masqueradeRule(options),
    ]),
    ...resetChains(options),
    staticChain('filter', FORWARD, [
      ...(options.dropInvalid ? [{ matches: [ctstateMatch('INVALID')], target: 'DROP' }] : []),
      ...forwardRules(`-m mark --mark ${mark}/${mark}`),
    ]),
  ];
}

/** The masquerade rule. Rules before it return packets that are not marked for masquerade. */
export function masqueradeRule({ randomFully }: Pick<BaseOptions, 'randomFully'>): RuleSpec {
  return {
    comment: 'kubernetes service traffic requiring SNAT',
    target: randomFully ? 'MASQUERADE --random-fully' : 'MASQUERADE',
  };
}

/**
 * Accepts, in FORWARD, packets that are marked for masquerade or belong to an established
 * connection.
 * @param marked matches on the masquerade mark.
 */
export function forwardRules(...marked: readonly string[]): RuleSpec[] {
  return [
    ...marked.map((match) => ({
      comment: 'kubernetes forwarding rules',
      matches: [match],
      target: 'ACCEPT',
    })),
    {
      comment: 'kubernetes forwarding conntrack rule',
      matches: [ctstateMatch('RELATED,ESTABLISHED')],
      target: 'ACCEPT',
    },
  ];
}

/** Rules of a tree's root chain besides its jumps into the tree. */
export interface RootRules {
  readonly before?: readonly RuleSpec[];
  readonly after?: readonly RuleSpec[];
  /** Whether to remove the chain while the tree is empty. Default: keep the chain. */
  readonly removeWhenEmpty?: boolean;
}

/** Rules of a proxy mode that do not depend on Services. */
export interface StaticRules {
  /** Chains outside the dispatch trees. */
  chains(): readonly TreeChain[];
  root(table: Table, root: string): RootRules;
  /**
   * Rules in chains shared with other programs, in order: jumps from built-in chains, and the rule of
   * KUBE-FIREWALL.
   */
  shared(): readonly SharedRule[];
}

/** Static rules of the iptables mode. */
export function iptablesStaticRules(options: BaseOptions): StaticRules {
  return {
    chains: () => baseChains(options),
    root: (table, root) => {
      if (table === 'nat' && root === SERVICES) return { after: nodePortJumps(options) };
      if (table === 'filter' && root === PROXY_FIREWALL) return { after: dropPortZeroRules() };
      return {};
    },
    shared: () => sharedRules(options),
  };
}

/**
 * An established TCP connection survives ICMP errors (RFC 1122, 4.2.3.9); only a reset ends it. The
 * rules are in separate chains, because the rules that jump to these chains may match any protocol.
 */
function resetChains({ family, resetsTcp }: BaseOptions): TreeChain[] {
  if (!resetsTcp) return [];
  const midConnection = '-p tcp -m tcp --tcp-flags SYN,RST NONE';
  const ends = [
    [RESET_OR_REJECT, reject(family)],
    [RESET_OR_DROP, 'DROP'],
  ] as const;
  const reset = { matches: [midConnection], target: 'REJECT --reject-with tcp-reset' };
  return ends.map(([name, target]) => staticChain('filter', name, [reset, { target }], DEPTH.mark));
}

function nodePortJumps({ family, nodePortAddresses, localhostNodePorts }: BaseOptions): RuleSpec[] {
  const comment = 'kubernetes service nodeports; NOTE: this must be the last rule in this chain';
  const jump = { comment, target: NODE_PORTS };
  if (nodePortAddresses !== 'all') {
    return nodePortAddresses.map((address) => ({
      ...jump,
      destination: exactAddress(address, family),
    }));
  }
  const local = { ...jump, matches: [addrtypeMatch('dst', 'LOCAL')] };
  // Exclude [::1] always: the kernel does not route [::1] off the loopback device, and
  // route_localnet is for IPv4 only.
  if (family === 'IPv4' && localhostNodePorts) return [local];
  return [{ ...local, destination: { value: LOOPBACK_CIDRS[family], not: true } }];
}

/** All ports means 1 to 65535 (KEP-2610). No other Service translates to port 0 either. */
function dropPortZeroRules(): RuleSpec[] {
  return PROTOCOLS.map((protocol) => ({
    protocol,
    ports: [{ from: 0, to: 0 }],
    matches: [ctstateMatch('DNAT')],
    target: 'DROP',
  }));
}

/** A jump from a built-in chain. */
export function jumpFrom(table: Table, chain: string, rule: RuleSpec): SharedRule {
  return { table, chain, builtin: true, rule: ruleText(chain, rule) };
}

function sharedRules(options: BaseOptions): SharedRule[] {
  const jump = (table: Table, chain: string, target: string, comment: string, onlyNew = true) =>
    jumpFrom(table, chain, {
      // kube-proxy writes the state match first. Other text would not match kube-proxy's existing
      // jumps.
      ...(onlyNew ? { matches: [ctstateMatch('NEW'), commentMatch(comment)] } : { comment }),
      target,
    });
  const portals = 'kubernetes service portals';
  const external = 'kubernetes externally-visible service portals';
  const firewall = 'kubernetes load balancer firewall';
  const rules: SharedRule[] = [
    jump('nat', 'PREROUTING', SERVICES, portals, false),
    jump('nat', 'OUTPUT', SERVICES, portals, false),
    jump('nat', 'POSTROUTING', POSTROUTING, 'kubernetes postrouting rules', false),
    jump('filter', 'INPUT', PROXY_FIREWALL, firewall),
    jump('filter', 'INPUT', EXTERNAL_SERVICES, external),
    // kube-proxy has no jump from INPUT to KUBE-SERVICES. Without the jump, a packet to a VIP without
    // endpoints would reach the node's own listeners if the node holds the VIP.
    jump('filter', 'INPUT', SERVICES, portals),
    // Insert the jump to KUBE-NODEPORTS after the jumps above: the health check port of one Service
    // must not be accepted on the VIP of another Service.
    jump('filter', 'INPUT', NODE_PORTS, 'kubernetes health check service ports', false),
    jump('filter', 'FORWARD', PROXY_FIREWALL, firewall),
    jump('filter', 'FORWARD', FORWARD, 'kubernetes forwarding rules', false),
    jump('filter', 'FORWARD', SERVICES, portals),
    jump('filter', 'FORWARD', EXTERNAL_SERVICES, external),
    jump('filter', 'OUTPUT', PROXY_FIREWALL, firewall),
    jump('filter', 'OUTPUT', SERVICES, portals),
  ];
  return options.family === 'IPv4' && options.localhostNodePorts
    ? [...rules, ...localnetRules()]
    : rules;
}

/**
 * route_localnet=1 lets neighbours send to 127.0.0.0/8; these rules drop such packets
 * (CVE-2020-8558).
 */
export function localnetRules(): SharedRule[] {
  const drop = ruleText(FIREWALL, {
    source: { value: '127.0.0.0/8', not: true },
    destination: { value: '127.0.0.0/8' },
    comment: 'block incoming localnet connections',
    matches: ['-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT'],
    target: 'DROP',
  });
  const jumps = ['INPUT', 'OUTPUT'].map((chain) => jumpFrom('filter', chain, { target: FIREWALL }));
  return [{ table: 'filter', chain: FIREWALL, builtin: false, rule: drop }, ...jumps];
}

function commentMatch(comment: string): string {
  return `-m comment --comment "${comment}"`;
}
