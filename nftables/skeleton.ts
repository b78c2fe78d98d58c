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
import type { NftStep } from '../netlink/nftables/types.ts';
import {
  ACCEPT,
  DROP,
  goTo,
  IS_MID_CONNECTION,
  IS_NEW,
  IS_TRANSLATED,
  isMarked,
  MASQUERADE,
  nftFamily,
  PORT_IS_ZERO,
  partsOf,
  protocolIs,
  RESET,
  type Rule,
  ruleBytes,
  ruleText,
  unmark,
  verdict,
} from '../nft/rule.ts';
import { type Chain, type ChainOptions, REJECT, RESET_OR_DROP } from './chains.ts';
import { localhostChains } from './localhost.ts';
import { AFFINITY, affinityText, MAP_NAMES, mapText } from './maps.ts';

/** kube-proxy's nftables mode has one of its own name. */
export const TABLE = 'portwide';

export interface SkeletonOptions extends ChainOptions {
  /** Where cluster IPs come from, when it is known: what of it no Service has is dropped. */
  readonly serviceCidrs: readonly string[];
}

/** Every chain that does not come and go with Services. */
export function standingChains(options: SkeletonOptions): Chain[] {
  const { family, masqueradeBit } = options;
  const parts = partsOf(family);
  const { destination, protocol, port, originalVip, originalPort, isIn, follow } = parts;
  const vipPort = [destination, protocol, port];
  const tcp = protocolIs('TCP');
  const isHealthPort = isIn([destination, port], 'health-ports');
  const isNodePort = isIn([destination], 'node-port-ips');

  const chain = (name: string, rules: readonly Rule[]): Chain => ({ name, rules, leadsTo: [] });
  const base = (name: string, hook: string, rules: readonly Rule[]): Chain => ({
    ...chain(name, rules),
    hook: `type ${hook}; policy accept;`,
  });
  // nft must know the protocol to know what a port is.
  const byProtocol = (rule: Rule): Rule[] => PROTOCOLS.map((each) => [protocolIs(each), ...rule]);
  // Only packets that open a connection, or the others would pay as well.
  const onNew = (untranslated: string): Rule[] => [
    [IS_NEW, IS_TRANSLATED, goTo('translated')],
    [IS_NEW, goTo(untranslated)],
  ];
  // An established connection survives ICMP errors (RFC 1122, 4.2.3.9); only a reset ends it.
  const resets: readonly Rule[] = options.resetsTcp ? [[tcp, IS_MID_CONNECTION, RESET]] : [];
  const services = verdict({ kind: 'jump', chain: 'services' });
  const served: Rule[] = [[IS_TRANSLATED, goTo('served')]];
  return [
    chain(REJECT, [...resets, [parts.reject]]),
    ...(options.resetsTcp ? [chain(RESET_OR_DROP, [...resets, [DROP]])] : []),
    ...(options.rejectsOnLocalhost ? localhostChains() : []),
    chain('services', [
      [tcp, isHealthPort, ACCEPT],
      [follow(vipPort, 'service-ports')],
      [follow(vipPort, 'service-ranges')],
      [follow([destination], 'service-ips')],
      [isNodePort, follow([protocol, port], 'node-ports')],
    ]),
    chain('translated', [
      // All-ports means 1 to 65535 (KEP-2610). No other Service translates to port 0 either.
      ...byProtocol([PORT_IS_ZERO, DROP]),
    ]),
    chain('served', [
      ...byProtocol([follow([originalVip, protocol, originalPort], 'sticky-ports')]),
      ...byProtocol([follow([originalVip, protocol, originalPort], 'sticky-ranges')]),
      [follow([originalVip], 'sticky-ips')],
      ...byProtocol([
        isIn([originalVip], 'node-port-ips'),
        follow([protocol, originalPort], 'sticky-node-ports'),
      ]),
    ]),
    chain('untranslated', [
      [tcp, isHealthPort, ACCEPT],
      [follow(vipPort, 'port-fates')],
      [follow(vipPort, 'range-fates')],
      [follow([destination], 'ip-fates')],
      [isIn([destination], 'ranged-ips'), goTo(REJECT)],
      [isNodePort, follow([protocol, port], 'node-port-fates')],
    ]),
    // Not on the way in: an address that the node holds may have listeners there (NodeLocal DNSCache).
    chain('untranslated-elsewhere', [
      [verdict({ kind: 'jump', chain: 'untranslated' })],
      [isIn([destination], 'cluster-ips'), goTo(REJECT)],
      ...options.serviceCidrs.map((cidr) => [parts.destinationIs(cidr), DROP]),
    ]),
    base('nat-prerouting', 'nat hook prerouting priority dstnat', [[services]]),
    base('nat-output', 'nat hook output priority -100', [[services]]),
    // In nat, where only the first packet of a connection comes by: those that follow unanswered would
    // note an endpoint anew that has gone. Before masquerade, for the client's address.
    base('nat-input-served', 'nat hook input priority 99', served),
    base('nat-postrouting-served', 'nat hook postrouting priority 99', served),
    base('nat-postrouting', 'nat hook postrouting priority srcnat', [
      [IS_TRANSLATED, isIn([parts.source, destination], 'hairpins'), MASQUERADE],
      // Cleared, so that a packet that is encapsulated and comes by again is not masqueraded twice.
      [isMarked(masqueradeBit), unmark(masqueradeBit), MASQUERADE],
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
export function declarations(chains: readonly Chain[], family: IpFamily): string {
  return [
    `table ${nftFamily(family)} ${TABLE} {`,
    ...MAP_NAMES.map((name) => `  ${mapText(name, family)}`),
    ...[...affinitiesOf(chains)].map((name) => `  ${affinityText(name, family)}`),
    ...[...countersOf(chains)].map((name) => `  counter ${name} { }`),
    ...chains.map(({ name, hook = '' }) => `  chain ${name} { ${hook} }`),
    '}',
    '',
  ].join('\n');
}

/** The maps that packets write. */
export function affinitiesOf(chains: Iterable<Chain>): Set<string> {
  return new Set([AFFINITY, ...[...chains].flatMap(({ affinity }) => affinity ?? [])]);
}

export function countersOf(chains: Iterable<Chain>): Set<string> {
  return new Set([...chains].flatMap(({ counter }) => counter ?? []));
}

/** A script for nft that gives these chains their rules, in one transaction with the rest. */
export function rulesText(chains: readonly Chain[], family: IpFamily): string {
  const table = `${nftFamily(family)} ${TABLE}`;
  return [
    ...chains.map(({ name }) => `flush chain ${table} ${name}`),
    ...chains.flatMap(({ name, rules }) =>
      rules.map((rule) => `add rule ${table} ${name} ${ruleText(rule)}`),
    ),
    '',
  ].join('\n');
}

/** The same for the kernel, which makes chains that are not there. */
export function fills(chains: Iterable<Chain>): NftStep[] {
  return [...chains].map(({ name, rules }) => ({
    action: 'fill',
    chain: { name, rules: rules.map((rule) => ({ expressions: ruleBytes(rule) })) },
  }));
}
