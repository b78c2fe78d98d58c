/** Desired iptables rules of one family, and their diff against the kernel. */
import type { ObjectKey } from '../api/objects.ts';
import type { Route } from '../services/route.ts';
import type { TrafficOptions } from '../traffic/options.ts';
import { allowsOwnVips, dependsOnNodeAddresses, trafficPlan } from '../traffic/plan.ts';
import { localnetRules, type SharedRule, type StaticRules } from './base-rules.ts';
import {
  EXTERNAL_SERVICES,
  isStaticChain,
  NODE_PORTS,
  PROXY_FIREWALL,
  SERVICES,
  type Table,
  TREE_PREFIX,
} from './chains.ts';
import { type CompiledRules, compileIptablesRules, DEPTH } from './compile.ts';
import { PortTree } from './port-tree.ts';
import { type RuleSpec, ruleText } from './rule.ts';
import { type TreeChain, type TreeRoot, VipTrees } from './vip-tree.ts';

export const TABLES: readonly Table[] = ['mangle', 'nat', 'filter'];

/** One desired chain: its rules as text, joined by newlines. */
export interface RenderedChain {
  readonly text: string;
  readonly depth: number;
  /** Number of rules in the text. */
  readonly ruleCount: number;
}

/** Changes to write to one table. */
export interface TableChange {
  readonly table: Table;
  readonly write: ReadonlyMap<string, RenderedChain>;
  readonly remove: readonly string[];
  readonly shared: readonly SharedChange[];
}

/** Changes to a chain that is shared with other programs. */
export interface SharedChange {
  readonly chain: string;
  /**
   * Whether to create the chain, because it does not exist. Naming an existing chain in the input
   * would flush it.
   */
  readonly create: boolean;
  readonly remove: readonly string[];
  /** Rules to insert at the head, in this order. */
  readonly insert: readonly string[];
  readonly append: readonly string[];
}

/** One of Portwide's own chains, as it should be and as the kernel has it. */
export interface ChainComparison {
  readonly name: string;
  readonly desired: RenderedChain | undefined;
  /** The rules, joined by newlines; undefined: the kernel does not have the chain. */
  readonly actual: string | undefined;
  /** Whether the desired rules are not written yet. */
  readonly isPending: boolean;
}

/** One table, parsed from the output of `iptables-save`. */
export interface SavedTable {
  /** Chains of Portwide and kube-proxy with their rules, joined by newlines. */
  readonly chains: ReadonlyMap<string, string>;
  /** Rules and declarations (`:NAME`) of built-in chains and of chains of other programs. */
  readonly foreign: ReadonlySet<string>;
}

/**
 * The compiled rules of a Route. Holds only the names of the chains; `TableState` holds their text.
 */
type CompiledRoute = Omit<CompiledRules, 'chains'> & {
  readonly service: ObjectKey | undefined;
  readonly chains: readonly string[];
  /** The Route, if a change of the node's addresses requires compiling it again. */
  readonly route: Route | undefined;
};

const NO_ROUTE: CompiledRoute = {
  service: undefined,
  chains: [],
  vips: [],
  nodePort: undefined,
  nodePortVerdict: undefined,
  healthCheck: undefined,
  route: undefined,
};

/** Options that compiled Routes depend on. */
export interface IptablesCompileOptions extends TrafficOptions {
  /** This node's addresses of the family. */
  readonly nodeAddresses: readonly string[];
}

/**
 * Desired rules of one family, maintained Route by Route. A change compiles the affected Routes,
 * and rewrites only their chains and the leaves that dispatch to them. Does not access the kernel.
 */
