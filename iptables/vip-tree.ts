/**
 * From a VIP to its rules without walking all of them. kube-proxy keeps one rule a VIP and port in
 * the one chain KUBE-SERVICES: every new connection walks it, every change rewrites it. Here a tree
 * of two levels stands between, by the low and then the high half of the address's last byte (which
 * addresses handed out from a pool use evenly):
 *
 *   KUBE-SERVICES ── -d 0.0.0.5/0.0.0.15 ──► KUBE-SVC-VIP-5 ── -d 0.0.0.160/0.0.0.240 ──► KUBE-SVC-VIP-5A
 *
 * A packet passes at most 32 rules and the ports of one 256th of the VIPs; a change rewrites one leaf. In table
 * filter, where most VIPs have no rule, the branches are left out.
 * All entries of one VIP share a leaf, so that its order there is their precedence.
 */
import { lastByte } from '../api/addresses.ts';
import { compareText, getOrCreate } from '../api/collections.ts';
import { type IpFamily, PROTOCOLS } from '../api/objects.ts';
import { PROXY_FIREWALL, SERVICES, type Table, TREE_PREFIX } from './chains.ts';
import { DEPTH, type VipEntry } from './compile.ts';
import { host, type RuleSpec, ruleText } from './rule.ts';

/** A chain to write, or to remove when it has no rules. */
export interface TreeChain {
  readonly table: Table;
  readonly name: string;
  readonly depth: number;
  readonly rules: readonly string[];
}

/** The jumps with which the root of a tree begins; rules of its own may follow. */
export interface TreeRoot {
  readonly table: Table;
  readonly name: string;
  readonly jumps: readonly string[];
}

interface Tree {
  readonly table: Table;
  readonly root: string;
  /** Of the names of its chains. */
  readonly prefix: string;
  /** What an entry does in this tree; undefined: nothing. */
  target(entry: VipEntry): string | undefined;
  /** Target that keeps a packet of an entry from the wider entries of its VIP. */
  readonly stop: string;
  /** Table filter only holds exceptions: there the root jumps to the leaves, without branches. */
  readonly branches: boolean;
}

const TREES: readonly Tree[] = [
  {
    table: 'nat',
    root: SERVICES,
    prefix: TREE_PREFIX.vips,
    target: (entry) => entry.chain,
    // Not RETURN: node ports are looked up later, and must not capture a VIP that the node holds.
    stop: 'ACCEPT',
    branches: true,
  },
  {
    table: 'filter',
    root: SERVICES,
    prefix: TREE_PREFIX.vips,
    target: ({ verdict }) => verdict,
    stop: 'RETURN',
    branches: false,
  },
  {
    table: 'filter',
    root: PROXY_FIREWALL,
    prefix: TREE_PREFIX.firewall,
    target: (entry) => (entry.firewall ? 'DROP' : undefined),
    stop: 'RETURN',
    branches: false,
  },
];

/** The three trees over VIPs of one family: translation, rejects, source ranges. */
export class VipTrees {
  readonly #family: IpFamily;
  /** Last byte of the address -> VIP and owner -> entries. */
  readonly #leaves = new Map<number, Map<string, readonly VipEntry[]>>();
  readonly #changedLeaves = new Set<number>();
  /** Leaf chains that have rules, by tree root and table; what the branches jump to. */
  readonly #nonEmptyLeaves = new Map<Tree, Set<number>>(TREES.map((tree) => [tree, new Set()]));

  constructor(family: IpFamily) {
    this.#family = family;
  }

