/**
 * Proxy mode nftables, one IP family: renders Routes as map elements and chains of table `portwide` and
 * applies them to the kernel.
 */
import { getOrCreate } from '../api/collections.ts';
import type { ObjectKey, Protocol } from '../api/objects.ts';
import {
  type NftElementChange,
  type NftOperation,
  NftRefusedError,
} from '../netlink/nftables/tables.ts';
import type { RuleTable } from '../nft/table.ts';
import type { ApplyReport, Backend, BackendStats } from '../proxier/backend.ts';
import type { Comparison } from '../proxier/compared-object.ts';
import { ComparisonBuilder } from '../proxier/comparison.ts';
import type {
  BackendTraffic,
  KernelRule,
  ModeTraffic,
  RulePurpose,
} from '../proxier/kernel-rule.ts';
import { SyncOverlap } from '../proxier/sync-overlap.ts';
import type { NodeAddresses } from '../services/node-port-addresses.ts';
import type { Route } from '../services/route.ts';
import { finishInSlices, TimeSlice } from '../sync/time-slice.ts';
import { type AffinityTargetIndex, affinityTargets, changedAffinityTargets } from './affinity.ts';
import {
  type AffinityCleanupOptions,
  deleteStaleAffinity,
  staleAffinityDeletions,
} from './affinity-cleanup.ts';
import type { NftChain } from './chains.ts';
import { commitDispatch } from './commit-dispatch.ts';
import { compareTable, countRuleDifferences } from './compare.ts';
import { describeNftRule } from './describe.ts';
import type { MapElement } from './element.ts';
import { changesOf, PendingChanges, phaseChanges } from './element-changes.ts';
import { deleteFlowtable } from './flowtable.ts';
import type { FlowtableDevices } from './flowtable-devices.ts';
import { isIntervalMap, overlappingElements } from './intervals.ts';
import { KernelElements } from './kernel-elements.ts';
import { rejectedPackets } from './localhost.ts';
import { isDispatchMap, isOnDemand, type MapName } from './maps.ts';
import { type Phase, phaseSteps } from './phases.ts';
import { NftPlan, type NftPlanOptions, type PlannedRoute } from './plan.ts';
import {
  affinityMapsOf,
  chainRuleOperations,
  onDemandMapsOf,
  staticServiceChains,
  TABLE,
  tableDeclarations,
} from './static-chains.ts';
import { tableOperations } from './table-operations.ts';
import { existingObjects, neededObjects, withoutObjects } from './unknown-objects.ts';

/** How mode nftables treats packets. */
export const NFTABLES_TRAFFIC: ModeTraffic = {
  forwardsWithIpvs: false,
  rejectsOtherPorts: 'cluster IPs',
};

/** Options of mode nftables for one IP family. */
export interface NftBackendOptions extends NftPlanOptions {
  /** Logs a warning: a constant message, and fields for everything variable. */
  readonly onWarning: (message: string, fields?: Readonly<Record<string, unknown>>) => void;
  /** Keep the interfaces of the flowtable, which each full sync may have created without them. */
  readonly flowtableDevices?: FlowtableDevices | undefined;
}

/** The kernel refused an element, and with it the whole transaction. */
export class RefusedElementError extends Error {
  override readonly name = 'RefusedElementError';
  /** The Service port of the element, `ns/name` or `ns/name:port`; undefined if no Route has it any longer. */
  readonly service: string | undefined;

  constructor(service: string | undefined, cause: NftRefusedError) {
    super(`${service ?? 'element no longer desired'}: ${cause.message}`, { cause });
    this.service = service;
  }
}

/**
 * Elements in one transaction of a full sync. Lookup elements need not become visible together, and a smaller
 * transaction takes less memory. While a program watches nf_tables, as the agent does, the kernel keeps 4 KB for each
 * element until the transaction ends (seen on 6.18).
 */
const ELEMENTS_PER_TRANSACTION = 2_000;

