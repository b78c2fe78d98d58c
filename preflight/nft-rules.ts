/** Turns decoded rules of nf_tables into rules of a packet walk. */
import { HOOKS } from '../netlink/nftables/hooks.ts';
import type { ListedRule, ListedTable } from '../netlink/nftables/rule-list.ts';
import type { KeyRange, SetContent, Statement, Term } from '../netlink/nftables/statement.ts';
import { addressSize } from '../netlink/nftables/statement-text.ts';
import { FAMILY_NAMES, type NftTable } from '../netlink/nftables/types.ts';
import {
  addressText,
  bitNames,
  hasBits,
  maskLength,
  nameOf,
  numberOf,
  prefixLength,
} from '../netlink/nftables/value-text.ts';
import type { BaseChain, Match, Rule } from './packet-walk.ts';

/** Rules of a packet walk that one rule of nf_tables stands for. */
export interface NftWalkRules {
  readonly chain: string;
  readonly handle: number;
  readonly comment: string | undefined;
  readonly rules: readonly Rule[];
}

/** For `readRuleset`. */
export function nftWalkRules(
  { chain, handle, comment }: Pick<ListedRule, 'chain' | 'handle' | 'comment'>,
  statements: readonly Statement[],
): NftWalkRules {
  return { chain, handle, comment, rules: rulesOf(statements) };
}

/**
 * The base chains of a table that may drop or masquerade packets; those without rules in families netdev and bridge do
 * nothing, and are left out.
 */
export function nftChains(table: NftTable, listed: ListedTable<NftWalkRules>): BaseChain[] {
  const family = FAMILY_NAMES[table.family] ?? String(table.family);
  const chains = new Map<string, Rule[]>();
  const counts = new Map<string, number>();
  for (const { chain, handle, comment, rules } of listed.rules) {
    const position = (counts.get(chain) ?? 0) + 1;
    counts.set(chain, position);
    const name = `rule ${position} (handle ${handle}${comment === undefined ? '' : `: ${comment}`})`;
    const all = chains.get(chain) ?? [];
    for (const rule of rules) all.push({ ...rule, name });
    chains.set(chain, all);
  }
  return listed.chains.flatMap(({ name, base }): BaseChain[] => {
    if (base === undefined) return [];
    const { priority } = base;
    const known = FAMILIES.has(family) ? HOOKS[base.hook] : undefined;
    // Chains that translate destinations drop nothing.
    if (base.type === 'nat' && known !== 'postrouting') return [];
    const policy = base.policy === NF_DROP ? 'drop' : 'accept';
    const described = {
      table: `${family} ${table.name}`,
      chain: name,
      priority,
      policy,
      chains,
    } as const;
    if (known !== undefined) return [{ ...described, hook: known }];
    const isEmpty = policy === 'accept' && !counts.has(name);
    return isEmpty ? [] : [{ ...described, hook: 'other' }];
  });
}

const FAMILIES: ReadonlySet<string> = new Set(['inet', 'ip', 'ip6']);
const NF_DROP = 0;
const UNKNOWN: Match = { kind: 'unknown' };

/** The rules of a list of statements: several for a verdict map, and for a mark before a verdict. */
function rulesOf(statements: readonly Statement[]): Rule[] {
  const matches: Match[] = [];
  const rules: Rule[] = [];
  const add = (rule: Omit<Rule, 'matches'>) => rules.push({ matches: [...matches], ...rule });
  for (const statement of statements) {
    switch (statement.kind) {
      case 'compare':
      case 'range':
      case 'lookup':
        matches.push(...matchesOf(statement));
        break;
      case 'condition':
        matches.push(UNKNOWN);
        break;
      case 'setMark':
        add({ verdict: { kind: 'mark' } });
        break;
      case 'unknown':
        // A program decides about the packet, or the kernel does what is not known here.
        rules.push({
          matches: [...matches, UNKNOWN],
          verdict: { kind: 'drop' },
          unknown: statement.words,
        });
        matches.push(UNKNOWN);
        break;
      case 'verdictMap':
        return [...rules, ...verdictMapRules(matches, statement.terms, statement.set)];
      case 'verdict':
        add({ verdict: statement.verdict, isReject: false });
        return rules;
      case 'reject':
        add({ verdict: { kind: 'drop' }, isReject: true });
        return rules;
      case 'translate':
        if (statement.what === 'source') {
          add({ verdict: { kind: 'masquerade' } });
          return rules;
        }
        break;
      case 'action':
        break;
    }
  }
  return rules;
}

function verdictMapRules(
  matches: readonly Match[],
  terms: readonly Term[],
  { elements = [] }: SetContent,
): Rule[] {
  // The content of a named map changes: any of its verdicts is possible, and none is assumed.
  return elements.flatMap(({ keys, data }) => {
    if (data === undefined || Buffer.isBuffer(data)) return [];
    const key = keys === undefined ? [] : keyMatches(terms, [keys], false);
    return [{ matches: [...matches, ...key], verdict: data }];
  });
}

