/**
 * What stands on every node that enforces policy. A packet that begins a connection:
 *
 *   forward ─ own? ─ egress-pods, by source ─► the chain of its policy set: dropped, or back here
 *                  └ ingress-pods, by destination ─► the same
 *   input ─── egress-pods alone: of the node itself only pods are subjects
 *   output ── as forward, unless the node itself sends it
 *
 * Destinations are translated by then, and sources not yet. What belongs to a connection that was let
 * through passes before any of it, replies included.
 *
 * - On input comes last what IPVS does not take (its hook is 99): a VIP of IPVS is an address of the
 *   node, and what goes there comes by once more in output, translated, with the source of a pod.
 * - In forward and output Services come first (0), which reject what has no endpoint.
 * - Pods on a bridge of the node pass by here with br_netfilter only
 *   (`net.bridge.bridge-nf-call-iptables`), as they do for Services.
 * - Neighbour discovery is never judged. Nor is what pods send without an address of their own: DHCP,
 *   router solicitation, MLD come from `0.0.0.0`, `::` or a link-local address.
 */
import type { IpFamily } from '../../api/objects.ts';
import { encodeComment } from '../../netlink/nftables/comment.ts';
import type { NftChainRules, NftCounter, NftRule } from '../../netlink/nftables/tables.ts';
import {
  ACCEPT,
  countPacket,
  DROP,
  goTo,
  IS_FROM_NODE,
  nftFamily,
  nftRuleBytes,
  nftRuleText,
  type RuleParts,
  rulePartsFor,
} from '../../nft/rule.ts';
import { DIRECTIONS, type Direction, type RuleVerdict } from '../model/terms.ts';
import {
  HAS_NO_PORTS,
  HAS_PORTS,
  IS_ESTABLISHED,
  IS_NEIGHBOUR_DISCOVERY,
  logToGroup,
  RETURN,
} from './expressions.ts';

export const POLICY_TABLE = 'portwide-policy';
/** Stands in for that one while it is made anew. */
export const STAGING_TABLE = 'portwide-policy-guard';
export const POLICY_TABLES: readonly string[] = [POLICY_TABLE, STAGING_TABLE];
/** A chain without rules, of a table that has everything. */
export const COMMIT_MARKER = 'complete';

export interface PolicyTableOptions {
  readonly family: IpFamily;
  /** The group of nflog that hears of denied packets, 0 to 65535; undefined: none. */
  readonly logGroup?: number | undefined;
}

/** A rule, and why it is there. */
export interface TableRule {
  readonly rule: RuleParts;
  readonly comment?: string;
}

