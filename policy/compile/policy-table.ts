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
import type { Hook } from '../../netlink/nftables/hooks.ts';
import type { NftChainRules, NftCounter, NftRule } from '../../netlink/nftables/tables.ts';
import {
  ACCEPT,
  countPacket,
  DROP,
  goTo,
  IS_FROM_NODE,
  IS_UNTRACKED,
  type LookupKey,
  nftFamily,
  nftRuleBytes,
  nftRuleText,
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
  /** Type, hook, priority and policy of a base chain in nft syntax; undefined for other chains. */
  readonly hook?: string;
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

/**
 * Declarations of sets and maps in nft syntax; `IP` stands for the family. List ids have the type
 * of `ct id`: 32 bits in network byte order, printed in decimal. The type `mark` is unsuitable: it
 * has host byte order, which nft 1.0.6 reads and prints byte-swapped in interval sets.
 */
const SETS = {
  peers: 'set peers { typeof ct id . IP daddr; }',
  networks: 'set networks { typeof ct id . IP daddr; flags interval; }',
  'fqdn-peers': 'set fqdn-peers { typeof ct id . IP daddr; flags timeout; }',
  ports: 'set ports { typeof ct id . meta l4proto . th dport; flags interval; }',
  'named-ports': 'set named-ports { typeof ct id . IP daddr . meta l4proto . th dport; }',
  'hairpin-pods': 'set hairpin-pods { typeof IP saddr . IP daddr; }',
  'ingress-pods': 'map ingress-pods { typeof IP daddr : verdict; }',
  'egress-pods': 'map egress-pods { typeof IP saddr : verdict; }',
  /** Pods of this node that a policy selects. */
  'selected-pods': 'set selected-pods { typeof IP saddr; }',
  /** VIPs of Services with ports owned by pods: the source of packets from owners of other nodes. */
  'owned-vips': 'set owned-vips { typeof IP saddr; }',
  /** Untracked UDP packets that answer an allowed packet. Written by rules only. */
  'udp-answers': `set udp-answers { typeof IP saddr . IP daddr . th sport . th dport; flags dynamic,timeout; timeout ${ANSWER_SECONDS}s; size ${MAX_ANSWERS}; }`,
  /** Answers to packets of a pod that may come from a VIP, whichever it is. Written by rules only. */
  'vip-answers': `set vip-answers { typeof IP daddr . th sport . th dport; flags dynamic,timeout; timeout ${ANSWER_SECONDS}s; size ${MAX_ANSWERS}; }`,
  /** Pods of this node that no policy with domain names selects: their DNS packets are not queued. */
  'dns-bypass': 'set dns-bypass { typeof IP saddr; }',
  /** Resolvers, while the agent reads the queue of DNS packets. */
  'dns-resolvers': 'set dns-resolvers { typeof IP saddr; flags timeout; }',
  /**
   * The FQDN cache, which survives agent restarts. No rule uses the set. The two fields `ct id`
   * hold a hash of the name.
   */
  'fqdn-cache': 'set fqdn-cache { typeof IP daddr . ct id . ct id; flags timeout; }',
} as const;

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
    hook: `type filter hook ${hook} priority ${priority + priorityOffset}; policy accept;`,
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
 * An nft script that replaces a table with its sets, maps, chains and counters, without rules and
 * elements. The table accepts every packet until its base chains get rules.
 * @param counts Initial values of the counters; default 0.
 */
export function policyTableScript(
  name: string,
  { family }: PolicyTableOptions,
  chains: readonly TableChain[],
  counts: CounterValues,
): string {
  const ip = nftFamily(family);
  const denied = DENIED_DIRECTIONS.map(([denial, direction]) => denyChain(denial, direction));
  const counters = [...denied, FORGED_ANSWERS_COUNTER].map((counter) => {
    const { packets = 0n, bytes = 0n } = counts.get(counter) ?? {};
    return `counter ${counter} { packets ${packets} bytes ${bytes}; }`;
  });
  return [
    // Add the table first: deleting a missing table is an error.
    `table ${ip} ${name}`,
    `delete table ${ip} ${name}`,
    `table ${ip} ${name} {`,
    ...counters.map((line) => `  ${line}`),
    ...Object.values(SETS).map((text) => `  ${text.replaceAll('IP ', `${ip} `)}`),
    ...chains.map(({ name: chain, hook = '' }) => `  chain ${chain} { ${hook} }`),
    '}',
    '',
  ].join('\n');
}

/**
 * An nft script that creates the policy table under an unused name, to check that nft and the
 * kernel accept it.
 */
export function policyProbeScript(options: PolicyTableOptions): string {
  const chains = staticChains(options);
  const name = `${POLICY_TABLE}-probe`;
  const table = `${nftFamily(options.family)} ${name}`;
  const ruleCommands = chains
    .filter(({ hook }) => hook !== undefined)
    .flatMap(({ name: chain, rules }) =>
      [...rules].map(({ rule }) => `add rule ${table} ${chain} ${nftRuleText(rule)}`),
    );
  return [policyTableScript(name, options, chains, new Map()), ...ruleCommands, ''].join('\n');
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