export class Ruleset {
  #options: IptablesCompileOptions;
  #staticRules: StaticRules;
  readonly #routes = new Map<string, CompiledRoute>();
  readonly #vips: VipTrees;
  readonly #ports = {
    nodePort: new PortTree('nat', NODE_PORTS, TREE_PREFIX.nodePorts),
    nodePortVerdict: new PortTree('filter', EXTERNAL_SERVICES, TREE_PREFIX.nodePortVerdicts),
    healthCheck: new PortTree('filter', NODE_PORTS, TREE_PREFIX.healthChecks),
  };
  readonly #jumps = new Map<string, TreeRoot>();
  readonly #tables = { mangle: new TableState(), nat: new TableState(), filter: new TableState() };

  constructor(options: IptablesCompileOptions, staticRules: StaticRules) {
    this.#options = options;
    this.#staticRules = staticRules;
    this.#vips = new VipTrees(options.family);
    for (const [table, name] of [
      ['nat', SERVICES],
      ['nat', NODE_PORTS],
      ['filter', SERVICES],
      ['filter', NODE_PORTS],
      ['filter', EXTERNAL_SERVICES],
      ['filter', PROXY_FIREWALL],
    ] as const) {
      this.#jumps.set(`${table} ${name}`, { table, name, jumps: [] });
    }
    this.#writeStaticChains();
  }

  /**
   * Sets options, which include the node's addresses, and recompiles the Routes that depend on the
   * node's addresses.
   */
  setOptions(options: IptablesCompileOptions, staticRules: StaticRules): void {
    this.#options = options;
    this.#staticRules = staticRules;
    this.#writeStaticChains();
    const affected = [...this.#routes.values()].flatMap(({ route }) => route ?? []);
    this.update(affected, []);
  }

  /** Applies changed Routes, each complete, and the ids of removed Routes. */
  update(upserts: Iterable<Route>, removals: Iterable<string>): void {
    for (const id of removals) this.#replace(id, undefined);
    for (const route of upserts) this.#replace(route.id, route);
  }

  /**
   * Writes changed leaf chains, once for any number of updates, because updates often share leaves.
   */
  #writeTrees(): void {
    const changes = [this.#vips, ...Object.values(this.#ports)].map((tree) => tree.takeChanges());
    for (const chain of changes.flatMap(({ chains }) => chains)) this.#write(chain);
    for (const root of changes.flatMap(({ roots }) => roots)) {
      this.#jumps.set(`${root.table} ${root.name}`, root);
      this.#writeRoot(root);
    }
  }

  /** Changes that are not marked as written. Only valid if the kernel has all changes that are. */
  pendingChanges(): TableChange[] {
    this.#writeTrees();
    return TABLES.map((table) => {
      const { chains, dirty } = this.#tables[table];
      const write = new Map<string, RenderedChain>();
      const remove: string[] = [];
      for (const name of dirty) {
        const chain = chains.get(name);
        if (chain === undefined) remove.push(name);
        else write.set(name, chain);
      }
      return { table, write, remove, shared: [] };
    });
  }

  /**
   * Diffs one table against the kernel, and marks chains that match the kernel as written.
   */
  diff(table: Table, saved: SavedTable): TableChange {
    const write = new Map<string, RenderedChain>();
    const remove: string[] = [];
    for (const { name, desired, actual } of this.compareChains(table, saved)) {
      if (desired === undefined) remove.push(name);
      else if (desired.text !== actual) write.set(name, desired);
    }
    const { chains, dirty } = this.#tables[table];
    for (const name of dirty)
      if (chains.get(name)?.text === saved.chains.get(name)) dirty.delete(name);
    return { table, write, remove, shared: this.sharedChanges(table, saved) };
  }

  /** Compares Portwide's own chains of one table with the kernel: desired chains, then all others. */
  *compareChains(table: Table, saved: SavedTable): Iterable<ChainComparison> {
    this.#writeTrees();
    const { chains, dirty } = this.#tables[table];
    let found = 0;
    for (const [name, desired] of chains) {
      const actual = saved.chains.get(name);
      if (actual !== undefined) found += 1;
      yield { name, desired, actual, isPending: dirty.has(name) };
    }
    // Skip the search that blocks the event loop if it would find nothing.
    if (found === saved.chains.size) return;
    for (const [name, actual] of saved.chains) {
      if (chains.has(name)) continue;
      yield { name, desired: undefined, actual, isPending: dirty.has(name) };
    }
  }

  /** The Services of chains that belong to one Service, by chain of table nat; chain by chain. */
  *chainOwners(): Iterable<readonly [chain: string, service: ObjectKey]> {
    for (const { chains, service } of this.#routes.values()) {
      if (service !== undefined) for (const name of chains) yield [name, service];
    }
  }

  /** Marks a change as written. Chains that changed again since then stay pending. */
  markWritten(change: TableChange): void {
    const { chains, dirty } = this.#tables[change.table];
    for (const [name, chain] of change.write) if (chains.get(name) === chain) dirty.delete(name);
    for (const name of change.remove) if (!chains.has(name)) dirty.delete(name);
  }

  /**
   * Number of desired rules in Portwide's own chains, by table; updated whenever a chain changes.
   */
  get ruleCounts(): ReadonlyMap<Table, number> {
    return new Map(TABLES.map((table) => [table, this.#tables[table].ruleCount]));
  }

  /** The desired rules of one of Portwide's own chains; none if there is no such chain. */
  chainRules(table: Table, chain: string): readonly string[] {
    const text = this.#tables[table].chains.get(chain)?.text ?? '';
    return text === '' ? [] : text.split('\n');
  }

  /** The Service whose Route has the chain; undefined for chains of all Services. Searches all Routes. */
  serviceOfChain(chain: string): ObjectKey | undefined {
    for (const [id, { chains }] of this.#routes) {
      // A Route id begins with the key of its Service.
      if (chains.includes(chain)) return id.split('/', 2).join('/');
    }
    return undefined;
  }

  /** Rules in chains that are shared with other programs. */
  shared(): readonly SharedRule[] {
    return this.#staticRules.shared();
  }

  /** Changes that complete Portwide's rules in chains of other programs. */
  sharedChanges(table: Table, saved: SavedTable): SharedChange[] {
    const own = this.shared().filter((rule) => rule.table === table);
    return sharedChanges(own, staleJumps(own, saved), saved);
  }

  #replace(id: string, route: Route | undefined): void {
    const before = this.#routes.get(id) ?? NO_ROUTE;
    const after = route && this.#compile(route);
    for (const name of before.chains) {
      if (after?.chains.has(name) !== true) this.#tables.nat.drop(name);
    }
    for (const [name, { rules, depth }] of after?.chains ?? []) {
      this.#write({ table: 'nat', name, rules, depth });
    }
    this.#vips.replace(id, before.vips, after?.vips ?? []);
    for (const what of ['nodePort', 'nodePortVerdict', 'healthCheck'] as const) {
      this.#ports[what].replace(id, before[what], after?.[what]);
    }
    if (after === undefined) this.#routes.delete(id);
    else {
      const { chains, ...rest } = after;
      const kept = route && dependsOnNodeAddresses(route) ? route : undefined;
      const service = route?.serviceKey;
      this.#routes.set(id, { ...rest, service, chains: [...chains.keys()], route: kept });
    }
  }

  #compile(route: Route): CompiledRules {
    const plan = trafficPlan(route, allowsOwnVips(route, this.#options.nodeAddresses));
    return compileIptablesRules(plan, this.#options);
  }

  #writeStaticChains(): void {
    for (const chain of this.#staticRules.chains()) this.#write(chain, true);
    for (const root of this.#jumps.values()) this.#writeRoot(root);
  }

  #writeRoot({ table, name, jumps }: TreeRoot): void {
    const {
      before = [],
      after = [],
      removeWhenEmpty = false,
    } = this.#staticRules.root(table, name);
    const texts = (rules: readonly RuleSpec[]) => rules.map((rule) => ruleText(name, rule));
    const rules = [...texts(before), ...jumps, ...texts(after)];
    // Rules that exist only for the tree are removed with the tree.
    const isIdle = removeWhenEmpty && jumps.length === 0;
    this.#write({ table, name, depth: DEPTH.root, rules: isIdle ? [] : rules }, !isIdle);
  }

  #write({ table, name, depth, rules }: TreeChain, keepEmpty = false): void {
    if (rules.length === 0 && !keepEmpty) this.#tables[table].drop(name);
    else this.#tables[table].set(name, { text: rules.join('\n'), depth, ruleCount: rules.length });
  }
}

/** Desired content of Portwide's own chains in one table. */
class TableState {
  readonly chains = new Map<string, RenderedChain>();
  /** Chains that changed or were removed since the kernel was last known to match. */
  readonly dirty = new Set<string>();
  /** Number of rules in all chains. */
  ruleCount = 0;

  set(name: string, chain: RenderedChain): void {
    const before = this.chains.get(name);
    if (before?.text === chain.text) return;
    this.chains.set(name, chain);
    this.ruleCount += chain.ruleCount - (before?.ruleCount ?? 0);
    this.dirty.add(name);
  }

  drop(name: string): void {
    const before = this.chains.get(name);
    if (before === undefined) return;
    this.chains.delete(name);
    this.ruleCount -= before.ruleCount;
    this.dirty.add(name);
  }
}

/**
 * A jump as kube-proxy and Portwide write it. A jump with other matches belongs to another program.
 */
const KUBE_PROXY_JUMP =
  /^-A (PREROUTING|INPUT|FORWARD|OUTPUT|POSTROUTING)(?: -m conntrack --ctstate NEW| -m comment --comment "kube(?:rnetes|-proxy) [^"]*"){1,2} -j (\S+)$/;

/**
 * Undesired jumps from built-in chains to static chains, by built-in chain. Another mode, another
 * version or kube-proxy has left these jumps.
 */
function staleJumps(
  desired: readonly SharedRule[],
  saved: SavedTable,
): ReadonlyMap<string, readonly string[]> {
  const rules = new Set(desired.map(({ rule }) => rule));
  const stale = [...saved.foreign].filter((line) => {
    const target = KUBE_PROXY_JUMP.exec(line)?.[2];
    return target !== undefined && isStaticChain(target) && !rules.has(line);
  });
  return Map.groupBy(stale, (line) => KUBE_PROXY_JUMP.exec(line)?.[1] ?? '');
}

/**
 * Missing rules of table filter that make route_localnet safe. For `--init-only`, which sets
 * route_localnet before other rules exist.
 */
export function localnetChange(saved: SavedTable): TableChange {
  const shared = sharedChanges(localnetRules(), new Map(), saved);
  return { table: 'filter', write: new Map(), remove: [], shared };
}

/** @param stale rules to remove, by chain. */
function sharedChanges(
  own: readonly SharedRule[],
  stale: ReadonlyMap<string, readonly string[]>,
  saved: SavedTable,
): SharedChange[] {
  const chains = new Set([...own.map(({ chain }) => chain), ...stale.keys()]);
  return [...chains].flatMap((chain) => {
    const rules = own.filter((rule) => rule.chain === chain);
    return sharedChange(chain, rules, stale.get(chain) ?? [], saved);
  });
}

/**
 * The order of Portwide's jumps in a chain matters: source ranges drop before a Service rejects. If
 * a jump is missing or out of order, all jumps of the chain are inserted again.
 */
function sharedChange(
  chain: string,
  rules: readonly SharedRule[],
  stale: readonly string[],
  saved: SavedTable,
): SharedChange[] {
  const desired = rules.map(({ rule }) => rule);
  const present = [...saved.foreign].filter((line) => desired.includes(line));
  const isInOrder = present.join('\n') === desired.join('\n');
  if (isInOrder && stale.length === 0) return [];
  const isBuiltin = rules.every(({ builtin }) => builtin);
  const moves = isBuiltin && !isInOrder;
  return [
    {
      chain,
      create: !isBuiltin && !saved.foreign.has(`:${chain}`),
      remove: moves ? [...stale, ...present] : stale,
      insert: moves ? desired : [],
      append: isBuiltin ? [] : desired.filter((rule) => !saved.foreign.has(rule)),
    },
  ];
}
