/**
 * The static part of the policy table: sets, maps, base chains and deny chains. The first packet of
 * a connection:
 *
 *   forward ─ hairpin-pods? ─ egress-pods, by source ─► policy set chain: drop, or return
 *                           └ ingress-pods, by destination ─► policy set chain: drop, or return
 *   input ─── egress-pods only: the node itself is never a subject
 *   output ── as forward, except for packets that the node itself sends
 *
 * Chains of `dns-chains.ts` queue DNS packets. Policies are evaluated after DNAT and before SNAT. The first rule accepts packets of established
 * connections, replies included, and related packets.
 *
 * - The input chain has priority 110, after IPVS (99). A VIP of IPVS is a local address, so a
 *   packet to the VIP arrives in input. IPVS translates the packet and sends it through output,
 *   with the pod as source.
 * - The forward and output chains have priority 10, after the Service chains (0), which reject
 *   packets to a Service without endpoints.
 * - UDP packets of ports owned by pods are not tracked (`nftables/owned-chains.ts`), so no connection says which packets
 *   are answers. Each packet is evaluated, and chain `remember-answers` records which packets answer an allowed one; see
 *   `answerChains`.
 * - Traffic between pods on one bridge traverses these chains only with br_netfilter
 *   (`net.bridge.bridge-nf-call-iptables=1`), as for Services.
 * - Neighbour discovery is always accepted. Packets that a pod sends without its own address match
 *   no map: DHCP, router solicitation and MLD come from `0.0.0.0`, `::` or a link-local address.
 */
import type { IpFamily } from '../../api/objects.ts';
import { encodeComment } from '../../netlink/nftables/comment.ts';
import { baseAt, type Hook } from '../../netlink/nftables/hooks.ts';
import type {
  NftChainRules,
  NftCounter,
  NftOperation,
  NftRule,
} from '../../netlink/nftables/tables.ts';
import type { NftBaseChain } from '../../netlink/nftables/types.ts';
import { type Declaration, type SetDeclaration, setFields } from '../../nft/declaration.ts';
import {
  ACCEPT,
  countPacket,
  DROP,
  goTo,
  IS_FROM_NODE,
  IS_UNTRACKED,
  type LookupKey,
  nftRuleBytes,
  protocolIs,
  RETURN,
  type RuleParts,
  rulePartsFor,
} from '../../nft/rule.ts';
import { DIRECTIONS, type Direction, type RuleVerdict } from '../model/terms.ts';
import { DNS_PRIORITY, dnsChains, FORGED_ANSWERS_COUNTER } from './dns-chains.ts';
import {
  HAS_NO_PORTS,
  HAS_PORTS,
  IS_ESTABLISHED,
  IS_NEIGHBOUR_DISCOVERY,
  logToGroup,
} from './expressions.ts';

export const POLICY_TABLE = 'portwide-policy';
/** Enforces while the policy table is replaced (`enforce/rebuild.ts`). */
export const STAGING_TABLE = 'portwide-policy-staging';
/** Names in tables of earlier releases, for a takeover without a gap. */
export const LEGACY_NAMES = {
  stagingTable: 'portwide-policy-guard',
  commitMarker: 'complete',
  fqdnCache: 'answers',
} as const;
export const POLICY_TABLES: readonly string[] = [
  POLICY_TABLE,
  STAGING_TABLE,
  LEGACY_NAMES.stagingTable,
];
/** An empty chain that marks a completely written table. */
export const COMMIT_MARKER = 'commit-marker';

/**
 * Seconds until packets that answer an allowed untracked packet are no longer allowed, counted from the last packet of
 * either end. As the default of `nf_conntrack_udp_timeout_stream`.
 */
const ANSWER_SECONDS = 120;
/**
 * Maximum number of allowed answers: pairs of addresses and ports. If the set is full, new answers are evaluated like
 * other packets.
 */
const MAX_ANSWERS = 131_072;

export interface PolicyTableOptions {
  readonly family: IpFamily;
  /** NFLOG group for denied packets, 0 to 65535; undefined: no logging. */
  readonly logGroup?: number | undefined;
  /** Whether DNS packets can be queued; default true. */
  readonly hasQueue?: boolean;
}

/** An nft rule with an optional comment. */
export interface TableRule {
  readonly rule: RuleParts;
  readonly comment?: string;
}

/** An nft chain of the policy table. */
export interface TableChain {
  readonly name: string;
  /** Where a base chain is attached; undefined for other chains. */
  readonly base?: NftBaseChain;
  readonly rules: Iterable<TableRule>;
}

export type DenyVerdict = Extract<RuleVerdict, `deny-${string}`>;
export const DENY_VERDICTS: readonly DenyVerdict[] = [
  'deny-admin',
  'deny-network-policy',
  'deny-baseline',
];

const DENIED_DIRECTIONS = DENY_VERDICTS.flatMap((denial) =>
  DIRECTIONS.map((direction) => [denial, direction] as const),
);

