/** One iptables rule as text, and common matches and targets. */
import { ADDRESS_BITS } from '../api/addresses.ts';
import type { IpFamily, Protocol } from '../api/objects.ts';
import { type LocalDetector, nonPodClients, type TrafficOptions } from '../traffic/options.ts';

/** A condition that may be negated: `! -s 10.0.0.0/8`. */
export interface Condition {
  readonly value: string;
  readonly not?: boolean;
}

/** One rule as values. Addresses are CIDRs or address/mask, in canonical form. */
export interface RuleSpec {
  readonly source?: Condition | undefined;
  readonly destination?: Condition | undefined;
  readonly inInterface?: Condition | undefined;
  readonly protocol?: Protocol | 'ICMP' | 'IPv6-ICMP' | undefined;
  readonly comment?: string | undefined;
  /** Destination port or port range; needs `protocol`. */
  readonly ports?: { readonly from: number; readonly to: number } | undefined;
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
  if (protocol !== undefined && rule.ports !== undefined) {
    const { from, to } = rule.ports;
    parts.push(`-m ${protocol} --dport ${from === to ? from : `${from}:${to}`}`);
  }
  parts.push(...(rule.matches ?? []), `${rule.goto === true ? '-g' : '-j'} ${rule.target}`);
  return parts.join(' ');
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
