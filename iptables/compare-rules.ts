/** Compares the rules in the kernel with a ruleset, chain by chain and rule by rule. */
import type { ObjectKey } from '../api/objects.ts';
import type { ComparedState } from '../proxier/compared-object.ts';
import {
  type ComparedRule,
  type ComparisonBuilder,
  compareRules,
  type RuleDifference,
} from '../proxier/comparison.ts';
import { BackgroundSlice } from '../sync/precedence.ts';
import type { TimeSlice } from '../sync/time-slice.ts';
import { isStaticChain, type Table, TREE_PREFIX } from './chains.ts';
import type { ChainComparison, Ruleset, SavedTable, SharedChange } from './ruleset.ts';

/**
 * Compares Portwide's own chains, and its rules in chains of other programs. Skips chains whose
 * changes are not written yet: the ruleset no longer has their previous rules.
 *
 * For one Service: its chains, its rules in the dispatch trees, and the jumps that lead there.
 */
export async function compareRuleset(
  ruleset: Ruleset,
  saved: ReadonlyMap<Table, SavedTable>,
  result: ComparisonBuilder,
): Promise<void> {
  const { service } = result;
  const slice = new BackgroundSlice(result.signal);
  const owners = await chainOwners(ruleset, service, slice);
  for (const [table, rules] of saved) {
    const comparison = new TableComparison(ruleset, table, rules, owners, result);
    if (service === undefined) await comparison.compareAll(slice);
    else await comparison.compareService(service, slice);
  }
}

/** @param service undefined: the owners of all chains. */
async function chainOwners(
  ruleset: Ruleset,
  service: ObjectKey | undefined,
  slice: TimeSlice,
): Promise<Map<string, ObjectKey>> {
  const owners = new Map<string, ObjectKey>();
  for (const [chain, owner] of ruleset.chainOwners()) {
    if (service === undefined || owner === service) owners.set(chain, owner);
    if (slice.isOver()) await slice.yield();
  }
  return owners;
}

class TableComparison {
  readonly #ruleset: Ruleset;
  readonly #table: Table;
  readonly #saved: SavedTable;
  readonly #owners: ReadonlyMap<string, ObjectKey>;
  readonly #result: ComparisonBuilder;

  constructor(
    ruleset: Ruleset,
    table: Table,
    saved: SavedTable,
    owners: ReadonlyMap<string, ObjectKey>,
    result: ComparisonBuilder,
  ) {
    this.#ruleset = ruleset;
    this.#table = table;
    this.#saved = saved;
    this.#owners = owners;
    this.#result = result;
  }

  async compareAll(slice: TimeSlice): Promise<void> {
    for (const chain of this.#ruleset.compareChains(this.#table, this.#saved)) {
      const { desired, actual, isPending } = chain;
      if (desired !== undefined && desired.text === actual) {
        this.#result.addUnchanged(desired.ruleCount + 1);
      } else if (!isPending) {
        this.#addChain(chain);
        this.#addRules(chain, () => true);
      }
      if (slice.isOver()) await slice.yield();
    }
    this.#addSharedRules(() => true);
  }