/** Name of the chain that counts, logs and drops denied packets. */
export function denyChain(denial: DenyVerdict, direction: Direction): string {
  return `${denial}-${direction}`;
}

/** Name of the chain that denies packets with unparsable ports. All other packets return. */
export function unparsablePortsChain(denial: DenyVerdict, direction: Direction): string {
  return `unparsable-ports-${denyChain(denial, direction)}`;
}

/** A set: its key with an interval or timeouts, or a verdict map. */
type SetSpec = Omit<SetDeclaration, 'kind' | 'name' | 'key'> & {
  readonly key: readonly (keyof ReturnType<typeof setFields>)[];
};

/** Sets that rules write. */
const ANSWERS = {
  isDynamic: true,
  hasTimeouts: true,
  timeoutSeconds: ANSWER_SECONDS,
  size: MAX_ANSWERS,
} as const;

/** The sets and maps. List ids have the type of `ct id`: 32 bits in network byte order. */
const SETS = {
  peers: { key: ['connectionId', 'destination'] },
  networks: { key: ['connectionId', 'destination'], isInterval: true },
  'fqdn-peers': { key: ['connectionId', 'destination'], hasTimeouts: true },
  ports: { key: ['connectionId', 'protocol', 'port'], isInterval: true },
  'named-ports': { key: ['connectionId', 'destination', 'protocol', 'port'] },
  'hairpin-pods': { key: ['source', 'destination'] },
  'ingress-pods': { key: ['destination'], data: 'verdict' },
  'egress-pods': { key: ['source'], data: 'verdict' },
  /** Pods of this node that a policy selects. */
  'selected-pods': { key: ['source'] },
  /** VIPs of Services with ports owned by pods: the source of packets from owners of other nodes. */
  'owned-vips': { key: ['source'] },
  /** Untracked UDP packets that answer an allowed packet. Written by rules only. */
  'udp-answers': { key: ['source', 'destination', 'sourcePort', 'port'], ...ANSWERS },
  /** Answers to packets of a pod that may come from a VIP, whichever it is. Written by rules only. */
  'vip-answers': { key: ['destination', 'sourcePort', 'port'], ...ANSWERS },
  /** Pods of this node that no policy with domain names selects: their DNS packets are not queued. */
  'dns-bypass': { key: ['source'] },
  /** Resolvers, while the agent reads the queue of DNS packets. */
  'dns-resolvers': { key: ['source'], hasTimeouts: true },
  /**
   * The FQDN cache, which survives agent restarts. No rule uses the set. The two last fields hold a hash of the name.
   */
  'fqdn-cache': { key: ['destination', 'connectionId', 'connectionId'], hasTimeouts: true },
} as const satisfies Readonly<Record<string, SetSpec>>;

export type NftSetName = keyof typeof SETS;
/** Sets that only rules write. */
export const ANSWER_SETS = ['udp-answers', 'vip-answers'] as const satisfies NftSetName[];
export const NFT_SET_NAMES = Object.keys(SETS) as readonly NftSetName[];

/**
 * All chains except the chains of policy sets.
 * @param priorityOffset Added to the priorities of base chains.
 */
export function staticChains(
  { family, logGroup, hasQueue = true }: PolicyTableOptions,
  priorityOffset: 0 | 1 = 0,
): TableChain[] {
  const { source, destination, inSet, verdictMap } = rulePartsFor(family);
  const untracked: RuleParts = [IS_UNTRACKED, protocolIs('UDP')];
  const established: RuleParts = [IS_ESTABLISHED, ACCEPT];
  const discovery: RuleParts[] = family === 'IPv6' ? [[IS_NEIGHBOUR_DISCOVERY, ACCEPT]] : [];
  const egress: RuleParts = [verdictMap([source], 'egress-pods')];
  const bothDirections: RuleParts[] = [
    [inSet([source, destination], 'hairpin-pods'), ACCEPT],
    egress,
    [verdictMap([destination], 'ingress-pods')],
  ];
  const base = (
    hook: Hook,
    priority: number,
    rules: readonly RuleParts[],
    name: string = hook,
  ): TableChain => ({
    ...chain(name, rules),
    base: baseAt('filter', hook, priority + priorityOffset),
  });
  const dns = dnsChains(family, hasQueue);
  const evaluateUntracked: RuleParts = [...untracked, goTo('untracked')];
  return [
    base('forward', 10, [established, ...discovery, evaluateUntracked, ...bothDirections]),
    base('input', 110, [established, ...discovery, evaluateUntracked, egress]),
    base('output', 10, [
      established,
      [...untracked, IS_FROM_NODE, goTo('remember-answers')],
      evaluateUntracked,
      [IS_FROM_NODE, ACCEPT],
      ...bothDirections,
    ]),
    base('prerouting', DNS_PRIORITY, dns.prerouting, 'dns-prerouting'),
    base('output', DNS_PRIORITY, dns.output, 'dns-output'),
    ...Object.entries(dns.others).map(([name, rules]) => chain(name, rules)),
    ...answerChains(family, bothDirections),
    ...DENIED_DIRECTIONS.map(([denial, direction]) => {
      const name = denyChain(denial, direction);
      const tier = denial.slice('deny-'.length);
      const prefix = `portwide deny ${tier} ${direction} `;
      const logged = logGroup === undefined ? [] : [logToGroup(logGroup, prefix)];
      return chain(name, [[countPacket(name), ...logged, DROP]]);
    }),
    ...DENIED_DIRECTIONS.map(([denial, direction]) =>
      chain(unparsablePortsChain(denial, direction), [
        [HAS_NO_PORTS, RETURN],
        [HAS_PORTS, RETURN],
        [goTo(denyChain(denial, direction))],
      ]),
    ),
  ];
}