/** The backend of mode nftables for one IP family. */
export class NftBackend implements Backend {
  readonly family: Backend['family'];
  readonly #tables: RuleTable;
  readonly #options: NftBackendOptions;
  /** The first change by another program since the last full sync, for the log. */
  #externalChange: string | undefined;
  #onDrift = () => {};
  #onMissedChanges = () => {};
  /** Number of elements in the kernel, by map. */
  #elementCounts = new Map<string, number>();
  #cleanupFailures = 0;
  #isClosed = false;
  readonly #plan: NftPlan;
  readonly #syncs = new SyncOverlap();
  #localhostRejections: ReadonlyMap<Protocol, number> = new Map();
  #watchesChanges = false;
  /** Maps and base chains that do not always exist, and that the kernel is known to have. */
  #declared = new Set<string>();

  constructor(tables: RuleTable, options: NftBackendOptions) {
    this.family = options.family;
    this.#tables = tables;
    this.#options = options;
    this.#plan = new NftPlan(options);
  }

  setNodeAddresses(nodeAddresses: NodeAddresses): void {
    this.#plan.setNodeAddresses(nodeAddresses);
  }

  setServiceCidrs(cidrs: readonly string[]): void {
    this.#plan.setServiceCidrs(cidrs);
  }

  update(upserts: Iterable<Route>, removals: Iterable<string>): void {
    this.#plan.update(upserts, removals);
  }

