/**
 * Base chains and static rules of table `portwide`, the same for any Services. The path of a packet to a VIP
 * or node port:
 *
 *   nat prerouting, output ─ services ─ lookup of VIP and port, VIP with ranges, VIP, node port
 *                            │            └─► lookup of ranges, then VIP (`range-chains.ts`)
 *                            └─► dispatch chain ─► random endpoint ─► DNAT
 *   filter input, forward, output, new connections only
 *     not translated ─────── service-endpoints-check: reject or drop packets to VIPs
 *   nat input, postrouting ─ update-affinity; masquerade
 *
 * The number of lookups for a packet does not depend on the number of Services. Most maps are hash tables.
 */
import { type IpFamily, PROTOCOLS } from '../api/objects.ts';
import { baseAt, PRIORITY } from '../netlink/nftables/hooks.ts';
import type { NftBaseChain, NftOperation } from '../netlink/nftables/types.ts';
import { type Declaration, declarationText } from '../nft/declaration.ts';
import {
  ACCEPT,
  clearMarkBit,
  DROP,
  goTo,
  HAS_DNAT,
  hasMarkBit,
  IS_MID_CONNECTION,
  IS_NEW,
  MASQUERADE,
  nftFamily,
  nftRuleBytes,
  nftRuleText,
  PORT_IS_ZERO,
  protocolIs,
  type RuleParts,
  rulePartsFor,
  TCP_RESET,
  verdict,
} from '../nft/rule.ts';
import { type ChainOptions, type NftChain, REJECT_CHAIN, RESET_OR_DROP_CHAIN } from './chains.ts';
import { flowtableChains, flowtableDeclarations } from './flowtable.ts';
import { localhostChains } from './localhost.ts';
import {
  AFFINITY_MAP,
  affinityMapDeclaration,
  MAP_NAMES,
  type MapName,
  mapDeclaration,
} from './maps.ts';

/** Name of the table in families ip and ip6. kube-proxy's nftables mode uses table `kube-proxy`. */
export const TABLE = 'portwide';

/** Name of the chain that rejects or drops packets to cluster IPs; its rules depend on the Service CIDRs. */
export const CLUSTER_IPS_CHAIN = 'cluster-ips-check';

const BEFORE_SRCNAT = PRIORITY.srcnat - 1;

/** Settings and the IP family that the static rules depend on. */
export interface StaticChainOptions extends ChainOptions {
  /**
   * The Service CIDRs, if known. Forwarded packets and packets from this node are dropped if their destination is in
   * these CIDRs and no Service has it.
   */
  readonly serviceCidrs: readonly string[];
}

/** All chains that do not depend on Services. */
export function staticServiceChains(options: StaticChainOptions): NftChain[] {
  const { family, masqueradeBit } = options;
  const parts = rulePartsFor(family);
  const { destination, protocol, port, originalVip, originalPort, inSet, verdictMap } = parts;
  const vipPort = [destination, protocol, port];
  const tcp = protocolIs('TCP');
  const isHealthPort = inSet([destination, port], 'health-check-node-ports');
  const isNodePort = inSet([destination], 'node-port-ips');

  const chain = (name: string, rules: readonly RuleParts[]): NftChain => ({
    name,
    rules,
    jumpTargets: [],
  });
  const base = (name: string, at: NftBaseChain, rules: readonly RuleParts[]): NftChain => ({
    ...chain(name, rules),
    base: at,
  });
  // nft accepts a port field only after a match on the protocol.
  const byProtocol = (rule: RuleParts): RuleParts[] =>
    PROTOCOLS.map((each) => [protocolIs(each), ...rule]);
  // New connections only, so that established connections do not pay for these lookups.
  const onNew = (checkChain: string): RuleParts[] => [
    [IS_NEW, HAS_DNAT, goTo('drop-port-zero')],
    [IS_NEW, goTo(checkChain)],
  ];
  // TCP stacks keep an established connection on ICMP port unreachable (RFC 5927, 5.2); only a reset ends it.
  const resets: readonly RuleParts[] = options.resetsTcp
    ? [[tcp, IS_MID_CONNECTION, TCP_RESET]]
    : [];
  const services = verdict({ kind: 'jump', chain: 'services' });
  const updateAffinity: RuleParts[] = [[HAS_DNAT, goTo('update-affinity')]];
  return [
    chain(REJECT_CHAIN, [...resets, [parts.reject]]),
    ...(options.resetsTcp ? [chain(RESET_OR_DROP_CHAIN, [...resets, [DROP]])] : []),
    ...(options.rejectsOnLocalhost ? localhostChains() : []),
    chain('services', [
      [tcp, isHealthPort, ACCEPT],
      [verdictMap(vipPort, 'service-ports')],
      [verdictMap([destination], 'range-vips')],
      [verdictMap([destination], 'service-ips')],
      [isNodePort, verdictMap([protocol, port], 'node-ports')],
    ]),
    chain('drop-port-zero', [
      // All ports means 1 to 65535 (KEP-2610). No other Service translates to port 0 either.
      ...byProtocol([PORT_IS_ZERO, DROP]),
    ]),
    chain('update-affinity', [
      ...byProtocol([verdictMap([originalVip, protocol, originalPort], 'affinity-update-ports')]),
      [verdictMap([originalVip], 'affinity-update-range-vips')],
      [verdictMap([originalVip], 'affinity-update-ips')],
      ...byProtocol([
        inSet([originalVip], 'node-port-ips'),
        verdictMap([protocol, originalPort], 'affinity-update-node-ports'),
      ]),
    ]),
    chain('service-endpoints-check', [
      [tcp, isHealthPort, ACCEPT],
      [verdictMap(vipPort, 'no-endpoint-ports')],
      [verdictMap([destination], 'no-endpoint-range-vips')],
      [verdictMap([destination], 'no-endpoint-ips')],
      [inSet([destination], 'service-range-ips'), goTo(REJECT_CHAIN)],
      [isNodePort, verdictMap([protocol, port], 'no-endpoint-node-ports')],
    ]),
    // Not in hook input: the node may hold the VIP and listen on it (NodeLocal DNSCache).
    chain(CLUSTER_IPS_CHAIN, [
      [verdict({ kind: 'jump', chain: 'service-endpoints-check' })],
      [inSet([destination], 'cluster-ips'), goTo(REJECT_CHAIN)],
      ...options.serviceCidrs.map((cidr) => [parts.destinationIs(cidr), DROP]),
    ]),
    base('nat-prerouting', baseAt('nat', 'prerouting', PRIORITY.dstnat), [[services]]),
    base('nat-output', baseAt('nat', 'output', PRIORITY.dstnat), [[services]]),
    // Type nat, because a nat chain sees only the first packet of a connection. Later packets of an unanswered
    // UDP flow are still in state new, and would add the affinity entry of a removed endpoint again. The priority
    // is before masquerade, while the packet still has the client's address.
    base('nat-input-affinity', baseAt('nat', 'input', BEFORE_SRCNAT), updateAffinity),
    base('nat-postrouting-affinity', baseAt('nat', 'postrouting', BEFORE_SRCNAT), updateAffinity),
    base('nat-postrouting', baseAt('nat', 'postrouting', PRIORITY.srcnat), [
      [HAS_DNAT, inSet([parts.source, destination], 'hairpin-connections'), MASQUERADE],
      // Clear the mark: an encapsulated packet passes this hook again and would be masqueraded twice.
      [hasMarkBit(masqueradeBit), clearMarkBit(masqueradeBit), MASQUERADE],
    ]),
    base(
      'filter-input',
      baseAt('filter', 'input', PRIORITY.filter),
      onNew('service-endpoints-check'),
    ),
    base('filter-forward', baseAt('filter', 'forward', PRIORITY.filter), onNew(CLUSTER_IPS_CHAIN)),
    base('filter-output', baseAt('filter', 'output', PRIORITY.filter), onNew(CLUSTER_IPS_CHAIN)),
    ...(options.usesFlowtable ? flowtableChains(family) : []),
  ];
}

