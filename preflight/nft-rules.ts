/** Reads the JSON of `nft list table` (libnftables-json(5)) as rules of a packet walk. */
import { canonicalAddress, canonicalCidr } from '../api/addresses.ts';
import { isRecord } from '../api/read-field.ts';
import { HOOKS } from '../netlink/nftables/hooks.ts';
import type { BaseChain, Match, Rule, Verdict } from './packet-walk.ts';

/** A base chain as `nft --json list chains` prints it. */
export interface NftBaseChain {
  readonly family: string;
  readonly table: string;
  readonly name: string;
  readonly type: string;
  readonly hook: string;
  readonly priority: number;
  readonly policy: 'accept' | 'drop';
}

type Json = Readonly<Record<string, unknown>>;

/** The base chains in the output of `nft --json list chains`. @throws SyntaxError */
export function nftBaseChains(output: string): NftBaseChain[] {
  return objectsOf(output, 'chain').flatMap((chain) =>
    typeof chain.hook !== 'string'
      ? []
      : [
          {
            family: String(chain.family),
            table: String(chain.table),
            name: String(chain.name),
            type: String(chain.type),
            hook: chain.hook,
            priority: Number(chain.prio),
            policy: chain.policy === 'drop' ? 'drop' : 'accept',
          },
        ],
  );
}

/**
 * The base chains of a table that may drop or masquerade packets; those without rules in families netdev and bridge do
 * nothing, and are left out.
 * @param output of `nft --json list table FAMILY TABLE`.
 * @throws SyntaxError
 */
export function nftChains(output: string): BaseChain[] {
  const chains = new Map<string, Rule[]>();
  const counts = new Map<string, number>();
  for (const rule of objectsOf(output, 'rule')) {
    const name = String(rule.chain);
    const rules = chains.get(name) ?? [];
    const position = (counts.get(name) ?? 0) + 1;
    counts.set(name, position);
    const named = { name: ruleName(rule, position) };
    const read = rulesOf(Array.isArray(rule.expr) ? rule.expr : []);
    rules.push(...read.map((each) => ({ ...each, ...named })));
    chains.set(name, rules);
  }
  return nftBaseChains(output).flatMap(({ type, hook, ...given }): BaseChain[] => {
    const { family, table, name, priority, policy } = given;
    // Chains that translate destinations drop nothing.
    if (type === 'nat' && hook !== 'postrouting') return [];
    const base = { table: `${family} ${table}`, chain: name, priority, policy, chains };
    const known = FAMILIES.has(family) ? HOOKS.find((each) => each === hook) : undefined;
    if (known !== undefined) return [{ ...base, hook: known }];
    const isEmpty = policy === 'accept' && (chains.get(name) ?? []).length === 0;
    return isEmpty ? [] : [{ ...base, hook: 'other' }];
  });
}

/** @param position in its chain, from 1. */
function ruleName({ handle, comment }: Json, position: number): string {
  const shown = [
    ...(typeof handle === 'number' ? [`handle ${handle}`] : []),
    ...(typeof comment === 'string' ? [comment] : []),
  ];
  return `rule ${position}${shown.length === 0 ? '' : ` (${shown.join(': ')})`}`;
}

const FAMILIES: ReadonlySet<string> = new Set(['inet', 'ip', 'ip6']);

function objectsOf(output: string, kind: string): Json[] {
  const document: unknown = JSON.parse(output);
  const list = isRecord(document) ? document.nftables : undefined;
  return (Array.isArray(list) ? list : []).flatMap((object: unknown) => {
    const found = isRecord(object) ? object[kind] : undefined;
    return isRecord(found) ? [found] : [];
  });
}

/** The rules of an expression list: several for a verdict map, and for a mark before a verdict. */
function rulesOf(expressions: readonly unknown[]): Rule[] {
  const matches: Match[] = [];
  const rules: Rule[] = [];
  for (const expression of expressions) {
    if (!isRecord(expression)) continue;
    const [kind = '', body] = Object.entries(expression)[0] ?? [];
    if (kind === 'match' && isRecord(body)) matches.push(...matchesOf(body));
    else if (kind === 'vmap' && isRecord(body))
      return [...rules, ...verdictMapRules(matches, body)];
    // Extensions of iptables, and limits, depend on state that is not known here.
    else if (kind === 'xt' || kind === 'limit') matches.push({ kind: 'unknown' });
    else if (kind === 'mangle') rules.push({ matches: [...matches], verdict: { kind: 'mark' } });
    else {
      const verdict = verdictOf(kind, body);
      const isReject = kind === 'reject';
      if (verdict !== undefined) return [...rules, { matches, verdict, isReject }];
    }
  }
  return rules;
}

function verdictMapRules(matches: readonly Match[], { key, data }: Json): Rule[] {
  const elements = isRecord(data) && Array.isArray(data.set) ? data.set : undefined;
  // The content of a named map is not listed: any of its verdicts is possible, and none is assumed.
  return (elements ?? []).flatMap((element: unknown) => {
    if (!Array.isArray(element) || !isRecord(element[1])) return [];
    const [kind = '', body] = Object.entries(element[1])[0] ?? [];
    const verdict = verdictOf(kind, body);
    const match = matchesOf({ op: '==', left: key, right: element[0] });
    return verdict === undefined ? [] : [{ matches: [...matches, ...match], verdict }];
  });
}

