/**
 * Dispatches node ports to their rules, as `vip-tree.ts` does for VIPs. One chain has 32 ports, so
 * that a new node port rewrites a handful of rules, and a packet traverses few rules.
 *
 *   KUBE-NODEPORTS ── tcp dport 30016:30047 ──► KUBE-SVC-NP-T938 ── tcp dport 30040 ──► KUBE-EXT-…
 */
import { compareText, getOrCreate } from '../api/collections.ts';
import type { Protocol } from '../api/objects.ts';
import type { Table } from './chains.ts';
import { DEPTH } from './compile.ts';
import { type RuleSpec, ruleText } from './rule.ts';
import type { TreeChain, TreeRoot } from './vip-tree.ts';

const BLOCK_SIZE = 32;

/** A rule for one port. */
export interface PortRule {
  readonly protocol: Protocol;
  readonly port: number;
  readonly comment: string;
  readonly matches?: readonly string[];
  readonly target: string;
}

/** The dispatch tree over ports in one table. */
export class PortTree {
  readonly #table: Table;
  readonly #root: string;
  readonly #prefix: string;
  /** Rules by block name and owner. */
  readonly #blocks = new Map<string, Map<string, PortRule>>();
  readonly #changedBlocks = new Set<string>();

  /** @param prefix prefix of the tree's chain names. */
  constructor(table: Table, root: string, prefix: string) {
    this.#table = table;
    this.#root = root;
    this.#prefix = prefix;
  }

  /** Replaces the rule of one owner (a Route). */
  replace(owner: string, before: PortRule | undefined, after: PortRule | undefined): void {
    if (before !== undefined) {
      const name = blockName(before);
      const block = this.#blocks.get(name);
      block?.delete(owner);
      if (block?.size === 0) this.#blocks.delete(name);
      this.#changedBlocks.add(name);
    }
    if (after !== undefined) {
      const name = blockName(after);
      getOrCreate(this.#blocks, name, () => new Map()).set(owner, after);
      this.#changedBlocks.add(name);
    }
  }

  /** Returns the chains that changed since the last call, and the jumps of the root chain. */
  takeChanges(): { chains: TreeChain[]; roots: TreeRoot[] } {
    if (this.#changedBlocks.size === 0) return { chains: [], roots: [] };
    const chains = [...this.#changedBlocks].map((name) => this.#blockChain(name));
    this.#changedBlocks.clear();
    const jumps = [...this.#blocks]
      .sort(([a], [b]) => compareText(a, b))
      .flatMap(([name, block]) => {
        const first = block.values().next().value;
        return first === undefined ? [] : [ruleText(this.#root, this.#jump(name, first))];
      });
    return { chains, roots: [{ table: this.#table, name: this.#root, jumps }] };
  }

  #blockChain(block: string): TreeChain {
    const name = this.#prefix + block;
    const rules = [...(this.#blocks.get(block)?.values() ?? [])]
      .sort((a, b) => a.port - b.port || compareText(a.comment, b.comment))
      .map(({ port, ...rule }) => ruleText(name, { ...rule, ports: [{ from: port, to: port }] }));
    return { table: this.#table, name, depth: DEPTH.leaf, rules };
  }

  #jump(block: string, { protocol, port }: PortRule): RuleSpec {
    const from = blockStart(port);
    const ports = [{ from, to: Math.min(from + BLOCK_SIZE - 1, 65535) }];
    return { protocol, ports, target: this.#prefix + block };
  }
}

function blockStart(port: number): number {
  return port - (port % BLOCK_SIZE);
}

/**
 * Short name of a block of ports, because chain names have at most 28 characters: `T939` is the
 * 940th block of TCP.
 */
function blockName({ protocol, port }: PortRule): string {
  return `${protocol.charAt(0)}${blockStart(port) / BLOCK_SIZE}`;
}
