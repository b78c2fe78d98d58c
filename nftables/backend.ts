/** Mode nftables: this folder renders TrafficPlans as elements and chains of nf_tables, and applies them. */
import type { Protocol } from '../api/objects.ts';
import {
  NFT_SET_FLAGS,
  type NftElementChange,
  NftRefusedError,
} from '../netlink/nftables/tables.ts';
import { type NftCommand, NftError } from '../nft/command.ts';
import { elementDataText, elementKeyText } from '../nft/element.ts';
import type { RuleTable } from '../nft/table.ts';
import type { ApplyReport, Backend, BackendStats } from '../proxier/backend.ts';
import type { NodeAddresses } from '../services/node-port-addresses.ts';
import type { Route } from '../services/route.ts';
import { TimeSlice } from '../sync/time-slice.ts';
import { type AffinityTargetIndex, affinityTargets, changedAffinityTargets } from './affinity.ts';
import {
  type AffinityCleanupOptions,
  deleteStaleAffinity,
  staleAffinityDeletions,
} from './affinity-cleanup.ts';
import { canNftWrite, type NftChain } from './chains.ts';
import { elementFromKeyText, type MapElement } from './element.ts';
import { isInterval, overlapping } from './intervals.ts';
import { rejectedPackets } from './localhost.ts';
import { isDispatchMap, MAP_NAMES, type MapName } from './maps.ts';
import { type Phase, phasesOf } from './phases.ts';
import { NftPlan, type NftPlanOptions, type PlanDiff, type PlannedRoute } from './plan.ts';
import {
  affinityMapsOf,
  chainFills,
  countersOf,
  staticServiceChains,
  TABLE,
  tableDeclarations,
} from './static-chains.ts';
import { tableScript } from './table-script.ts';

export interface NftBackendOptions extends NftPlanOptions {
  readonly onWarning: (message: string) => void;
}

/** The kernel refused an element, and with it all that was to be written at the time. */
export class RefusedElementError extends Error {
  override readonly name = 'RefusedElementError';
  /** The Service (port) that it is of, `ns/name` or `ns/name:port`; undefined if that has gone. */
  readonly service: string | undefined;

  constructor(service: string | undefined, cause: NftRefusedError) {
    super(`${service ?? 'something that is wanted no more'}: ${cause.message}`, { cause });
    this.service = service;
  }
}

/** Elements of a transaction where everything is compared: one need not be, and memory is dear. */
const ELEMENTS_PER_TRANSACTION = 2_000;

/** The nftables mode in one family. */
export class NftBackend implements Backend {
  readonly family: Backend['family'];
  readonly #tables: RuleTable;
  readonly #nft: NftCommand;
  readonly #options: NftBackendOptions;
  /** What somebody else did to the table since everything was compared. */
  #externalChange: string | undefined;
  #onDrift = () => {};
  /** Elements that were given to the kernel, by map. */
  #elementCounts = new Map<string, number>();
  #cleanupFailures = 0;
  #isClosed = false;
  readonly #plan: NftPlan;
  #localhostRejections: ReadonlyMap<Protocol, number> = new Map();
  /** Whether `disturbed` is called for whatever others do. */
  watchesChanges = false;
  /** Maps that packets write, of those that are known to be there. */
  #declaredAffinityMaps: ReadonlySet<string> = new Set();

  constructor(tables: RuleTable, nft: NftCommand, options: NftBackendOptions) {
    this.family = options.family;
    this.#tables = tables;
    this.#nft = nft;
    this.#options = options;
    this.#plan = new NftPlan(options);
  }

  setNodeAddresses(facts: NodeAddresses): void {
    this.#plan.setNodeAddresses(facts);
  }

  update(upserts: Iterable<Route>, removals: Iterable<string>): void {
    this.#plan.update(upserts, removals);
  }