function verdictOf(kind: string, body: unknown): Verdict | undefined {
  switch (kind) {
    case 'accept':
    case 'drop':
    case 'return':
      return { kind };
    case 'reject':
      return { kind: 'drop' };
    case 'masquerade':
    case 'snat':
      return { kind: 'masquerade' };
    case 'jump':
    case 'goto':
      return { kind, chain: isRecord(body) ? String(body.target) : '' };
    default:
      return undefined;
  }
}

const UNKNOWN: Match = { kind: 'unknown' };

const INTERFACE_KEYS = ['iif', 'iifname', 'oif', 'oifname'];

function matchesOf({ op, left, right }: Json): Match[] {
  if (!isRecord(left) || !(op === '==' || op === '!=' || op === 'in')) return [UNKNOWN];
  const negated = op === '!=';
  const values = valuesOf(right);
  if (isRecord(left.payload)) {
    const match = values === undefined ? UNKNOWN : payloadMatch(left.payload, values, negated);
    return [...headerMatch(left.payload), match];
  }
  if (values === undefined) return [UNKNOWN];
  if (isRecord(left.meta)) {
    const key = String(left.meta.key);
    if (!INTERFACE_KEYS.includes(key)) return [metaMatch(key, values, negated)];
    return values.length === 1
      ? [{ kind: 'interface', name: String(values[0]), negated }]
      : [UNKNOWN];
  }
  if (isRecord(left.ct) && ['state', 'status'].includes(String(left.ct.key))) {
    return [{ kind: 'state', states: values.map(String), negated }];
  }
  if (isRecord(left.fib) && left.fib.result === 'oif' && isOfSource(left.fib)) {
    // Without a route back, the interface is 0.
    const isMissing = values.length === 1 && (values[0] === false || values[0] === '0');
    return [isMissing ? { kind: 'reversePath', negated } : UNKNOWN];
  }
  return [UNKNOWN];
}

function isOfSource({ flags }: Json): boolean {
  return flags === 'saddr' || (Array.isArray(flags) && flags.includes('saddr'));
}

/** A match on a field of a header does not match packets without this header, negated or not. */
function headerMatch({ protocol }: Json): Match[] {
  if (protocol === 'tcp' || protocol === 'udp' || protocol === 'sctp') {
    return [{ kind: 'protocol', names: [protocol], negated: false }];
  }
  if (protocol !== 'ip' && protocol !== 'ip6') return [];
  return [{ kind: 'family', family: protocol === 'ip' ? 'IPv4' : 'IPv6' }];
}

function payloadMatch({ field }: Json, values: readonly unknown[], negated: boolean): Match {
  if (field === 'saddr' || field === 'daddr') {
    const cidrs = values.map(cidrOf);
    if (cidrs.includes(undefined)) return UNKNOWN;
    const kind = field === 'saddr' ? 'source' : 'destination';
    return { kind, cidrs: cidrs.filter((cidr) => cidr !== undefined), negated };
  }
  if (field === 'dport') {
    const ranges = values.map(portRange);
    return ranges.every((range) => range !== undefined)
      ? { kind: 'port', ranges: ranges.filter((range) => range !== undefined), negated }
      : UNKNOWN;
  }
  if (field === 'protocol' || field === 'nexthdr') {
    return { kind: 'protocol', names: values.map(String), negated };
  }
  return UNKNOWN;
}

function metaMatch(key: string, values: readonly unknown[], negated: boolean): Match {
  if (key === 'l4proto') return { kind: 'protocol', names: values.map(String), negated };
  if (key === 'nfproto') {
    const family = values[0] === 'ipv6' ? 'IPv6' : 'IPv4';
    const other = family === 'IPv6' ? 'IPv4' : 'IPv6';
    return { kind: 'family', family: negated ? other : family };
  }
  if (key === 'mark' && values.length === 1) {
    return { kind: 'mark', value: Number(values[0]), mask: 0xffffffff, negated };
  }
  return UNKNOWN;
}

/** The values of the right side; undefined for a named set, whose content is not listed. */
function valuesOf(right: unknown): readonly unknown[] | undefined {
  if (typeof right === 'string' && right.startsWith('@')) return undefined;
  if (isRecord(right) && Array.isArray(right.set)) return right.set;
  return Array.isArray(right) ? right : [right];
}

function cidrOf(value: unknown): string | undefined {
  if (typeof value === 'string') {
    const address = canonicalAddress(value);
    return address && `${address}/${address.includes(':') ? 128 : 32}`;
  }
  const prefix = isRecord(value) ? value.prefix : undefined;
  return isRecord(prefix) ? canonicalCidr(`${prefix.addr}/${prefix.len}`) : undefined;
}

function portRange(value: unknown): readonly [number, number] | undefined {
  if (typeof value === 'number') return [value, value];
  const range = isRecord(value) ? value.range : undefined;
  return Array.isArray(range) ? [Number(range[0]), Number(range[1])] : undefined;
}