function matchesOf(
  statement: Extract<Statement, { kind: 'compare' | 'range' | 'lookup' }>,
): readonly Match[] {
  if (statement.kind === 'lookup') {
    const { terms, set, negated } = statement;
    const keys = set.elements?.map((element) => element.keys);
    // A catch-all element has no key.
    const isKnown = keys?.every((each) => each !== undefined) === true;
    return isKnown ? keyMatches(terms, keys, negated) : keyMatches(terms, undefined, negated);
  }
  const { term } = statement;
  if (statement.kind === 'range') return keyMatches([term], [statement], statement.negated);
  const { op, value } = statement;
  if (op === '==' || op === '!=')
    return keyMatches([term], [{ first: value, last: value }], op === '!=');
  // Other comparisons are of numbers.
  const isFrom = op === '>=' || op === '<';
  const ends = { first: Buffer.alloc(value.length), last: Buffer.alloc(value.length, 0xff) };
  const keys = { ...ends, ...(isFrom ? { first: value } : { last: value }) };
  return keyMatches([term], [keys], op === '<' || op === '>');
}

/** @param keys that the value has, or has not if negated; undefined if they are not known. */
function keyMatches(
  terms: readonly Term[],
  keys: readonly KeyRange[] | undefined,
  negated: boolean,
): Match[] {
  const [term] = terms;
  // The data of a map is not the field that is its key.
  if (term === undefined || terms.length > 1 || term.map !== undefined) return [UNKNOWN];
  const match = keys === undefined ? UNKNOWN : termMatch(term, keys, negated);
  // A match on a field of a header does not match packets without this header, negated or not.
  const family = /^ip6? /.exec(term.name)?.[0];
  if (family === undefined) return [match];
  return [{ kind: 'family', family: family === 'ip ' ? 'IPv4' : 'IPv6' }, match];
}

function termMatch(term: Term, keys: readonly KeyRange[], negated: boolean): Match {
  const { name, kind, bits } = term;
  if (bits !== undefined) return maskedMatch(term, bits, keys, negated);
  const values = keys.flatMap(({ first, last }) => (first.equals(last) ? [first] : []));
  const [only] = values.length === 1 && keys.length === 1 ? values : [];
  const areSingle = values.length === keys.length;
  if (/^ip6? [sd]addr$/.test(name)) {
    const cidrs = keys.map((key) => cidrOf(key, addressSize(term)));
    if (cidrs.includes(undefined)) return UNKNOWN;
    const of = name.endsWith('saddr') ? 'source' : 'destination';
    return { kind: of, cidrs: cidrs.filter((cidr) => cidr !== undefined), negated };
  }
  if (kind === 'port' && / dport$/.test(name) && !name.startsWith('ct ')) {
    const ranges = keys.map(
      ({ first, last }) => [numberOf(kind, first), numberOf(kind, last)] as const,
    );
    return { kind: 'port', ranges, negated };
  }
  if (kind === 'protocol' && !name.startsWith('ct ') && areSingle)
    return { kind: 'protocol', names: values.map((value) => `${numberOf(kind, value)}`), negated };
  if (only === undefined) {
    const isState = name === 'ct state' && areSingle;
    return isState ? { kind: 'state', states: values.flatMap(stateOf), negated } : UNKNOWN;
  }
  if (name === 'meta nfproto') return familyMatch(numberOf(kind, only) === 10, negated);
  if (name === 'meta mark')
    return { kind: 'mark', value: numberOf(kind, only), mask: 0xffffffff, negated };
  if (INTERFACE_FIELDS.includes(name)) {
    const interfaceName = kind === 'name' ? nameOf(only) : String(numberOf(kind, only));
    return { kind: 'interface', name: interfaceName, negated };
  }
  if (name === 'ct state') return { kind: 'state', states: stateOf(only), negated };
  if (/^fib saddr\b.* oif$/.test(name)) {
    // Without a route back, the interface is 0.
    const isMissing = numberOf(kind, only) === 0;
    const isPresence = kind === 'present';
    return isMissing || isPresence
      ? { kind: 'reversePath', negated: negated !== !isMissing }
      : UNKNOWN;
  }
  return UNKNOWN;
}

const INTERFACE_FIELDS = ['iif', 'iifname', 'oif', 'oifname'];

function familyMatch(isIpv6: boolean, negated: boolean): Match {
  return { kind: 'family', family: isIpv6 !== negated ? 'IPv6' : 'IPv4' };
}

function stateOf(value: Buffer): string[] {
  return bitNames('state', value);
}

/** A comparison of some bits of a field. */
function maskedMatch(
  term: Term,
  { mask, xor }: NonNullable<Term['bits']>,
  keys: readonly KeyRange[],
  negated: boolean,
): Match {
  const [key] = keys;
  const isOne = keys.length === 1 && key?.first.equals(key.last) === true;
  if (key === undefined || !isOne || xor.some((byte) => byte !== 0)) return UNKNOWN;
  const { first: value } = key;
  const { name, kind } = term;
  // A bit of several: not equal to 0.
  if (
    hasBits(kind) &&
    ['ct state', 'ct status'].includes(name) &&
    value.every((byte) => byte === 0)
  )
    return { kind: 'state', states: bitNames(kind, mask), negated: !negated };
  if (name === 'meta mark')
    return { kind: 'mark', value: numberOf(kind, value), mask: numberOf(kind, mask), negated };
  const length = kind === 'address' ? maskLength(mask) : undefined;
  if (length === undefined || !/^ip6? [sd]addr$/.test(name)) return UNKNOWN;
  const cidrs = [`${addressText(value, addressSize(term))}/${length}`];
  return { kind: name.endsWith('saddr') ? 'source' : 'destination', cidrs, negated };
}

/** @param size bytes of an address; a key has all of them, or the first ones, which a prefix compares. */
function cidrOf(keys: KeyRange, size: number): string | undefined {
  const length = prefixLength(keys);
  return length === undefined ? undefined : `${addressText(keys.first, size)}/${length}`;
}