  async apply(full: boolean): Promise<ApplyReport> {
    try {
      return { written: full ? await this.#applyAll() : await this.#applyChanges() };
    } catch (error) {
      if (!(error instanceof NftRefusedError) || error.element === undefined) throw error;
      const element = { map: error.set as MapName, ...error.element };
      throw new RefusedElementError(this.#plan.servicePortOf(element), error);
    }
  }

  async findDrift(): Promise<string | undefined> {
    return this.#externalChange;
  }

  onDrift(callback: () => void): void {
    this.#onDrift = callback;
  }

  stats(): BackendStats {
    return { elements: this.#elementCounts, cleanupFailures: this.#cleanupFailures };
  }

  /** None before there is a table. If they cannot be read now, or no more: as they were at the last call. */
  async localhostRejections(): Promise<ReadonlyMap<Protocol, number>> {
    if (!this.#options.rejectsOnLocalhost || this.#isClosed) return this.#localhostRejections;
    try {
      this.#localhostRejections = rejectedPackets((await this.#tables.counters()) ?? []);
    } catch (error) {
      // The other metrics of a scrape must not go with it.
      const { message } = error as Error;
      this.#options.onWarning(
        `cannot read how many packets were rejected on localhost: ${message}`,
      );
    }
    return this.#localhostRejections;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#tables.close();
  }

  /** Somebody else changed the table. @param what in words for the log. */
  onExternalChange(what: string): void {
    if (this.#externalChange !== undefined) return;
    this.#externalChange = what;
    this.#onDrift();
  }

  async #applyChanges(): Promise<number> {
    const difference = await this.#diff();
    const { chains, deletes, adds, cleanup, routes } = difference;
    // Before any element leads there: a packet under way may not see what comes with the element.
    await this.#declare(chains);
    await this.#tables.transact(chainFills(chains));
    const steps = phasesOf(difference, this.family);
    const broken = changedAffinityTargets(
      affinityTargets(routes.flatMap(([before]) => before ?? [])),
      affinityTargets(routes.flatMap(([, after]) => after ?? [])),
    );
    await this.#tables.transact(phaseChanges(steps.prepare));
    await this.#commit(steps.commit, broken);
    await this.#tables.transact(phaseChanges(steps.withdraw));
    // What is left of notes, and what packets that were under way noted since.
    if (broken.size > 0)
      await deleteStaleAffinity(this.#tables, broken, this.#cleanupOptions(false));
    await this.#tables.transact(phaseChanges(steps.cleanup));
    for (const { map } of adds) addToCount(this.#elementCounts, map, 1);
    for (const { map } of [...deletes, ...cleanup]) addToCount(this.#elementCounts, map, -1);
    return deletes.length + adds.length + cleanup.length;
  }

  /** What changed, without holding the event loop. */
  async #diff(): Promise<PlanDiff> {
    const slice = new TimeSlice();
    const steps = this.#plan.diffSteps();
    for (;;) {
      const { done, value } = steps.next();
      if (done === true) return value;
      if (slice.isOver()) await slice.yield();
    }
  }

  /** Swaps, and has clients forget endpoints that go: as far as can be, in the same moment. */
  async #commit(swap: Phase, broken: AffinityTargetIndex): Promise<void> {
    const changes = phaseChanges(swap);
    const forgotten = await staleAffinityDeletions(
      this.#tables,
      broken,
      this.#cleanupOptions(false),
    );
    try {
      await this.#tables.transact([...changes, ...forgotten]);
    } catch (error) {
      if (!(error instanceof NftRefusedError) || forgotten.length === 0) throw error;
      // One of those may have ended by itself meanwhile; whatever else it was is refused again.
      await this.#tables.transact(changes);
    }
  }

  /** See `Forgetting`. */
  #cleanupOptions(unknown: boolean): AffinityCleanupOptions {
    return { family: this.family, deletesUnknown: unknown, onWarning: this.#options.onWarning };
  }

  /**
   * Compares everything. What packets need last is written first, and what leads them there after
   * it; what is not wanted goes the other way round, when all that is wanted is there.
   */
  async #applyAll(): Promise<number> {
    this.#externalChange = undefined;
    const refusal = await this.#declareTable();
    if (refusal !== undefined) return await this.#replaceTable(refusal);
    const kernel = await this.#kernelElements();
    const [sources, ranges, leads] = [
      new PendingChanges(),
      new PendingChanges(),
      new PendingChanges(),
    ];
    const sticky: PlannedRoute[] = [];
    const slice = new TimeSlice();
    const sizes = new Map<string, number>();
    let written = 0;
    let writing = Promise.resolve();
    // While the kernel takes one transaction, the next is made up.
    const write = async (pending: PendingChanges) => {
      written += pending.size;
      const changes = pending.take();
      await writing;
      writing = this.#tables.transact(changes);
      // Whoever awaits it next hears of it.
      writing.catch(() => {});
    };
    for (const { elements, placed } of this.#plan.snapshot()) {
      if (placed !== undefined && placed.route.affinitySeconds > 0) sticky.push(placed);
      for (const element of elements) {
        addToCount(sizes, element.map, 1);
        const had = takeKernelData(kernel.get(element.map), element);
        if (had === undefined || had !== elementDataText(element)) {
          const others = isInterval(element.map) ? ranges : sources;
          (isDispatchMap(element.map) ? leads : others).add(element, had !== undefined);
        }
        if (slice.isOver()) await slice.yield();
      }
      if (sources.size > ELEMENTS_PER_TRANSACTION) await write(sources);
    }
    await write(sources);
    this.#removeOverlapping(ranges, kernel);
    await write(ranges);
    await writing;
    const chains = [...this.#plan.chains()];
    await this.#declare(chains);
    await this.#tables.transact(chainFills(chains));
    this.#removeOverlapping(leads, kernel);
    await write(leads);
    await writing;
    this.#elementCounts = sizes;
    written += await this.#removeStaleElements(kernel);
    await this.#removeUnknownObjects();
    this.#declaredAffinityMaps = affinityMapsOf(this.#plan.chains());
    const loyalties = this.#allAffinityTargets(sticky);
    return (
      written + (await deleteStaleAffinity(this.#tables, loyalties, this.#cleanupOptions(true)))
    );
  }

  /** Has what the kernel cannot hold beside what is to be added go with it. */
  #removeOverlapping(
    pending: PendingChanges,
    stale: ReadonlyMap<MapName, Map<string, string>>,
  ): void {
    const old = [...stale]
      .filter(([map]) => isInterval(map))
      .flatMap(([map, keys]) =>
        [...keys.keys()].map((key) => elementFromKeyText(map, key, this.family)),
      );
    for (const element of overlapping(old, pending.added, this.family)) {
      pending.remove(element);
      stale.get(element.map)?.delete(elementKeyText(element));
    }
  }

  /** Brings the table with its maps. @returns why the one that is there could not be made so. */
  async #declareTable(): Promise<NftError | undefined> {
    try {
      await this.#nft.run(tableDeclarations(staticServiceChains(this.#options), this.family));
      this.#declaredAffinityMaps = affinityMapsOf([]);
      return undefined;
    } catch (error) {
      if (!(error instanceof NftError) || (await this.#tables.sets()) === undefined) throw error;
      return error;
    }
  }

  /** Maps that packets write are declared by nft, which then can show what is in them. */
  async #declare(chains: readonly NftChain[]): Promise<void> {
    const names = [...affinityMapsOf(chains)];
    if (names.every((name) => this.#declaredAffinityMaps.has(name))) return;
    await this.#nft.run(tableDeclarations(chains, this.family));
    this.#declaredAffinityMaps = new Set([...this.#declaredAffinityMaps, ...names]);
  }

  /** Makes the table anew, in one transaction: one of another version has other maps. */
  async #replaceTable(refusal: NftError): Promise<number> {
    const [reason] = refusal.message.split('\n');
    const warning = `the table is of another version, it is replaced as a whole: ${reason}`;
    this.#options.onWarning(warning);
    const elements = [...this.#plan.snapshot()].flatMap((each) => each.elements);
    const chains = [...this.#plan.chains()];
    const written = chains.map((chain) => (canNftWrite(chain) ? chain : { ...chain, rules: [] }));
    const script = tableScript(written, elements, this.family);
    await this.#nft.run(script);
    await this.#tables.transact(chainFills(chains));
    this.#declaredAffinityMaps = affinityMapsOf(chains);
    this.#elementCounts = new Map();
    for (const { map } of elements) addToCount(this.#elementCounts, map, 1);
    return elements.length;
  }

  /** What the kernel has, by map and key, as text. */
  async #kernelElements(): Promise<Map<MapName, Map<string, string>>> {
    const maps = new Map<MapName, Map<string, string>>();
    for (const name of MAP_NAMES) {
      const elements = new Map<string, string>();
      await this.#tables.visitElements(
        name,
        (element) => elements.set(elementKeyText(element), elementDataText(element)),
        () => elements.clear(),
      );
      maps.set(name, elements);
    }
    return maps;
  }

  /** Of every map that packets write, for what was noted while nobody looked may be of no use. */
  #allAffinityTargets(sticky: readonly PlannedRoute[]): AffinityTargetIndex {
    const loyalties = affinityTargets(sticky);
    const names = affinityMapsOf(this.#plan.chains());
    return new Map([...names].map((name) => [name, loyalties.get(name) ?? new Map()]));
  }

  /** Chains, maps and counters of no use any more: nothing leads to them by now. */
  async #removeUnknownObjects(): Promise<void> {
    const known = new Set([...this.#plan.chains()].map(({ name }) => name));
    const chains = (await this.#tables.chains()) ?? [];
    const maps = new Set<string>([...MAP_NAMES, ...affinityMapsOf(this.#plan.chains())]);
    // Those without a name go with the rules that they are of.
    const sets = ((await this.#tables.sets()) ?? [])
      .filter(({ flags }) => (flags & NFT_SET_FLAGS.anonymous) === 0)
      .map(({ name }) => name);
    const needed = countersOf(this.#plan.chains());
    const counters = ((await this.#tables.counters()) ?? []).map(({ name }) => name);
    try {
      await this.#tables.remove(
        chains.filter((name) => !known.has(name)),
        sets.filter((name) => !maps.has(name)),
        counters.filter((name) => !needed.has(name)),
      );
    } catch (error) {
      if (!(error instanceof NftRefusedError)) throw error;
      this.#cleanupFailures += 1;
      this.#options.onWarning(
        `cannot remove what is not ours from table ${TABLE}: ${error.message}`,
      );
    }
  }

  async #removeStaleElements(
    stale: ReadonlyMap<MapName, ReadonlyMap<string, string>>,
  ): Promise<number> {
    let removed = 0;
    for (const isLast of [false, true]) {
      const elements = [...stale].flatMap(([map, keys]) =>
        isDispatchMap(map) === isLast
          ? []
          : [...keys.keys()].map((key) => elementFromKeyText(map, key, this.family)),
      );
      await this.#tables.transact(changesOf('delete', elements));
      removed += elements.length;
    }
    return removed;
  }
}

/** What an element maps to among these, which it leaves; undefined: it is none of them. */
function takeKernelData(
  elements: Map<string, string> | undefined,
  element: MapElement,
): string | undefined {
  if (elements === undefined || elements.size === 0) return undefined;
  const key = elementKeyText(element);
  const data = elements.get(key);
  elements.delete(key);
  return data;
}

/** Changes that are collected for a transaction. */
class PendingChanges {
  #removed: MapElement[] = [];
  #added: MapElement[] = [];

  get size(): number {
    return this.#added.length;
  }

  get added(): readonly MapElement[] {
    return this.#added;
  }

  add(element: MapElement, isReplaced: boolean): void {
    if (isReplaced) this.#removed.push(element);
    this.#added.push(element);
  }

  remove(element: MapElement): void {
    this.#removed.push(element);
  }

  take(): NftElementChange[] {
    const changes = [...changesOf('delete', this.#removed), ...changesOf('add', this.#added)];
    this.#removed = [];
    this.#added = [];
    return changes;
  }
}

function addToCount(sizes: Map<string, number>, map: MapName, change: 1 | -1): void {
  sizes.set(map, (sizes.get(map) ?? 0) + change);
}

function phaseChanges({ deletes, adds }: Phase): NftElementChange[] {
  return [...changesOf('delete', deletes), ...changesOf('add', adds)];
}

function changesOf(
  action: NftElementChange['action'],
  elements: readonly MapElement[],
): NftElementChange[] {
  return [...Map.groupBy(elements, ({ map }) => map)].map(([set, some]) => ({
    action,
    set,
    elements: action === 'add' ? some : some.map(({ data: _, ...rest }) => rest),
  }));
}
