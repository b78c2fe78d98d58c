/** Parses the output of `iptables-save`. */
import { isOwnChain, type Table } from './chains.ts';
import { type SavedTable, TABLES } from './ruleset.ts';

/** Parses the output of `iptables-save`. A table that the output does not name is empty. */
export async function parseSaved(
  lines: AsyncIterable<string> | Iterable<string>,
): Promise<ReadonlyMap<Table, SavedTable>> {
  const tables = new Map(TABLES.map((table) => [table, new SavedTableReader()]));
  let current: SavedTableReader | undefined;
  for await (const line of lines) {
    if (line.startsWith('*')) current = tables.get(line.slice(1) as Table);
    else current?.read(line);
  }
  return new Map([...tables].map(([table, reader]) => [table, reader.table()]));
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

  table(): SavedTable {
    const chains = [...this.#chains].map(([name, rules]) => [name, rules.join('\n')] as const);
    return { chains: new Map(chains), foreign: this.#foreign };
  }
}
