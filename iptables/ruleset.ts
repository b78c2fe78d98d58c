/** The rules that one family should have, Route by Route, and what the kernel lacks of them. */
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

/** One chain as it should be: rules as text, joined by newlines. */
export interface RenderedChain {
  readonly text: string;
  readonly depth: number;
  /** How many rules the text has. */
  readonly size: number;
}

/** What must be written to one table. */
export interface TableChange {
  readonly table: Table;
  readonly write: ReadonlyMap<string, RenderedChain>;
  readonly remove: readonly string[];
  readonly shared: readonly SharedChange[];
}

/** What a chain that is not ours alone lacks. */
export interface SharedChange {
  readonly chain: string;
  /** It does not exist; naming one that does would flush it. */
  readonly create: boolean;
  readonly remove: readonly string[];
  /** At the head, in this order. */
  readonly insert: readonly string[];
  readonly append: readonly string[];
}

/** One table as `iptables-save` shows it, ours and the built-in chains. */
export interface SavedTable {
  /** Our own chains, to their rules joined by newlines. */
  readonly chains: ReadonlyMap<string, string>;
  /** Rules and declarations (`:NAME`) in chains that are not ours. */
  readonly foreign: ReadonlySet<string>;
}

/** All but its chains, which live in the table they are in. */
type CompiledRoute = Omit<CompiledRules, 'chains'> & {
  readonly chains: readonly string[];
  /** Kept where it has to be compiled again for new facts about the node. */
  readonly route: Route | undefined;
};

const NO_ROUTE: CompiledRoute = {
  chains: [],
  vips: [],
  nodePort: undefined,
  nodePortVerdict: undefined,
  healthCheck: undefined,
  route: undefined,
};

/** What the rules of Routes depend on besides. */
export interface IptablesCompileOptions extends TrafficOptions {
  /** This node's own addresses of the family. */
  readonly nodeAddresses: readonly string[];
}

