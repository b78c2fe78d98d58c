/** Parses the output of `iptables-save`. */
import { TimeSlice } from '../sync/time-slice.ts';
import { isOwnChain, type Table } from './chains.ts';
import { type SavedTable, TABLES } from './ruleset.ts';

/**
 * Parses the output of `iptables-save`, and yields to the event loop. A table that the output does
 * not name is empty.
 */
export async function parseSaved(
  lines: AsyncIterable<string> | Iterable<string>,
): Promise<ReadonlyMap<Table, SavedTable>> {
  const tables = new Map(TABLES.map((table) => [table, new SavedTableReader()]));
  let current: SavedTableReader | undefined;
  const slice = new TimeSlice();
  for await (const line of lines) {
    if (line.startsWith('*')) current = tables.get(line.slice(1) as Table);
    else current?.read(line);
    if (slice.isOver()) await slice.yield();
  }
  const saved = new Map<Table, SavedTable>();
  for (const [table, reader] of tables) saved.set(table, await reader.table(slice));
  return saved;
}

class SavedTableReader {
  readonly #chains = new Map<string, string[]>();
  readonly #foreign = new Set<string>();

  read(line: string): void {
    const name = /^(?::|-A )(\S+)/.exec(line)?.[1];
    if (name === undefined) return;
    const own = isOwnChain(name);
    if (line.startsWith(':')) {
      if (own) this.#chains.set(name, []);
      else this.#foreign.add(`:${name}`);
    } else if (own) {
      this.#chains.get(name)?.push(line);
    } else {
      this.#foreign.add(line);
    }
  }

  async table(slice: TimeSlice): Promise<SavedTable> {
    const chains = new Map<string, string>();
    for (const [name, rules] of this.#chains) {
      chains.set(name, rules.join('\n'));
      if (slice.isOver()) await slice.yield();
    }
    return { chains, foreign: this.#foreign };
  }
}
