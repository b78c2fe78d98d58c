/** Renders table changes as input of `iptables-restore`. */
import { compareText } from '../api/collections.ts';
import { CANARY_RULE, type SharedRule } from './base-rules.ts';
import type { Table } from './chains.ts';
import type { RenderedChain, TableChange } from './ruleset.ts';

/**
 * Maximum number of chains in a transaction of iptables-nft. iptables-nft-restore searches its
 * chain list for each chain of a transaction. 20,000 chains take minutes in one transaction, and
 * seconds in transactions of a few hundred. iptables-legacy-restore writes the whole table for each
 * transaction, so one transaction is best.
 */
export const NFT_CHAINS_PER_TRANSACTION = 500;

/** Whether a change writes nothing. */
export function isEmpty(change: TableChange): boolean {
  return change.write.size === 0 && change.remove.length === 0 && change.shared.length === 0;
}

/** Characters in one chunk. Rendering a chunk takes some milliseconds. */
const CHUNK_LENGTH = 1 << 18;

/**
 * Input for `iptables-restore --noflush` that applies a change to one table. Naming a chain in the
 * header flushes it, so each named chain is written completely; all other chains stay unchanged.
 *
 * With `chainsPerTransaction` the input may have several commits. Chains are written before chains
 * that jump to them, and removals come last, so that the table is consistent after each commit.
 * @returns an empty string if there is nothing to write.
 */
export function restoreInput(change: TableChange, chainsPerTransaction = Infinity): string {
  return [...restoreChunks(change, chainsPerTransaction)].join('');
}

/**
 * `restoreInput` in chunks that are rendered on demand. The text of a big table, tens of megabytes,
 * thus neither blocks the event loop nor is in memory at once. The result may be iterated again.
 */
export function restoreChunks(
  change: TableChange,
  chainsPerTransaction = Infinity,
): Iterable<string> {
  return { [Symbol.iterator]: () => joinIntoChunks(restoreLines(change, chainsPerTransaction)) };
}

function* joinIntoChunks(lines: Iterable<string>): Generator<string> {
  let piece: string[] = [];
  let length = 0;
  for (const line of lines) {
    piece.push(line, '\n');
    length += line.length;
    if (length < CHUNK_LENGTH) continue;
    yield piece.join('');
    piece = [];
    length = 0;
  }
  if (piece.length > 0) yield piece.join('');
}

function* restoreLines(change: TableChange, chainsPerTransaction: number): Generator<string> {
  if (isEmpty(change)) return;
  const { table } = change;
  const chains = [...change.write]
    .map((entry) => ({ entry, depth: entry[1].depth, key: shuffledKey(entry[0]) }))
    .sort((a, b) => b.depth - a.depth || compareText(a.key, b.key))
    .map(({ entry }) => entry);
  const removed = change.remove.toSorted(compareText);
  const shared = sharedLines(change.shared);
  if (chains.length <= chainsPerTransaction && removed.length <= chainsPerTransaction) {
    const groups = [headers(removed), chainLines(chains), shared, removals(removed)];
    yield* transaction(table, ...groups);
    return;
  }
  const writes = inBatches(chains, chainsPerTransaction);
  for (const part of writes.slice(0, -1)) yield* transaction(table, chainLines(part));
  if (writes.length > 0 || shared.length > 0) {
    yield* transaction(table, chainLines(writes.at(-1) ?? []), shared);
  }
  // Flush all removed chains before removing any of them, because they jump to each other in any
  // order.
  for (const part of inBatches(removed, chainsPerTransaction)) {
    yield* transaction(table, headers(part));
  }
  for (const part of inBatches(removed, chainsPerTransaction)) {
    yield* transaction(table, removals(part));
  }
}

function* transaction(table: Table, ...groups: readonly Iterable<string>[]): Generator<string> {
  yield `*${table}`;
  for (const group of groups) yield* group;
  yield 'COMMIT';
}

/**
 * Sort key of a chain: a stable order, but not by name. The kernel lists chains in the order of
 * creation, and iptables-nft-save takes minutes to sort 20,000 chains that are already in order.
 */
function shuffledKey(name: string): string {
  return name.slice(-5) + name;
}

function inBatches<Item>(items: readonly Item[], size: number): (readonly Item[])[] {
  if (items.length <= size) return items.length === 0 ? [] : [items];
  return Array.from({ length: Math.ceil(items.length / size) }, (_, index) =>
    items.slice(index * size, (index + 1) * size),
  );
}

/** Headers of all chains, then their rules. */
function* chainLines(chains: readonly (readonly [string, RenderedChain])[]): Generator<string> {
  for (const [name] of chains) yield `:${name} - [0:0]`;
  for (const [, { text }] of chains) if (text !== '') yield text;
}

function headers(names: readonly string[]): string[] {
  return names.map((name) => `:${name} - [0:0]`);
}

function removals(names: readonly string[]): string[] {
  return names.map((name) => `-X ${name}`);
}

function sharedLines(changes: TableChange['shared']): string[] {
  const created = changes.filter(({ create }) => create).map(({ chain }) => chain);
  const rules = changes.flatMap(({ remove, insert, append }) => [
    ...remove.map((rule) => rule.replace('-A ', '-D ')),
    // Each rule is inserted at the head, so insert the last rule first.
    ...insert.toReversed().map((rule) => rule.replace('-A ', '-I ')),
    ...append,
  ]);
  return [...headers(created), ...rules];
}

/**
 * Input for `iptables-restore --noflush` that changes nothing. The restore fails unless the canary
 * of each table and all rules in shared chains exist. So one command detects a flushed table, a
 * deleted canary chain and a deleted jump to Portwide's chains.
 */
export function checkInput(tables: readonly Table[], shared: readonly SharedRule[]): string {
  const lines = tables.flatMap((table) => {
    const rules = shared.filter((rule) => rule.table === table).map(({ rule }) => rule);
    const checks = [CANARY_RULE, ...rules].map((rule) => rule.replace('-A ', '-C '));
    return [...transaction(table, checks)];
  });
  return `${lines.join('\n')}\n`;
}

/** Input that changes rules of one table in one transaction. */
export function rulesInput(table: Table, lines: readonly string[]): string {
  return `${[...transaction(table, lines)].join('\n')}\n`;
}