/**
 * The rules that one family should have, kept up to date Route by Route: a change compiles the
 * Routes concerned, rewrites their chains and the leaves that lead to them, and nothing else.
 * Pure but for its memory: it touches no kernel.
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

  constructor(options: IptablesCompileOptions, standing: StaticRules) {
    this.#options = options;
    this.#staticRules = standing;
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

  /** New facts about the node: recompiles what depends on them. */
  setOptions(options: IptablesCompileOptions, standing: StaticRules): void {
    this.#options = options;
    this.#staticRules = standing;
    this.#writeStaticChains();
    const concerned = [...this.#routes.values()].flatMap(({ route }) => route ?? []);
    this.update(concerned, []);
  }

  /** Hands over changed Routes whole, and the ids of Routes that went. */
  update(upserts: Iterable<Route>, removals: Iterable<string>): void {
    for (const id of removals) this.#replace(id, undefined);
    for (const route of upserts) this.#replace(route.id, route);
  }

  /** Writes the leaves that changed; once for any number of updates, which often share some. */
  #writeTrees(): void {
    const changes = [this.#vips, ...Object.values(this.#ports)].map((tree) => tree.takeChanges());
    for (const chain of changes.flatMap(({ chains }) => chains)) this.#write(chain);
    for (const root of changes.flatMap(({ roots }) => roots)) {
      this.#jumps.set(`${root.table} ${root.name}`, root);
      this.#writeRoot(root);
    }
  }

  /** What changed since `markWritten`, for a kernel that has the rest. */
  pending(): TableChange[] {
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

  /** What one table lacks, given what is in it; the rest counts as written from now on. */
  diff(table: Table, saved: SavedTable): TableChange {
    this.#writeTrees();
    const { chains, dirty } = this.#tables[table];
    const write = new Map<string, RenderedChain>();
    for (const [name, chain] of chains) {
      if (saved.chains.get(name) !== chain.text) write.set(name, chain);
    }
    const remove = [...saved.chains.keys()].filter((name) => !chains.has(name));
    for (const name of dirty)
      if (chains.get(name)?.text === saved.chains.get(name)) dirty.delete(name);
    return { table, write, remove, shared: this.#sharedChanges(table, saved) };
  }

  /** The kernel took everything that was pending when `change` was made. */
  markWritten(change: TableChange): void {
    const { chains, dirty } = this.#tables[change.table];
    for (const [name, chain] of change.write) if (chains.get(name) === chain) dirty.delete(name);
    for (const name of change.remove) if (!chains.has(name)) dirty.delete(name);
  }

  /** How many rules each table should have in our own chains; kept up to date chain by chain. */
  get ruleCounts(): ReadonlyMap<Table, number> {
    return new Map(TABLES.map((table) => [table, this.#tables[table].size]));
  }

  /** The rules in chains that are not ours alone. */
  shared(): readonly SharedRule[] {
    return this.#staticRules.shared();
  }

  #sharedChanges(table: Table, saved: SavedTable): SharedChange[] {
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
      this.#routes.set(id, { ...rest, chains: [...chains.keys()], route: kept });
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
      removeWhenEmpty: mayGo = false,
    } = this.#staticRules.root(table, name);
    const texts = (rules: readonly RuleSpec[]) => rules.map((rule) => ruleText(name, rule));
    const rules = [...texts(before), ...jumps, ...texts(after)];
    // What is there for the tree alone goes with it.
    const isIdle = mayGo && jumps.length === 0;
    this.#write({ table, name, depth: DEPTH.root, rules: isIdle ? [] : rules }, !isIdle);
  }

  #write({ table, name, depth, rules }: TreeChain, keepEmpty = false): void {
    if (rules.length === 0 && !keepEmpty) this.#tables[table].drop(name);
    else this.#tables[table].set(name, { text: rules.join('\n'), depth, size: rules.length });
  }
}

/** What one table should have in our own chains. */
class TableState {
  readonly chains = new Map<string, RenderedChain>();
  /** Chains whose text changed, or that went, since they were last known to be in the kernel. */
  readonly dirty = new Set<string>();
  /** Rules in the chains. */
  size = 0;

  set(name: string, chain: RenderedChain): void {
    const before = this.chains.get(name);
    if (before?.text === chain.text) return;
    this.chains.set(name, chain);
    this.size += chain.size - (before?.size ?? 0);
    this.dirty.add(name);
  }

  drop(name: string): void {
    const before = this.chains.get(name);
    if (before === undefined) return;
    this.chains.delete(name);
    this.size -= before.size;
    this.dirty.add(name);
  }
}

/** A jump as kube-proxy and Portwide write it; with another condition it is somebody else's. */
const KUBE_PROXY_JUMP =
  /^-A (PREROUTING|INPUT|FORWARD|OUTPUT|POSTROUTING)(?: -m conntrack --ctstate NEW| -m comment --comment "kube(?:rnetes|-proxy) [^"]*"){1,2} -j (\S+)$/;

/** Jumps of another mode, or of another version, from built-in chains to chains of ours. */
function staleJumps(
  wanted: readonly SharedRule[],
  saved: SavedTable,
): ReadonlyMap<string, readonly string[]> {
  const rules = new Set(wanted.map(({ rule }) => rule));
  const stale = [...saved.foreign].filter((line) => {
    const target = KUBE_PROXY_JUMP.exec(line)?.[2];
    return target !== undefined && isStaticChain(target) && !rules.has(line);
  });
  return Map.groupBy(stale, (line) => KUBE_PROXY_JUMP.exec(line)?.[1] ?? '');
}

/**
 * What the filter table lacks of the rules that make route_localnet safe, for who sets it before
 * there are any others (`--init-only`).
 */
export function localnetChange(saved: SavedTable): TableChange {
  const shared = sharedChanges(localnetRules(), new Map(), saved);
  return { table: 'filter', write: new Map(), remove: [], shared };
}

/** @param stale rules to be removed, by chain. */
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
 * Our jumps in a chain stand in an order that counts: a source range drops before a Service
 * rejects. Where one is missing or out of order, all are put in anew.
 */
function sharedChange(
  chain: string,
  rules: readonly SharedRule[],
  stale: readonly string[],
  saved: SavedTable,
): SharedChange[] {
  const wanted = rules.map(({ rule }) => rule);
  const present = [...saved.foreign].filter((line) => wanted.includes(line));
  const isRight = present.join('\n') === wanted.join('\n');
  if (isRight && stale.length === 0) return [];
  const isBuiltin = rules.every(({ builtin }) => builtin);
  const moves = isBuiltin && !isRight;
  return [
    {
      chain,
      create: !isBuiltin && !saved.foreign.has(`:${chain}`),
      remove: moves ? [...stale, ...present] : stale,
      insert: moves ? wanted : [],
      append: isBuiltin ? [] : wanted.filter((rule) => !saved.foreign.has(rule)),
    },
  ];
}
