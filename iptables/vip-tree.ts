/**
 * Dispatches packets to the rules of their VIP without traversing the rules of all VIPs. kube-proxy
 * has one rule for each VIP and port in the single chain KUBE-SERVICES. Every new connection
 * traverses the chain, and every change rewrites it. Portwide has a tree of two levels instead. The
 * tree branches by the low, then the high half of the last byte of the address. Addresses from a
 * pool are evenly distributed over the values of this byte:
 *
 *   KUBE-SERVICES ── -d 0.0.0.5/0.0.0.15 ──► KUBE-SVC-VIP-5 ── -d 0.0.0.160/0.0.0.240 ──► KUBE-SVC-VIP-5A
 *
 * In table nat, a packet traverses at most 32 dispatch rules, then the rules of one leaf: VIPs with
 * the same last byte. A change rewrites one leaf. Table filter has no branches, because most VIPs
 * have no rule there. All entries of one VIP share a leaf, and their order in the leaf is their
 * precedence. A VIP with many rules, which has port ranges, has its own chain. Packets to other VIPs
 * of the leaf do not traverse it, and changes of other VIPs do not write it.
 */
import { lastByte } from '../api/addresses.ts';
import { compareText, getOrCreate, setList } from '../api/collections.ts';
import { type IpFamily, PROTOCOLS } from '../api/objects.ts';
import { PROXY_FIREWALL, SERVICES, type Table, TREE_PREFIX, vipChain } from './chains.ts';
import { DEPTH, type VipEntry } from './compile.ts';
import { exactAddress, type RuleSpec, ruleText } from './rule.ts';

/** A chain to write, or to remove if it has no rules. */
export interface TreeChain {
  readonly table: Table;
  readonly name: string;
  readonly depth: number;
  readonly rules: readonly string[];
}

/** Jumps at the head of a tree's root chain; other rules of that chain may follow. */
export interface TreeRoot {
  readonly table: Table;
  readonly name: string;
  readonly jumps: readonly string[];
}

interface Tree {
  readonly table: Table;
  readonly root: string;
  /** Prefix of the tree's chain names. */
  readonly prefix: string;
  /** Target of an entry in this tree; undefined: none. */
  target(entry: VipEntry): string | undefined;
  /** Target that keeps a packet that matches an entry from reaching wider entries of the VIP. */
  readonly stop: string;
  /**
   * Whether the root jumps to branches. In table filter, where few VIPs have rules, the root jumps
   * to leaves.
   */
  readonly branches: boolean;
}