  async apply(full: boolean): Promise<ApplyReport> {
    try {
      const written = await this.#syncs.run(() => (full ? this.#applyAll() : this.#applyChanges()));
      if (full) this.#options.flowtableDevices?.request();
      return { written };
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

  onMissedChanges(callback: () => void): void {
    this.#onMissedChanges = callback;
  }

  get watchesChanges(): boolean {
    return this.#watchesChanges;
  }

  async compare(
    service?: ObjectKey,
    signal?: AbortSignal,
    namespace?: string,
  ): Promise<Comparison> {
    return await this.#tables.readBesides(async (reader) => {
      const result = new ComparisonBuilder(service, signal, namespace);
      const syncSpan = this.#syncs.watch();
      const { flowtableDevices } = this.#options;
      await compareTable(reader, this.#plan, this.family, result, flowtableDevices);
      return result.result(syncSpan());
    });
  }

  stats(): BackendStats {
    return { elements: this.#elementCounts, cleanupFailures: this.#cleanupFailures };
  }

  traffic(): BackendTraffic {
    return {
      ...NFTABLES_TRAFFIC,
      options: this.#options,
      isNodePortAddress: (address) => this.#plan.nodePortAddresses.includes(address),
      proxiesLocalhost: this.#options.rejectsOnLocalhost,
      serviceCidrs: this.#plan.serviceCidrs,
    };
  }

  describeRule(rule: KernelRule): RulePurpose | undefined {
    return describeNftRule(rule, this.#plan.chains());
  }

  /**
   * Reads the counters of rejected localhost packets, by protocol; empty while there is no table.
   * Returns the previous numbers when the counters cannot be read or the backend is closed.
   */
  async localhostRejections(): Promise<ReadonlyMap<Protocol, number>> {
    if (!this.#options.rejectsOnLocalhost || this.#isClosed) return this.#localhostRejections;
    try {
      this.#localhostRejections = rejectedPackets((await this.#tables.counters()) ?? []);
    } catch (error) {
      // An error here must not fail the whole metrics scrape.
      this.#options.onWarning('cannot read counters of packets rejected on localhost', {
        err: error,
      });
    }
    return this.#localhostRejections;
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#tables.close();
  }

  /** Records a change of the table by another program. @param what description of the change, for the log. */
  onExternalChange(what: string): void {
    if (this.#externalChange !== undefined) return;
    this.#externalChange = what;
    this.#onDrift();
  }

  /** From now on nf_tables notifications report each external change to `onExternalChange`. */
  watchStarted(): void {
    this.#watchesChanges = true;
    // The loop ignores changes that were notified during its first sync.
    if (this.#externalChange !== undefined) this.missedChanges();
  }

  /** Requests a full sync, because other programs may have changed the table without a notification. */
  missedChanges(): void {
    this.#onMissedChanges();
  }

  async #applyChanges(): Promise<number> {
    // In time slices, so that the event loop is not blocked.
    const diff = await finishInSlices(this.#plan.diffSteps());
    const { chains, deletes, adds, cleanup, routes } = diff;
    // Create new chains in an earlier transaction. A packet in flight evaluates a chain with its
    // pre-commit rules, so a chain created in the same commit would look empty.
    await this.#tables.transact([...this.#declare(chains), ...chainRuleOperations(chains)]);
    for (const name of namesToDeclare(chains)) this.#declared.add(name);
    const phases = await finishInSlices(phaseSteps(diff, this.family));
    const changedTargets = changedAffinityTargets(
      affinityTargets(routes.flatMap(([before]) => before ?? [])),
      affinityTargets(routes.flatMap(([, after]) => after ?? [])),
    );
    await this.#transactInParts('add', phases.fill);
    await this.#tables.transact(phaseChanges(phases.prepare));
    await this.#commit(phases.commit, changedTargets);
    await this.#tables.transact(phaseChanges(phases.withdraw));
    // Delete stale affinity entries that the commit could not delete or that packets in flight added since.
    if (changedTargets.size > 0)
      await deleteStaleAffinity(this.#tables, changedTargets, this.#cleanupOptions(false));
    await this.#transactInParts('delete', phases.cleanup.deletes);
    for (const { map } of adds) addToCount(this.#elementCounts, map, 1);
    for (const { map } of [...deletes, ...cleanup]) addToCount(this.#elementCounts, map, -1);
    return deletes.length + adds.length + cleanup.length;
  }

  /**
   * Commits the phase, and deletes stale affinity entries in the same transaction where possible.
   * `deleteStaleAffinity` deletes the remaining stale entries later.
   */
  async #commit(commit: Phase, changedTargets: AffinityTargetIndex): Promise<void> {
    const changes = phaseChanges(commit);
    const deletions = await staleAffinityDeletions(
      this.#tables,
      changedTargets,
      this.#cleanupOptions(false),
    );
    try {
      await this.#tables.transact([...changes, ...deletions]);
    } catch (error) {
      if (!(error instanceof NftRefusedError) || deletions.length === 0) throw error;
      // An affinity entry to delete may have expired: commit without these deletions. Any other cause fails again.
      await this.#tables.transact(changes);
    }
  }

  #cleanupOptions(deletesUnknown: boolean): AffinityCleanupOptions {
    return { family: this.family, deletesUnknown, onWarning: this.#options.onWarning };
  }

  /**
   * Full sync: compares the whole table with the desired state.
   *
   * Changes are ordered so that a packet never finds a dispatch element without its target. Lookup
   * elements are added first, then chains, then dispatch elements. Stale dispatch elements are deleted
   * next, then stale lookup elements, then unknown chains, maps and counters.
   *
   * Static chains that already existed change in the same transaction as the dispatch elements, so packets
   * see the old ruleset or the new one. This is how a newer agent takes over the table of an older one,
   * whose maps and chains have other names, without a gap.
   */
  async #applyAll(): Promise<number> {
    this.#externalChange = undefined;
    const repaired = await countRuleDifferences(this.#tables, this.#plan, this.family);
    // The kernel keeps the MTU that a flow began with, and an MTU may have been lowered while no agent ran.
    if (this.#options.usesFlowtable && !this.#plan.hasApplied) await deleteFlowtable(this.#tables);
    const chainsBefore = new Set(await this.#tables.chains());
    const refusal = await this.#declareTable();
    if (refusal !== undefined) return repaired + (await this.#replaceTable(refusal));
    const kernel = await KernelElements.read(this.#tables);
    const [lookups, dispatch] = [new PendingChanges(), new PendingChanges()];
    // Intervals, which may overlap stale ones, and elements of maps that are yet to be declared.
    const late = new PendingChanges();
    // Elements of empty maps that are ranges or whose map is yet to be declared, by map.
    const first = new Map<MapName, MapElement[]>();
    const withAffinity: PlannedRoute[] = [];
    const slice = new TimeSlice();
    const elementCounts = new Map<string, number>();
    let written = repaired;
    let writing = Promise.resolve();
    // Build the next transaction while the kernel processes this one.
    const write = async (pending: PendingChanges) => {
      written += pending.size;
      const changes = pending.take();
      await writing;
      writing = this.#tables.transact(changes);
      // The next `await writing` throws the error; avoid an unhandled rejection until then.
      writing.catch(() => {});
    };
    for (const { elements, planned } of this.#plan.snapshot()) {
      if (planned !== undefined && planned.route.affinitySeconds > 0) withAffinity.push(planned);
      for (const element of elements) {
        addToCount(elementCounts, element.map, 1);
        const [state] = kernel.take(element);
        if (state !== 'ok') {
          const isReplaced = state === 'changed';
          const isLate = isIntervalMap(element.map) || isOnDemand(element.map);
          if (isDispatchMap(element.map)) dispatch.add(element, isReplaced);
          else if (!isLate) lookups.add(element, isReplaced);
          else if (kernel.hadElements(element.map)) late.add(element, isReplaced);
          else getOrCreate(first, element.map, () => []).push(element);
        }
        if (slice.isOver()) await slice.yield();
      }
      if (slice.isOver()) await slice.yield();
      if (lookups.size > ELEMENTS_PER_TRANSACTION) await write(lookups);
    }
    await write(lookups);
    const chains = [...this.#plan.chains()];
    const conflict = await this.#refusalOf(this.#declare(chains));
    if (conflict !== undefined) {
      await writing;
      return repaired + (await this.#replaceTable(conflict));
    }
    // Map by map: a transaction takes time for all elements of the interval maps that it changes.
    for (const element of [...first.values()].flat()) {
      lookups.add(element, false);
      if (lookups.size > ELEMENTS_PER_TRANSACTION) await write(lookups);
    }
    await write(lookups);
    this.#removeOverlapping(late, kernel);
    await write(late);
    await writing;
    const staticNames = new Set(staticServiceChains(this.#options).map(({ name }) => name));
    const isInUse = ({ name }: NftChain) => staticNames.has(name) && chainsBefore.has(name);
    this.#removeOverlapping(dispatch, kernel);
    written += dispatch.size;
    const changes = dispatch.take();
    written += await commitDispatch(this.#tables, chains, isInUse, changes, kernel, this.family);
    this.#elementCounts = elementCounts;
    written += await this.#removeStaleElements(kernel);
    if (!(await this.#removeUnknownObjects())) {
      // Objects that stay are not repaired.
      const remaining = await countRuleDifferences(this.#tables, this.#plan, this.family);
      written = Math.max(0, written - remaining);
    }
    this.#declared = namesToDeclare(this.#plan.chains());
    const targets = this.#allAffinityTargets(withAffinity);
    return written + (await deleteStaleAffinity(this.#tables, targets, this.#cleanupOptions(true)));
  }

  /**
   * Deletes stale ranges in the same transaction that adds overlapping ranges: the kernel refuses
   * overlapping ranges.
   */
  #removeOverlapping(pending: PendingChanges, kernel: KernelElements): void {
    const old = [...kernel.stale(this.family)].filter(({ map }) => isIntervalMap(map));
    for (const element of overlappingElements(old, pending.added, this.family)) {
      pending.remove(element);
      kernel.delete(element);
    }
  }

  /**
   * Creates the table, its maps and static chains, or completes an existing table.
   * @returns the error when the existing table conflicts, for example with a map of another type.
   */
  async #declareTable(): Promise<NftRefusedError | undefined> {
    const chains = staticServiceChains(this.#options);
    const refusal = await this.#refusalOf([
      { action: 'declare', declarations: tableDeclarations(chains, this.family) },
    ]);
    if (refusal === undefined) this.#declared = namesToDeclare(chains);
    else if ((await this.#tables.sets()) === undefined) throw refusal;
    return refusal;
  }

  async #refusalOf(operations: readonly NftOperation[]): Promise<NftRefusedError | undefined> {
    try {
      await this.#tables.transact(operations);
    } catch (error) {
      if (error instanceof NftRefusedError) return error;
      throw error;
    }
    return undefined;
  }

  /** Declares maps and base chains that the kernel is not known to have. */
  #declare(chains: readonly NftChain[]): NftOperation[] {
    const names = namesToDeclare(chains);
    for (const name of this.#declared) names.delete(name);
    if (names.size === 0) return [];
    const declarations = tableDeclarations(chains, this.family).filter(({ name }) =>
      names.has(name),
    );
    return [{ action: 'declare', declarations }];
  }

  /**
   * Replaces an incompatible table in one transaction. Its hooks change one after the other, so a packet may pass some of
   * the old table and some of the new one. Only packets without connection tracking depend on both. It is large only
   * at the first sync of a new version, when the agent does not yet watch nf_tables (see `ELEMENTS_PER_TRANSACTION`).
   * Session affinity is reset.
   */
  async #replaceTable(refusal: NftRefusedError): Promise<number> {
    this.#options.onWarning('replacing an nftables table of an incompatible version', {
      table: TABLE,
      reason: refusal.message,
      effect:
        'connections continue; session affinity is reset; some UDP packets to ports owned by pods may be lost',
    });
    const elements = [...this.#plan.snapshot()].flatMap((each) => each.elements);
    const chains = [...this.#plan.chains()];
    await this.#tables.transact(tableOperations(chains, elements, this.family));
    this.#declared = namesToDeclare(chains);
    this.#elementCounts = new Map();
    for (const { map } of elements) addToCount(this.#elementCounts, map, 1);
    return elements.length;
  }

  /** Writes elements that need not change at one moment, in transactions of a bounded size. */
  async #transactInParts(
    action: NftElementChange['action'],
    elements: readonly MapElement[],
  ): Promise<void> {
    const byMap = [...Map.groupBy(elements, ({ map }) => map).values()].flat();
    for (let at = 0; at < byMap.length; at += ELEMENTS_PER_TRANSACTION) {
      const part = byMap.slice(at, at + ELEMENTS_PER_TRANSACTION);
      await this.#tables.transact(changesOf(action, part));
    }
  }

  /** Targets for every affinity map. A map without targets is included, so that its entries are deleted. */
  #allAffinityTargets(withAffinity: readonly PlannedRoute[]): AffinityTargetIndex {
    const targets = affinityTargets(withAffinity);
    const names = affinityMapsOf(this.#plan.chains());
    return new Map([...names].map((name) => [name, targets.get(name) ?? new Map()]));
  }

  /**
   * Removes chains, maps and counters that the plan does not contain. They are left over from deleted
   * Services, another version of the agent, or another program. No rule of the agent refers to them by now.
   * @returns false if the kernel refused.
   */
  async #removeUnknownObjects(): Promise<boolean> {
    const needed = neededObjects([...this.#plan.chains()]);
    const unknown = withoutObjects(await existingObjects(this.#tables), needed);
    try {
      await this.#tables.remove(unknown.chains, unknown.sets, unknown.counters, unknown.flowtables);
      return true;
    } catch (error) {
      if (!(error instanceof NftRefusedError)) throw error;
      this.#cleanupFailures += 1;
      this.#options.onWarning('cannot remove unknown objects from the nftables table', {
        table: TABLE,
        err: error,
      });
      return false;
    }
  }

  /**
   * Deletes stale dispatch elements, then stale lookup elements. Packets reach slices only by `owned-addresses`, and a packet
   * must not find some slices of a deleted Service only, so the addresses go first.
   * @returns the number of deleted elements.
   */
  async #removeStaleElements(kernel: KernelElements): Promise<number> {
    const stale = [...kernel.stale(this.family)];
    const phaseOf = ({ map }: MapElement) => {
      if (isDispatchMap(map)) return 'dispatch';
      return map === 'owned-addresses' ? 'addresses' : 'lookups';
    };
    const phases = Map.groupBy(stale, phaseOf);
    for (const phase of ['dispatch', 'addresses', 'lookups'] as const)
      await this.#transactInParts('delete', phases.get(phase) ?? []);
    return stale.length;
  }
}

/** The maps that these chains need and that do not always exist, and the base chains. */
function namesToDeclare(chains: Iterable<NftChain>): Set<string> {
  const all = [...chains];
  const bases = all.filter(({ base }) => base !== undefined).map(({ name }) => name);
  return new Set([...affinityMapsOf(all), ...onDemandMapsOf(all), ...bases]);
}

function addToCount(counts: Map<string, number>, map: MapName, change: 1 | -1): void {
  counts.set(map, (counts.get(map) ?? 0) + change);
}
