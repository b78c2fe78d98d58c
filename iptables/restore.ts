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
  return change.write.size === 0 && change.remove.length === 0 && change.shared.length === 0;
}

/**
 * Input for `iptables-restore --noflush` that makes one table as wanted. Naming a chain in the
 * header flushes it, so each named chain is written whole; all others stay as they are.
 *
 * With `chainsPerTransaction` the input may have several commits. Chains that others jump to come
 * first, removals last, so that the table is right after each.
 * @returns an empty string when there is nothing to do.
 */
export function restoreInput(change: TableChange, chainsPerTransaction = Infinity): string {
  if (isEmpty(change)) return '';
  const chains = [...change.write].sort(
    ([a, { depth: x }], [b, { depth: y }]) => y - x || compareText(a, b),
  );
  const removed = change.remove.toSorted(compareText);
  const writes = inParts(chains, chainsPerTransaction).map(chainLines);
  const last = writes.at(-1) ?? [];
  const shared = sharedLines(change.shared);
  // What fits into one transaction goes into one.
  const isSmall = writes.length <= 1 && removed.length <= chainsPerTransaction;
  const transactions = isSmall
    ? [[...headers(removed), ...last, ...shared, ...removalCommands(removed)]]
    : [
        ...writes.slice(0, -1),
        [...last, ...shared],
        // Flushed first, all of them: they jump to each other in any order.
        ...inParts(removed, chainsPerTransaction).map(headers),
        ...inParts(removed, chainsPerTransaction).map(removalCommands),
      ];
  return transactions
    .filter((lines) => lines.length > 0)
    .map((lines) => transaction(change.table, lines))
    .join('');
}

/** Lines between `*table` and `COMMIT`. */
export function transaction(table: Table, lines: readonly string[]): string {
  return [`*${table}`, ...lines, 'COMMIT', ''].join('\n');
}

function inParts<Item>(items: readonly Item[], size: number): (readonly Item[])[] {
  if (items.length <= size) return items.length === 0 ? [] : [items];
  return Array.from({ length: Math.ceil(items.length / size) }, (_, index) =>
    items.slice(index * size, (index + 1) * size),
  );
}

function chainLines(chains: readonly (readonly [string, Chain])[]): string[] {
  return [
    ...chains.map(([name]) => `:${name} - [0:0]`),
    ...chains.flatMap(([, { text }]) => (text === '' ? [] : [text])),
  ];
}

function headers(names: readonly string[]): string[] {
  return names.map((name) => `:${name} - [0:0]`);
}

function removalCommands(names: readonly string[]): string[] {
  return names.map((name) => `-X ${name}`);
}

function sharedLines(changes: TableChange['shared']): string[] {
  const created = changes.filter(({ create }) => create).map(({ chain }) => chain);
  const rules = changes.flatMap(({ remove, insert, append }) => [
    ...remove.map((rule) => rule.replace('-A ', '-D ')),
    // Inserted at the head one by one, so the last comes first.
    ...insert.toReversed().map((rule) => rule.replace('-A ', '-I ')),
    ...append,
  ]);
  return [...headers(created), ...rules];
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
      return transaction(table, lines);
    })
    .join('');
}
