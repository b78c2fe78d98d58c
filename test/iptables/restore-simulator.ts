import type { SavedTable } from '../../iptables/ruleset.ts';
import { parseSaved } from '../../iptables/saved.ts';

const TARGET = /-j (\S+)/;

/**
 * What `iptables-restore --noflush` does to the chains of one table: a chain that is named in the
 * header is flushed, a commit is all or nothing, a chain in use cannot be deleted, a rule cannot
 * jump to a chain that is not there. Commits are counted.
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
