import type { Iptables } from '../../iptables/commands.ts';
import { type SavedTable, TABLES } from '../../iptables/ruleset.ts';
import { parseSaved } from '../../iptables/saved.ts';

const TARGET = /-j (\S+)/;

/**
 * Simulates `iptables-restore --noflush` on the chains of one table. A chain named in the header is
 * flushed, and a commit is applied completely or not at all. A chain in use cannot be deleted, and
 * a rule cannot jump to a missing chain. Counts commits.
 */
export class SimulatedTable {
  #chains = new Map<string, string[]>();
  commits = 0;

  constructor(builtin: readonly string[]) {
    for (const chain of builtin) this.#chains.set(chain, []);
  }

  restore(input: string): void {
    let next = new Map<string, string[]>();
    for (const line of input.split('\n')) {
      const [word = '', name = ''] = line.split(' ');
      const rules = next.get(name);
      if (word.startsWith('*')) next = new Map([...this.#chains].map(([k, v]) => [k, [...v]]));
      else if (word.startsWith(':')) next.set(word.slice(1), []);
      else if (word === '-A' && rules !== undefined) rules.push(line);
      else if (word === '-I' && rules !== undefined) rules.unshift(line.replace('-I ', '-A '));
      else if (word === '-X' && rules?.length === 0) next.delete(name);
      else if (word === 'COMMIT') this.#commit(next);
      else if (line !== '') throw new Error(`cannot do: ${line}`);
    }
  }

  async saved(): Promise<SavedTable> {
    const saved = (await parseSaved(['*nat', ...this.lines()])).get('nat');
    if (saved === undefined) throw new Error('iptables-save shows every table');
    return saved;
  }

  lines(): string[] {
    const chains = [...this.#chains].sort(([a], [b]) => (a < b ? -1 : 1));
    return [...chains.map(([name]) => `:${name} - [0:0]`), ...chains.flatMap(([, rules]) => rules)];
  }

  #commit(next: Map<string, string[]>): void {
    for (const rules of next.values()) {
      for (const rule of rules) {
        const target = TARGET.exec(rule)?.[1] ?? '';
        if (target.startsWith('KUBE-') && !next.has(target)) throw new Error(`dangling: ${rule}`);
      }
    }
    this.#chains = next;
    this.commits += 1;
  }
}

const BUILTIN = ['PREROUTING', 'INPUT', 'FORWARD', 'OUTPUT', 'POSTROUTING'];

/**
 * The iptables commands, on tables in memory with the built-in chains.
 * @param onRestore called before each restore; may throw.
 */
export function simulatedIptables(onRestore: (table: string, lines: string[]) => void = () => {}) {
  const tables = new Map<string, SimulatedTable>(
    TABLES.map((table) => [table, new SimulatedTable(BUILTIN)]),
  );
  const iptables: Iptables = {
    family: 'IPv4',
    variant: 'legacy',
    save: () =>
      parseSaved([...tables].flatMap(([table, kernel]) => [`*${table}`, ...kernel.lines()])),
    saveTable: async (table) => [`*${table}`, ...(tables.get(table)?.lines() ?? [])].join('\n'),
    probe: async () => {},
    probeRule: async () => {},
    restore: async (pieces) => {
      const input = [...pieces].join('');
      const table = TABLES.find((each) => input.startsWith(`*${each}\n`)) ?? '';
      onRestore(table, input.split('\n'));
      tables.get(table)?.restore(input);
    },
    check: async (input) => {
      let table = '';
      for (const line of input.split('\n')) {
        if (line.startsWith('*')) table = line.slice(1);
        if (!line.startsWith('-C ')) continue;
        if (!tables.get(table)?.lines().includes(line.replace('-C ', '-A ')))
          return { line, table };
      }
      return undefined;
    },
    version: async () => 'iptables v1.8.9',
  };
  return { tables, iptables };
}