/** The maps, counters and chains of a table with these chains, without rules. */
export function tableDeclarations(chains: readonly NftChain[], family: IpFamily): Declaration[] {
  return [
    ...[...MAP_NAMES, ...onDemandMapsOf(chains)].map((name) => mapDeclaration(name, family)),
    ...[...affinityMapsOf(chains)].map((name) => affinityMapDeclaration(name, family)),
    ...[...countersOf(chains)].map((name) => ({ kind: 'counter', name }) as const),
    ...(needsFlowtable(chains) ? flowtableDeclarations(family) : []),
    ...chains.map(({ name, base }) => ({ kind: 'chain', name, base }) as const),
  ];
}

/** The declarations as a script for nft. */
export function tableDeclarationScript(chains: readonly NftChain[], family: IpFamily): string {
  return [
    `table ${nftFamily(family)} ${TABLE} {`,
    ...tableDeclarations(chains, family).map((declared) => `  ${declarationText(declared)}`),
    '}',
    '',
  ].join('\n');
}

/** Names of the affinity maps that the chains refer to; always includes `AFFINITY_MAP`. */
export function affinityMapsOf(chains: Iterable<NftChain>): Set<string> {
  return new Set([AFFINITY_MAP, ...[...chains].flatMap(({ affinity }) => affinity ?? [])]);
}

/** Names of the maps that exist only while the chains refer to them. */
export function onDemandMapsOf(chains: Iterable<NftChain>): Set<MapName> {
  return new Set([...chains].flatMap(({ maps }) => maps ?? []));
}

/** Names of the counters that the chains refer to. */
export function countersOf(chains: Iterable<NftChain>): Set<string> {
  return new Set([...chains].flatMap(({ counter }) => counter ?? []));
}

/** Whether the chains refer to the flowtable. */
export function needsFlowtable(chains: Iterable<NftChain>): boolean {
  return [...chains].some(({ usesFlowtable }) => usesFlowtable);
}

/** A script for nft that replaces the rules of the chains. */
export function chainRulesScript(chains: readonly NftChain[], family: IpFamily): string {
  const table = `${nftFamily(family)} ${TABLE}`;
  return [
    ...chains.map(({ name }) => `flush chain ${table} ${name}`),
    ...chains.flatMap(({ name, rules }) =>
      rules.map((rule) => `add rule ${table} ${name} ${nftRuleText(rule)}`),
    ),
    '',
  ].join('\n');
}

/** Netlink operations that replace the rules of the chains, and create missing chains. */
export function chainRuleOperations(chains: Iterable<NftChain>): NftOperation[] {
  return [...chains].map(({ name, rules }) => ({
    action: 'fill',
    chain: { name, rules: rules.map((rule) => ({ expressions: nftRuleBytes(rule) })) },
  }));
}
