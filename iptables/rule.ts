/** One iptables rule as text, and common matches and targets. */
import { ADDRESS_BITS } from '../api/addresses.ts';
import type { IpFamily, Protocol } from '../api/objects.ts';
import type { PortRange } from '../api/ports.ts';
import { type LocalDetector, nonPodClients, type TrafficOptions } from '../traffic/options.ts';

/** A condition that may be negated: `! -s 10.0.0.0/8`. */
export interface Condition {
  readonly value: string;
  readonly not?: boolean;
}

export type PortSpan = Pick<PortRange, 'from' | 'to'>;

/** One rule as values. Addresses are CIDRs or address/mask, in canonical form. */
export interface RuleSpec {
  readonly source?: Condition | undefined;
  readonly destination?: Condition | undefined;
  readonly inInterface?: Condition | undefined;
  readonly protocol?: Protocol | 'ICMP' | 'IPv6-ICMP' | undefined;
  readonly comment?: string | undefined;
  /** Destination ports, as many as `portGroups` puts together; need `protocol`. None: every port. */
  readonly ports?: readonly PortSpan[] | undefined;
  /** Further matches, as iptables-save prints them. */
  readonly matches?: readonly string[] | undefined;
  /** Target with its options. */
  readonly target: string;
  /** Whether to use `-g`: the target chain does not return to this chain. */
  readonly goto?: boolean | undefined;
}

/**
 * Text of a rule exactly as `iptables-save` prints it, so that desired and existing rules can be
 * compared as text.
 */
export function ruleText(chain: string, rule: RuleSpec): string {
  const parts = [`-A ${chain}`];
  const condition = (flag: string, value: Condition | undefined) => {
    if (value !== undefined) parts.push(`${value.not === true ? '! ' : ''}${flag} ${value.value}`);
  };
  condition('-s', rule.source);
  condition('-d', rule.destination);
  condition('-i', rule.inInterface);
  const protocol = rule.protocol?.toLowerCase();
  if (protocol !== undefined) parts.push(`-p ${protocol}`);
  if (rule.comment !== undefined) parts.push(`-m comment --comment ${quoteComment(rule.comment)}`);
  if (protocol !== undefined && rule.ports !== undefined && rule.ports.length > 0) {
    const ports = rule.ports.map(({ from, to }) => (from === to ? from : `${from}:${to}`)).join();
    parts.push(
      rule.ports.length > 1 ? `-m multiport --dports ${ports}` : `-m ${protocol} --dport ${ports}`,
    );
  }
  parts.push(...(rule.matches ?? []), `${rule.goto === true ? '-g' : '-j'} ${rule.target}`);
  return parts.join(' ');
}

/** A rule with several ports, as port ranges have; the kernel may lack the match (`xt_multiport`). */
export const SEVERAL_PORTS: RuleSpec = {
  protocol: 'TCP',
  ports: [1, 2].map((port) => ({ from: port, to: port })),
  target: 'RETURN',
};

/** Ports that one rule can match (XT_MULTI_PORTS of the kernel's xt_multiport). A range takes two. */
const PORTS_PER_RULE = 15;

/**
 * Divides ranges into groups that one rule can match. iptables-nft-restore takes as long for a rule with 15 ports as for
 * a rule with one.
 */
export function portGroups(
  ranges: readonly PortRange[],
): { readonly protocol: Protocol; readonly ports: readonly PortSpan[] }[] {
  const groups: { protocol: Protocol; ports: PortSpan[] }[] = [];
  let left = 0;
  for (const { protocol, from, to } of ranges) {
    const size = from === to ? 1 : 2;
    let group = groups.at(-1);
    if (group?.protocol !== protocol || left < size) {
      group = { protocol, ports: [] };
      groups.push(group);
      left = PORTS_PER_RULE;
    }
    group.ports.push({ from, to });
    left -= size;
  }
  return groups;
}

/** A match on exactly one address, for example `10.0.0.1/32`. */
export function exactAddress(address: string, family: IpFamily): Condition {
  return { value: `${address}/${ADDRESS_BITS[family]}` };
}

type ClientMatch = Pick<RuleSpec, 'source' | 'inInterface'>;

/**
 * Matches packets of this node's pods.
 * @param not matches all other packets instead.
 */
export function fromPods(detector: LocalDetector, not: boolean): ClientMatch {
  return detector.kind === 'cidr'
    ? { source: { value: detector.cidr, not } }
    : { inInterface: { value: detector.name, not } };
}

/** Matches packets of `nonPodClients`: at most one match; empty if there are no such clients. */
export function fromNonPodClients(
  options: Pick<TrafficOptions, 'masqueradeAll' | 'localDetector'>,
): ClientMatch[] {
  const clients = nonPodClients(options);
  if (clients === 'none') return [];
  return [clients === 'all' ? {} : fromPods(clients, true)];
}

/**
 * A comment as iptables-restore reads it: quoted, cut to 240 characters because iptables allows 255
 * bytes. Names are validated when objects are read. Unsafe characters in other text are replaced, so
 * that no comment can end its quotes or its line.
 */
function quoteComment(text: string): string {
  const safe = text.replaceAll(/[^\x20-\x7e]/g, '?').slice(0, 240);
  return `"${safe.replaceAll(/["\\]/g, '?')}"`;
}

/** A `-m statistic` match for the first of `n` equal shares, rounded as in the kernel (31 bits). */
export function statisticMatch(n: number): string {
  const probability = Math.round(0x80000000 / n) / 0x80000000;
  return `-m statistic --mode random --probability ${probability.toFixed(11)}`;
}

export function ctstateMatch(states: string): string {
  return `-m conntrack --ctstate ${states}`;
}

export function addrtypeMatch(side: 'src' | 'dst', type: 'LOCAL'): string {
  return `-m addrtype --${side}-type ${type}`;
}

/** A `-m recent` match, keyed on the source address only. */
export function recentMatch(action: string, list: string, family: IpFamily): string {
  const mask = family === 'IPv4' ? '255.255.255.255' : 'ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff';
  return `-m recent ${action} --name ${list} --mask ${mask} --rsource`;
}

export function reject(family: IpFamily): string {
  return `REJECT --reject-with ${family === 'IPv4' ? 'icmp-port-unreachable' : 'icmp6-port-unreachable'}`;
}

/** `0x4000`, as iptables prints marks. */
export function hex(mark: number): string {
  return `0x${(mark >>> 0).toString(16)}`;
}