/**
 * The chains for untracked UDP packets. As with connection tracking, a packet passes if policies allow it or if it answers
 * an allowed packet. Only answers from or to selected pods are recorded; all others are allowed anyway.
 *
 * A packet to a VIP is evaluated with the owner as its destination, but the answer of an owner on another node comes from
 * the VIP. So a VIP may answer a pod from each port to which the pod has sent a packet.
 */
function answerChains(family: IpFamily, bothDirections: readonly RuleParts[]): TableChain[] {
  const { source, destination, sourcePort, port, inSet, updateSet } = rulePartsFor(family);
  const record = (set: (typeof ANSWER_SETS)[number], key: LookupKey) =>
    updateSet(set, key, ANSWER_SECONDS);
  const answer = [destination, source, port, sourcePort];
  const recordAnswer = record('udp-answers', answer);
  const allowAnswer = (set: (typeof ANSWER_SETS)[number], key: LookupKey): RuleParts => [
    inSet(key, set),
    record(set, key),
    ACCEPT,
  ];
  return [
    chain('untracked', [
      allowAnswer('udp-answers', [source, destination, sourcePort, port]),
      [
        inSet([source], 'owned-vips'),
        ...allowAnswer('vip-answers', [destination, sourcePort, port]),
      ],
      ...bothDirections,
      [goTo('remember-answers')],
    ]),
    chain('remember-answers', [
      [
        inSet([source], 'selected-pods'),
        recordAnswer,
        record('vip-answers', [source, port, sourcePort]),
        ACCEPT,
      ],
      [inSet([destination], 'selected-pods'), recordAnswer, ACCEPT],
    ]),
  ];
}

function chain(name: string, rules: readonly RuleParts[]): TableChain {
  return { name, rules: rules.map((rule) => ({ rule })) };
}

/** Values of counters by name. */
export type CounterValues = ReadonlyMap<string, Pick<NftCounter, 'packets' | 'bytes'>>;

/**
 * The sets, maps, chains and counters of a table, without rules and elements. The table accepts every packet until its
 * base chains get rules.
 * @param counts Initial values of the counters; default 0.
 */
export function policyDeclarations(
  { family }: PolicyTableOptions,
  chains: readonly TableChain[],
  counts: CounterValues,
): Declaration[] {
  const fields = setFields(family);
  const denied = DENIED_DIRECTIONS.map(([denial, direction]) => denyChain(denial, direction));
  return [
    ...[...denied, FORGED_ANSWERS_COUNTER].map(
      (name) => ({ ...counts.get(name), kind: 'counter', name }) as const,
    ),
    ...Object.entries<SetSpec>(SETS).map(
      ([name, { key, ...spec }]): Declaration => ({
        ...spec,
        kind: 'set',
        name,
        key: key.map((field) => fields[field]),
      }),
    ),
    ...chains.map(({ name, base }) => ({ kind: 'chain', name, base }) as const),
  ];
}

/** Operations that create the policy table with the rules of its base chains, to check that the kernel accepts it. */
export function policyProbe(options: PolicyTableOptions): NftOperation[] {
  const chains = staticChains(options);
  return [
    { action: 'declare', declarations: policyDeclarations(options, chains, new Map()) },
    ...chains
      .filter(({ base }) => base !== undefined)
      .map((each) => ({ action: 'fill', chain: nftChainRules(each) }) as const),
  ];
}

/** Encodes a chain for the kernel. The rules are encoded lazily. */
export function nftChainRules({ name, rules }: TableChain): NftChainRules {
  return { name, rules: encodeRules(rules) };
}

function* encodeRules(rules: Iterable<TableRule>): Iterable<NftRule> {
  for (const { rule, comment } of rules) {
    const userdata = comment === undefined ? undefined : encodeComment(sanitizeComment(comment));
    yield { expressions: nftRuleBytes(rule), userdata };
  }
}

/** Replaces characters that nft cannot read back from a quoted comment. */
function sanitizeComment(comment: string): string {
  return comment.replaceAll(/["\\\p{Cc}]/gu, '?');
}
