/**
 * The content of a policy table without ids: rules with the members of their lists, and pods with
 * the rules of their chains.
 */
import { createHash } from 'node:crypto';

type Json = string | number | null | { readonly [key: string]: Json } | readonly Json[];

interface ListedTable {
  readonly set?: ListedSet;
  readonly map?: ListedSet;
  readonly chain?: { readonly name: string };
  readonly rule?: {
    readonly chain: string;
    readonly comment?: string;
    readonly expr: readonly Json[];
  };
}

interface ListedSet {
  readonly name: string;
  readonly elem?: readonly Json[];
}

/** Sets whose keys begin with a list id. */
const LISTS = ['peers', 'networks', 'fqdn-peers', 'ports', 'named-ports'];
const POLICY_SET_CHAIN = /^(?:egress|ingress)-\d+(?:-lower-tiers)?$/;

/** The content as sorted lines. @param listing Output of `nft -j list table`. */
export function contentOfTable(listing: string): readonly string[] {
  const { nftables } = JSON.parse(listing) as { nftables: readonly ListedTable[] };
  const sets = nftables.flatMap(({ set, map }) => set ?? map ?? []);
  const members = membersOf(sets);
  const rules = Map.groupBy(
    nftables.flatMap(({ rule }) => rule ?? []),
    ({ chain }) => chain,
  );
  const resolve = (value: Json): Json => {
    if (Array.isArray(value)) return value.map(resolve);
    if (typeof value !== 'object' || value === null) return value;
    const entries = Object.entries(value as Record<string, Json>);
    const { left, right } = value as { left?: { concat?: Json[] }; right?: Json };
    const set = typeof right === 'string' && right.startsWith('@') ? right.slice(1) : '';
    if (LISTS.includes(set)) {
      const [list = '', ...fields] = left?.concat ?? [];
      return { in: [...fields], list: hash(members.get(`${set} ${list}`) ?? []) };
    }
    return Object.fromEntries(
      entries.map(([key, each]) => [
        key,
        key === 'target' && typeof each === 'string' && POLICY_SET_CHAIN.test(each)
          ? contentOf(each)
          : resolve(each),
      ]),
    );
  };
  const contentOf = (chain: string): string =>
    hash((rules.get(chain) ?? []).map(({ comment, expr }) => [comment ?? '', resolve(expr)]));

  const lines = nftables
    .flatMap(({ chain }) => chain ?? [])
    .map(({ name }) => `chain ${POLICY_SET_CHAIN.test(name) ? '' : name} ${contentOf(name)}`);
  for (const { name, elem = [] } of sets) {
    if (LISTS.includes(name)) continue;
    for (const element of elem) lines.push(`${name} ${JSON.stringify(resolve(element))}`);
  }
  for (const [key, all] of members) lines.push(`list in ${key.split(' ')[0]} ${hash(all)}`);
  return lines.sort();
}

/** Members of lists by set and list id. */
function membersOf(sets: readonly ListedSet[]): ReadonlyMap<string, readonly string[]> {
  const members = new Map<string, string[]>();
  for (const { name, elem = [] } of sets) {
    if (!LISTS.includes(name)) continue;
    for (const element of elem) {
      const { concat } = element as { concat: readonly Json[] };
      const [list, ...fields] = concat;
      const key = `${name} ${list}`;
      members.set(key, [...(members.get(key) ?? []), JSON.stringify(fields)]);
    }
  }
  for (const all of members.values()) all.sort();
  return members;
}

function hash(value: unknown): string {
  return createHash('sha256').update(JSON.stringify(value)).digest('hex').slice(0, 16);
}