/** A chain of the table. */
export interface TableChain {
  readonly name: string;
  /** What the kernel calls it for, as nft says it; undefined: other chains or maps lead to it. */
  readonly hook?: string;
  readonly lines: Iterable<TableRule>;
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

/** Drops what is denied. */
export function denyChain(denial: DenyVerdict, direction: Direction): string {
  return `${denial}-${direction}`;
}

/** Drops what has ports that cannot be read, and returns all else. */
export function unparsablePortsChain(denial: DenyVerdict, direction: Direction): string {
  return `unreadable-${denyChain(denial, direction)}`;
}

/**
 * Sets and maps in nft's words, `IP` for the family. Numbers of lists are typed as something of 32 bits in
 * network order, which nft prints in decimal: a mark has the order of the host, and nft 1.0.6 takes and
 * prints it the wrong way round in sets of intervals.
 */
const SETS = {
  peers: 'set peers { typeof ct id . IP daddr; }',
  networks: 'set networks { typeof ct id . IP daddr; flags interval; }',
  learned: 'set learned { typeof ct id . IP daddr; flags timeout; }',
  ports: 'set ports { typeof ct id . meta l4proto . th dport; flags interval; }',
  'named-ports': 'set named-ports { typeof ct id . IP daddr . meta l4proto . th dport; }',
  own: 'set own { typeof IP saddr . IP daddr; }',
  'ingress-pods': 'map ingress-pods { typeof IP daddr : verdict; }',
  'egress-pods': 'map egress-pods { typeof IP saddr : verdict; }',
  /** For the agent alone: which names led to an address. Two numbers are a hash of the name. */
  answers: 'set answers { typeof IP daddr . ct id . ct id; flags timeout; }',
} as const;

export type NftSetName = keyof typeof SETS;
export const NFT_SET_NAMES = Object.keys(SETS) as readonly NftSetName[];

/**
 * Every chain that is no policy set's.
 * @param priorityOffset by how much the kernel asks base chains later than they are meant to be.
 */
export function staticChains(
  { family, logGroup }: PolicyTableOptions,
  priorityOffset: 0 | 1 = 0,
): TableChain[] {
  const { source, destination, inSet, verdictMap } = rulePartsFor(family);
  const known: RuleParts = [IS_ESTABLISHED, ACCEPT];
  const discovery: RuleParts[] = family === 'IPv6' ? [[IS_NEIGHBOUR_DISCOVERY, ACCEPT]] : [];
  const egress: RuleParts = [verdictMap([source], 'egress-pods')];
  const judged: RuleParts[] = [
    [inSet([source, destination], 'own'), ACCEPT],
    egress,
    [verdictMap([destination], 'ingress-pods')],
  ];
  const base = (name: string, priority: number, rules: readonly RuleParts[]): TableChain => ({
    ...chain(name, rules),
    hook: `type filter hook ${name} priority ${priority + priorityOffset}; policy accept;`,
  });
  return [
    base('forward', 10, [known, ...discovery, ...judged]),
    base('input', 110, [known, ...discovery, egress]),
    base('output', 10, [known, [IS_FROM_NODE, ACCEPT], ...judged]),
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

function chain(name: string, rules: readonly RuleParts[]): TableChain {
  return { name, lines: rules.map((rule) => ({ rule })) };
}

/** What a counter has counted. */
export type CounterValues = ReadonlyMap<string, Pick<NftCounter, 'packets' | 'bytes'>>;

/**
 * A script for nft that makes a table anew, but for rules and elements: nothing is judged by it yet.
 * @param counts what its counters begin with.
 */
export function policyTableScript(
  name: string,
  { family }: PolicyTableOptions,
  chains: readonly TableChain[],
  counts: CounterValues,
): string {
  const ip = nftFamily(family);
  const counters = DENIED_DIRECTIONS.map(([denial, direction]) => {
    const counter = denyChain(denial, direction);
    const { packets = 0n, bytes = 0n } = counts.get(counter) ?? {};
    return `counter ${counter} { packets ${packets} bytes ${bytes}; }`;
  });
  return [
    // To delete one that is not there would be an error.
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

/** A script for nft that makes such a table under a name that nobody has, to see whether it would be taken. */
export function policyProbeScript(options: PolicyTableOptions): string {
  const chains = staticChains(options);
  const name = `${POLICY_TABLE}-probe`;
  const table = `${nftFamily(options.family)} ${name}`;
  const rules = chains
    .filter(({ hook }) => hook !== undefined)
    .flatMap(({ name: chain, lines }) =>
      [...lines].map(({ rule }) => `add rule ${table} ${chain} ${nftRuleText(rule)}`),
    );
  return [policyTableScript(name, options, chains, new Map()), ...rules, ''].join('\n');
}

/** A chain as the kernel gets it. Its rules are made as they are asked for. */
export function nftChainRules({ name, lines }: TableChain): NftChainRules {
  return { name, rules: rulesOf(lines) };
}

function* rulesOf(lines: Iterable<TableRule>): Iterable<NftRule> {
  for (const { rule, comment } of lines) {
    const userdata = comment === undefined ? undefined : encodeComment(sanitizeComment(comment));
    yield { expressions: nftRuleBytes(rule), userdata };
  }
}

/** nft prints comments between quotes and reads no others. */
function sanitizeComment(comment: string): string {
  return comment.replaceAll(/["\\\p{Cc}]/gu, '?');
}