const TREES: readonly Tree[] = [
  {
    table: 'nat',
    root: SERVICES,
    prefix: TREE_PREFIX.vips,
    target: (entry) => entry.chain,
    // Do not use RETURN: node ports are matched later, and must not capture packets to a VIP that
    // the node holds.
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

/** A VIP with more rules has its own chain. */
const MAX_RULES_IN_LEAF = 16;

/** The three trees over the VIPs of one family: translation, rejects, source ranges. */
export class VipTrees {
  readonly #family: IpFamily;
  /** Entries by last byte of the address, then by VIP and owner. */
  readonly #leaves = new Map<number, Map<string, readonly VipEntry[]>>();
  readonly #changedLeaves = new Set<number>();
  /** Last bytes whose leaf chain has rules, by tree; branches jump to these leaves. */
  readonly #nonEmptyLeaves = new Map<Tree, Set<number>>(TREES.map((tree) => [tree, new Set()]));

  /** Names of the chains of single VIPs, by leaf. */
  readonly #vipChains = new Map<string, readonly string[]>();

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
   * Returns the chains that may have changed since the last call: leaves and branches, and the
   * jumps of the root chains.
   */
  takeChanges(): { chains: TreeChain[]; roots: TreeRoot[] } {
    const chains: TreeChain[] = [];
    const roots: TreeRoot[] = [];
    for (const tree of TREES) {
      const filled = this.#nonEmptyLeaves.get(tree) ?? new Set();
      const toggledLeaves = new Set<number>();
      for (const byte of this.#changedLeaves) {
        const [leaf, ...ofVips] = this.#leafChains(tree, byte);
        chains.push(leaf, ...ofVips, ...this.#replaceVipChains(leaf, ofVips));
        if (filled.has(byte) === leaf.rules.length > 0) continue;
        if (leaf.rules.length > 0) filled.add(byte);
        else filled.delete(byte);
        toggledLeaves.add(byte);
      }
      if (tree.branches) {
        for (const low of new Set([...toggledLeaves].map(lowHalf))) {
          chains.push(this.#branchChain(tree, filled, low));
        }
      }
      if (toggledLeaves.size > 0) {
        roots.push({ table: tree.table, name: tree.root, jumps: this.#rootJumps(tree, filled) });
      }
    }
    this.#changedLeaves.clear();
    return { chains, roots };
  }

  /** The chain of a leaf, and the chains of its VIPs with many rules. */
  #leafChains(tree: Tree, byte: number): [leaf: TreeChain, ...ofVips: TreeChain[]] {
    const { table } = tree;
    const name = leafName(tree, byte);
    const rules: string[] = [];
    const ofVips: TreeChain[] = [];
    const entries = [...(this.#leaves.get(byte)?.values() ?? [])].flat();
    const vips = Map.groupBy(entries, ({ vip }) => vip);
    for (const [vip, ofVip] of [...vips].sort(([a], [b]) => compareText(a, b))) {
      const specs = vipRules(tree, this.#family, ofVip);
      const hasOwn = specs.length > MAX_RULES_IN_LEAF;
      const chain = hasOwn ? vipChain(tree.prefix, vip) : name;
      const texts = specs.map((rule) => ruleText(chain, rule));
      if (!hasOwn) {
        rules.push(...texts);
        continue;
      }
      const destination = exactAddress(vip, this.#family);
      rules.push(ruleText(name, { destination, target: chain }));
      ofVips.push({ table, name: chain, depth: DEPTH.vip, rules: texts });
    }
    return [{ table, name, depth: DEPTH.leaf, rules }, ...ofVips];
  }

  /** Replaces the chains of single VIPs of a leaf. @returns the chains to remove. */
  #replaceVipChains({ table, name: leaf }: TreeChain, chains: readonly TreeChain[]): TreeChain[] {
    const key = `${table} ${leaf}`;
    const names = chains.map(({ name }) => name);
    const gone = (this.#vipChains.get(key) ?? []).filter((name) => !names.includes(name));
    setList(this.#vipChains, key, names);
    return gone.map((name) => ({ table, name, depth: DEPTH.vip, rules: [] }));
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
 * Rules of one VIP in one tree, by precedence: exact port, range, all ports. An entry without a
 * target still hides wider entries: it gets the `stop` target if a wider entry has a target. In
 * table nat, an entry also gets the `stop` target if its chain may return packets untranslated.
 */
function vipRules(tree: Tree, family: IpFamily, entries: readonly VipEntry[]): RuleSpec[] {
  const rules: RuleSpec[] = [];
  const hasWide = entries.some(coversManyPorts);
  let widerActs = tree.table === 'nat' && hasWide;
  for (const entry of entries.toSorted(byPrecedence).reverse()) {
    const target = tree.target(entry);
    const match = {
      destination: exactAddress(entry.vip, family),
      protocol: entry.protocol,
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
    PROTOCOLS.indexOf(a.protocol ?? 'TCP') - PROTOCOLS.indexOf(b.protocol ?? 'TCP') ||
    (a.ports[0]?.from ?? 0) - (b.ports[0]?.from ?? 0) ||
    compareText(a.comment, b.comment)
  );
}

function lowHalf(byte: number): number {
  return byte & 15;
}

function branchName(tree: Tree, low: number): string {
  return tree.prefix + low.toString(16).toUpperCase();
}

/** Branch name and high half: KUBE-SVC-VIP-5A has addresses that end in .165 (0xA5). */
function leafName(tree: Tree, byte: number): string {
  return branchName(tree, lowHalf(byte)) + (byte >> 4).toString(16).toUpperCase();
}

/** Matches addresses by bits of their last byte, for example `0.0.0.5/0.0.0.15`. */
function maskedByte(family: IpFamily, value: number, mask: number): string {
  return family === 'IPv4'
    ? `0.0.0.${value}/0.0.0.${mask}`
    : `::${value === 0 ? '' : value.toString(16)}/::${mask.toString(16)}`;
}