  async compareService(service: ObjectKey, slice: TimeSlice): Promise<void> {
    const dispatch: ChainComparison[] = [];
    const reached = new Set<string>();
    for (const chain of this.#ruleset.compareChains(this.#table, this.#saved)) {
      const { name, desired, actual, isPending } = chain;
      if (slice.isOver()) await slice.yield();
      if (isPending) continue;
      if (this.#owns(name)) {
        reached.add(name);
        this.#addChain(chain);
        this.#addRules(chain, () => true);
      } else if (isDispatchChain(name)) {
        dispatch.push(chain);
        if (namesService(desired?.text, service) || namesService(actual, service)) {
          reached.add(name);
          this.#addChain(chain);
        }
      }
    }
    // Find the chains that jump to these chains, and the chains that jump to those.
    const jumps = new Map<string, readonly string[]>();
    for (const { name, desired } of dispatch) {
      jumps.set(name, jumpTargets(desired?.text));
      if (slice.isOver()) await slice.yield();
    }
    for (let before = -1; before !== reached.size; ) {
      before = reached.size;
      for (const [name, targets] of jumps) {
        if (targets.some((target) => reached.has(target))) reached.add(name);
      }
    }
    // A rule that the agent does not know may concern all Services behind the chain.
    const concerns = (rule: string | undefined, isDesired: boolean) => {
      if (rule === undefined) return false;
      const owner = serviceIn(rule);
      if (owner !== undefined) return owner === service;
      return !isDesired || reached.has(targetOf(rule) ?? '');
    };
    for (const chain of dispatch) {
      if (!reached.has(chain.name)) continue;
      this.#addRules(
        chain,
        ({ state, desired, actual }) =>
          concerns(desired?.text, true) || (state !== 'ok' && concerns(actual?.text, false)),
      );
      if (slice.isOver()) await slice.yield();
    }
    this.#addSharedRules((rule) => reached.has(targetOf(rule) ?? ''));
  }

  #owns(chain: string): boolean {
    return this.#table === 'nat' && this.#owners.has(chain);
  }

  #addChain({ name, desired, actual }: ChainComparison): void {
    const declaration = `:${name} - [0:0]`;
    this.#result.add(existenceOf(desired, actual), () => ({
      type: 'chain',
      in: this.#table,
      desired: desired === undefined ? null : declaration,
      actual: actual === undefined ? null : declaration,
      service: this.#serviceOf(name, undefined),
    }));
  }

  #addRules(
    { name, desired, actual }: ChainComparison,
    isIncluded: (rule: RuleDifference<ComparedRule>) => boolean,
  ): void {
    const rules = compareRules(linesOf(desired?.text).map(asRule), linesOf(actual).map(asRule));
    for (const rule of rules) {
      if (isIncluded(rule)) this.#addRule(rule.state, name, rule.desired?.text, rule.actual?.text);
    }
  }

  #addRule(
    state: ComparedState,
    chain: string,
    desired: string | undefined,
    actual: string | undefined,
  ): void {
    this.#result.add(state, () => ({
      type: 'rule',
      in: this.#table,
      desired: desired ?? null,
      actual: actual ?? null,
      service: this.#serviceOf(chain, desired ?? actual),
    }));
  }

  #serviceOf(chain: string, rule: string | undefined): ObjectKey | null {
    const owner = this.#table === 'nat' ? this.#owners.get(chain) : undefined;
    return owner ?? (rule === undefined ? undefined : serviceIn(rule)) ?? null;
  }

  /** Compares rules in chains that are shared with other programs. */
  #addSharedRules(isCompared: (rule: string) => boolean): void {
    const changes = this.#ruleset.sharedChanges(this.#table, this.#saved);
    const byChain = new Map(changes.map((change) => [change.chain, change]));
    const rules = this.#ruleset.shared().filter(({ table }) => table === this.#table);
    for (const [chain, own] of Map.groupBy(rules, (rule) => rule.chain)) {
      const change = byChain.get(chain);
      const desired = own.map(({ rule }) => rule);
      const present = desired.filter((rule) => this.#saved.foreign.has(rule));
      const isMisplaced = present.length === desired.length && (change?.insert.length ?? 0) > 0;
      // Set `foreign` has the rules in the order of the kernel.
      const actual = isMisplaced
        ? [...this.#saved.foreign].filter((line) => desired.includes(line))
        : present;
      for (const { state, ...rule } of compareRules(desired.map(asRule), actual.map(asRule))) {
        if (isCompared(rule.desired?.text ?? '')) {
          this.#addRule(state, chain, rule.desired?.text, rule.actual?.text);
        }
      }
    }
    for (const change of changes) {
      for (const rule of staleRules(change)) {
        if (isCompared(rule)) this.#addRule('unexpected', change.chain, undefined, rule);
      }
    }
  }
}

/** Rules to remove that are not inserted again at another place. */
function staleRules({ remove, insert }: SharedChange): string[] {
  return remove.filter((rule) => !insert.includes(rule));
}

function existenceOf(desired: unknown, actual: unknown): ComparedState {
  if (desired === undefined) return 'unexpected';
  return actual === undefined ? 'missing' : 'ok';
}

/** Whether a chain leads packets to the chains of Services. */
function isDispatchChain(name: string): boolean {
  return isStaticChain(name) || Object.values(TREE_PREFIX).some((each) => name.startsWith(each));
}

/** The Service that the comment of a rule names: `"ns/name:port cluster IP"`. */
function serviceIn(rule: string): ObjectKey | undefined {
  return /--comment "([^/" :]+\/[^/" :]+)[: "]/.exec(rule)?.[1];
}

/** Whether the comment of a rule names the Service. */
function namesService(rules: string | undefined, service: ObjectKey): boolean {
  // The search in the whole text is quick, and most chains do not have the name.
  if (rules?.includes(`"${service}`) !== true) return false;
  return linesOf(rules).some((line) => serviceIn(line) === service);
}

/** Targets of the rules that name no Service. */
function jumpTargets(rules: string | undefined): string[] {
  return linesOf(rules).flatMap((line) =>
    serviceIn(line) === undefined ? (targetOf(line) ?? []) : [],
  );
}

function targetOf(rule: string): string | undefined {
  return / -[jg] (\S+)/.exec(rule)?.[1];
}

function linesOf(text: string | undefined): readonly string[] {
  return text === undefined || text === '' ? [] : text.split('\n');
}

function asRule(line: string): ComparedRule {
  return { id: line, text: line };
}
