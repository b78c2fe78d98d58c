/**
 * What stands on every node whatever Services there are. What a packet to a VIP or node port does:
 *
 *   nat prerouting, output ─ services ─ VIP and port, VIP and range, VIP, node port
 *                            └─► a chain for the way it is treated ─► an endpoint by lot ─► DNAT
 *   filter input, forward, output, new connections only
 *     not translated ─────── to a VIP of ours: rejected or dropped
 *   nat input, postrouting ─ session affinity is noted; masquerade
 *
 * Looked up by hash, a packet's way is as long with ten thousand Services as with one.
 */
import { type IpFamily, PROTOCOLS } from '../api/objects.ts';
import type { NftOperation } from '../netlink/nftables/types.ts';
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
import { localhostChains } from './localhost.ts';
import { AFFINITY_MAP, affinityMapDeclaration, MAP_NAMES, mapDeclaration } from './maps.ts';

/** kube-proxy's nftables mode has one of its own name. */
export const TABLE = 'portwide';

export interface StaticChainOptions extends ChainOptions {
  /** Where cluster IPs come from, when it is known: what of it no Service has is dropped. */
  readonly serviceCidrs: readonly string[];
}

/** Every chain that does not come and go with Services. */
export function staticServiceChains(options: StaticChainOptions): NftChain[] {
  const { family, masqueradeBit } = options;
  const parts = rulePartsFor(family);
  const { destination, protocol, port, originalVip, originalPort, inSet, verdictMap } = parts;
  const vipPort = [destination, protocol, port];
  const tcp = protocolIs('TCP');
  const isHealthPort = inSet([destination, port], 'health-ports');
  const isNodePort = inSet([destination], 'node-port-ips');

  const chain = (name: string, rules: readonly RuleParts[]): NftChain => ({
    name,
    rules,
    jumpTargets: [],
  });
  const base = (name: string, hook: string, rules: readonly RuleParts[]): NftChain => ({
    ...chain(name, rules),
    hook: `type ${hook}; policy accept;`,
  });
  // nft must know the protocol to know what a port is.
  const byProtocol = (rule: RuleParts): RuleParts[] =>
    PROTOCOLS.map((each) => [protocolIs(each), ...rule]);
  // Only packets that open a connection, or the others would pay as well.
  const onNew = (untranslated: string): RuleParts[] => [
    [IS_NEW, HAS_DNAT, goTo('translated')],
    [IS_NEW, goTo(untranslated)],
  ];
  // An established connection survives ICMP errors (RFC 1122, 4.2.3.9); only a reset ends it.
  const resets: readonly RuleParts[] = options.resetsTcp
    ? [[tcp, IS_MID_CONNECTION, TCP_RESET]]
    : [];
  const services = verdict({ kind: 'jump', chain: 'services' });
  const served: RuleParts[] = [[HAS_DNAT, goTo('served')]];
  return [
    chain(REJECT_CHAIN, [...resets, [parts.reject]]),
    ...(options.resetsTcp ? [chain(RESET_OR_DROP_CHAIN, [...resets, [DROP]])] : []),
    ...(options.rejectsOnLocalhost ? localhostChains() : []),
    chain('services', [
      [tcp, isHealthPort, ACCEPT],
      [verdictMap(vipPort, 'service-ports')],
      [verdictMap(vipPort, 'service-ranges')],
      [verdictMap([destination], 'service-ips')],
      [isNodePort, verdictMap([protocol, port], 'node-ports')],
    ]),
    chain('translated', [
      // All-ports means 1 to 65535 (KEP-2610). No other Service translates to port 0 either.
      ...byProtocol([PORT_IS_ZERO, DROP]),
    ]),
    chain('served', [
      ...byProtocol([verdictMap([originalVip, protocol, originalPort], 'sticky-ports')]),
      ...byProtocol([verdictMap([originalVip, protocol, originalPort], 'sticky-ranges')]),
      [verdictMap([originalVip], 'sticky-ips')],
      ...byProtocol([
        inSet([originalVip], 'node-port-ips'),
        verdictMap([protocol, originalPort], 'sticky-node-ports'),
      ]),
    ]),
    chain('untranslated', [
      [tcp, isHealthPort, ACCEPT],
      [verdictMap(vipPort, 'port-fates')],
      [verdictMap(vipPort, 'range-fates')],
      [verdictMap([destination], 'ip-fates')],
      [inSet([destination], 'ranged-ips'), goTo(REJECT_CHAIN)],
      [isNodePort, verdictMap([protocol, port], 'node-port-fates')],
    ]),
    // Not on the way in: an address that the node holds may have listeners there (NodeLocal DNSCache).
    chain('untranslated-elsewhere', [
      [verdict({ kind: 'jump', chain: 'untranslated' })],
      [inSet([destination], 'cluster-ips'), goTo(REJECT_CHAIN)],
      ...options.serviceCidrs.map((cidr) => [parts.destinationIs(cidr), DROP]),
    ]),
    base('nat-prerouting', 'nat hook prerouting priority dstnat', [[services]]),
    base('nat-output', 'nat hook output priority -100', [[services]]),
    // In nat, where only the first packet of a connection comes by: those that follow unanswered would
    // note an endpoint anew that has gone. Before masquerade, for the client's address.
    base('nat-input-served', 'nat hook input priority 99', served),
    base('nat-postrouting-served', 'nat hook postrouting priority 99', served),
    base('nat-postrouting', 'nat hook postrouting priority srcnat', [
      [HAS_DNAT, inSet([parts.source, destination], 'hairpins'), MASQUERADE],
      // Cleared, so that a packet that is encapsulated and comes by again is not masqueraded twice.
      [hasMarkBit(masqueradeBit), clearMarkBit(masqueradeBit), MASQUERADE],
    ]),
    base('filter-input', 'filter hook input priority filter', onNew('untranslated')),
    base('filter-forward', 'filter hook forward priority filter', onNew('untranslated-elsewhere')),
    base('filter-output', 'filter hook output priority filter', onNew('untranslated-elsewhere')),
  ];
}

/**
 * A script for nft that brings the table, the maps, counters and chains that hooks call, without rules; a
 * table that has them stays as it is, and its counters go on.
 */
export function tableDeclarations(chains: readonly NftChain[], family: IpFamily): string {
  return [
    `table ${nftFamily(family)} ${TABLE} {`,
    ...MAP_NAMES.map((name) => `  ${mapDeclaration(name, family)}`),
    ...[...affinityMapsOf(chains)].map((name) => `  ${affinityMapDeclaration(name, family)}`),
    ...[...countersOf(chains)].map((name) => `  counter ${name} { }`),
    ...chains.map(({ name, hook = '' }) => `  chain ${name} { ${hook} }`),
    '}',
    '',
  ].join('\n');
}

/** The maps that packets write. */
export function affinityMapsOf(chains: Iterable<NftChain>): Set<string> {
  return new Set([AFFINITY_MAP, ...[...chains].flatMap(({ affinity }) => affinity ?? [])]);
}

export function countersOf(chains: Iterable<NftChain>): Set<string> {
  return new Set([...chains].flatMap(({ counter }) => counter ?? []));
}

/** A script for nft that gives these chains their rules, in one transaction with the rest. */
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

/** The same for the kernel, which makes chains that are not there. */
export function chainFills(chains: Iterable<NftChain>): NftOperation[] {
  return [...chains].map(({ name, rules }) => ({
    action: 'fill',
    chain: { name, rules: rules.map((rule) => ({ expressions: nftRuleBytes(rule) })) },
  }));
}