  /** Replaces the entries of one owner (a Route). */
  replace(owner: string, before: readonly VipEntry[], after: readonly VipEntry[]): void {
    for (const { vip } of before) {
      const byte = lastByte(vip);
      if (this.#leaves.get(byte)?.delete(`${vip} ${owner}`) === true) this.#changedLeaves.add(byte);
    }
    for (const [vip, entries] of Map.groupBy(after, (entry) => entry.vip)) {
      const byte = lastByte(vip);
      getOrCreate(this.#leaves, byte, () => new Map()).set(`${vip} ${owner}`, entries);
      this.#changedLeaves.add(byte);
    }
  }

  /**
   * The chains that the replacements since the last call may have changed: leaves, branches and
   * the jumps of the roots.
   */
  takeChanges(): { chains: TreeChain[]; roots: TreeRoot[] } {
    const chains: TreeChain[] = [];
    const roots: TreeRoot[] = [];
    for (const tree of TREES) {
      const filled = this.#nonEmptyLeaves.get(tree) ?? new Set();
      const moved = new Set<number>();
      for (const byte of this.#changedLeaves) {
        const leaf = this.#leafChain(tree, byte);
        chains.push(leaf);
        if (filled.has(byte) === leaf.rules.length > 0) continue;
        if (leaf.rules.length > 0) filled.add(byte);
        else filled.delete(byte);
        moved.add(byte);
      }
      if (tree.branches) {
        for (const low of new Set([...moved].map(lowHalf))) {
          chains.push(this.#branchChain(tree, filled, low));
        }
      }
      if (moved.size > 0) {
        roots.push({ table: tree.table, name: tree.root, jumps: this.#rootJumps(tree, filled) });
      }
    }
    this.#changedLeaves.clear();
    return { chains, roots };
  }

  #leafChain(tree: Tree, byte: number): TreeChain {
    const name = leafName(tree, byte);
    const rules: string[] = [];
    const entries = [...(this.#leaves.get(byte)?.values() ?? [])].flat();
    const vips = Map.groupBy(entries, ({ vip }) => vip);
    for (const [, ofVip] of [...vips].sort(([a], [b]) => compareText(a, b))) {
      for (const rule of vipRules(tree, this.#family, ofVip)) {
        rules.push(ruleText(name, rule));
      }
    }
    return { table: tree.table, name, depth: DEPTH.leaf, rules };
  }

  #branchChain(tree: Tree, filled: ReadonlySet<number>, low: number): TreeChain {
    const name = branchName(tree, low);
    const rules = [];
    for (let high = 0; high < 16; high++) {
      if (!filled.has(high * 16 + low)) continue;
      const destination = { value: maskedByte(this.#family, high * 16, 0xf0) };
      rules.push(ruleText(name, { destination, target: leafName(tree, high * 16 + low) }));
    }
    return { table: tree.table, name, depth: DEPTH.branch, rules };
  }

  #rootJumps(tree: Tree, filled: ReadonlySet<number>): string[] {
    const [values, mask, name] = tree.branches
      ? ([new Set([...filled].map(lowHalf)), 0x0f, branchName] as const)
      : ([filled, 0xff, leafName] as const);
    return [...values]
      .sort((a, b) => a - b)
      .map((value) =>
        ruleText(tree.root, {
          destination: { value: maskedByte(this.#family, value, mask) },
          target: name(tree, value),
        }),
      );
  }
}

/**
 * Rules of one VIP in one tree, by precedence: exact port, range, all. An entry that does nothing
 * here still hides wider ones: it gets a stop where one of those would act. In nat that is also so
 * where the entry's chain may come back without having translated.
 */
function vipRules(tree: Tree, family: IpFamily, entries: readonly VipEntry[]): RuleSpec[] {
  const rules: RuleSpec[] = [];
  const hasWide = entries.some(coversManyPorts);
  let widerActs = tree.table === 'nat' && hasWide;
  for (const entry of entries.toSorted(byPrecedence).reverse()) {
    const target = tree.target(entry);
    const match = {
      destination: host(entry.vip, family),
      protocol: entry.ports?.protocol,
      ports: entry.ports,
      comment: entry.comment,
    };
    if (widerActs && (target === undefined || (tree.table === 'nat' && entry.returns))) {
      rules.push({ ...match, target: tree.stop });
    }
    if (target !== undefined) {
      rules.push({ ...match, target });
      if (coversManyPorts(entry)) widerActs = true;
    }
  }
  return rules.reverse();
}

function coversManyPorts({ kind }: VipEntry): boolean {
  return kind !== 'health' && kind !== 'port';
}

const PRECEDENCE = ['health', 'port', 'range', 'all', 'outside'];

function byPrecedence(a: VipEntry, b: VipEntry): number {
  return (
    PRECEDENCE.indexOf(a.kind) - PRECEDENCE.indexOf(b.kind) ||
    PROTOCOLS.indexOf(a.ports?.protocol ?? 'TCP') - PROTOCOLS.indexOf(b.ports?.protocol ?? 'TCP') ||
    (a.ports?.from ?? 0) - (b.ports?.from ?? 0) ||
    compareText(a.comment, b.comment)
  );
}

function lowHalf(byte: number): number {
  return byte & 15;
}

function branchName(tree: Tree, low: number): string {
  return tree.prefix + low.toString(16).toUpperCase();
}

/** Branch name and the high half: KUBE-SVC-VIP-5A holds addresses that end in .165 (0xA5). */
function leafName(tree: Tree, byte: number): string {
  return branchName(tree, lowHalf(byte)) + (byte >> 4).toString(16).toUpperCase();
}

/** `0.0.0.5/0.0.0.15`: matches addresses by bits of their last byte. */
function maskedByte(family: IpFamily, value: number, mask: number): string {
  return family === 'IPv4'
    ? `0.0.0.${value}/0.0.0.${mask}`
    : `::${value === 0 ? '' : value.toString(16)}/::${mask.toString(16)}`;
}
