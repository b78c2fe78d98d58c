import { compareText } from '../api/collections.ts';
import { canaryRule, type SharedRule } from './base-rules.ts';
import type { Table } from './chains.ts';
import type { Chain, TableChange } from './ruleset.ts';

/**
 * iptables-nft-restore searches its list of chains for each one of a transaction: 20,000 at once
 * take minutes, in transactions of a few hundred seconds. iptables-legacy-restore writes the whole
 * table for each, so there one is best.
 */
export const NFT_CHAINS_PER_TRANSACTION = 500;

/** Whether there is anything to write. */
export function isEmpty(change: TableChange): boolean {
  return change.write.size === 0 && change.remove.length === 0 && change.addShared.length === 0;
}

/**
 * Input for `iptables-restore --noflush` that makes one table as wanted. Naming a chain in the
 * header flushes it, so each named chain is written whole; all others stay as they are.
 *
 * With `chainsPerTransaction` the input has several commits. Chains that others jump to come first,
 * removals last, so that the table is right after each.
 * @returns an empty string when there is nothing to do.
 */
export function restoreInput(change: TableChange, chainsPerTransaction = Infinity): string {
  if (isEmpty(change)) return '';
  const chains = [...change.write].sort(
    ([a, { depth: x }], [b, { depth: y }]) => y - x || compareText(a, b),
  );
  const parts: string[] = [];
  const last: string[] = [];
  for (let at = 0; at < chains.length; at += chainsPerTransaction) {
    const part = chains.slice(at, at + chainsPerTransaction);
    const isLast = at + chainsPerTransaction >= chains.length;
    if (isLast) last.push(...chainLines(part));
    else parts.push(transaction(change, chainLines(part)));
  }
  const removed = change.remove.toSorted(compareText);
  const lines = [
    // Removed chains are flushed before they go: they may jump to each other.
    ...[...removed, ...change.createShared].map((name) => `:${name} - [0:0]`),
    ...last,
    ...change.addShared.filter((shared) => !shared.builtin).map((shared) => shared.rule),
    // Inserted at the head one by one, so the last comes first.
    ...change.addShared
      .filter((shared) => shared.builtin)
      .reverse()
      .map((shared) => shared.rule.replace('-A ', '-I ')),
    ...removed.map((name) => `-X ${name}`),
  ];
  return [...parts, transaction(change, lines)].join('');
}

function chainLines(chains: readonly (readonly [string, Chain])[]): string[] {
  return [
    ...chains.map(([name]) => `:${name} - [0:0]`),
    ...chains.flatMap(([, { text }]) => (text === '' ? [] : [text])),
  ];
}

function transaction(change: TableChange, lines: readonly string[]): string {
  return [`*${change.table}`, ...lines, 'COMMIT', ''].join('\n');
}

/**
 * Input for `iptables-restore --noflush` that changes nothing and fails unless the canary of each
 * table and the jumps into our chains are there: one command sees a flush, a deleted chain and a
 * deleted jump.
 */
export function checkInput(tables: readonly Table[], shared: readonly SharedRule[]): string {
  return tables
    .map((table) => {
      const rules = shared.filter((rule) => rule.table === table).map(({ rule }) => rule);
      const lines = [canaryRule(), ...rules].map((rule) => rule.replace('-A ', '-C '));
      return [`*${table}`, ...lines, 'COMMIT', ''].join('\n');
    })
    .join('');
}
