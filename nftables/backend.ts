/** Mode nftables: this folder renders TrafficPlans as elements and chains of nf_tables, and applies them. */
import type { Protocol } from '../api/objects.ts';
import { NFT_SET_FLAGS, type NftChange, NftRefusedError } from '../netlink/nftables/tables.ts';
import { type NftCommand, NftError } from '../nft/command.ts';
import { dataText, keyText } from '../nft/element.ts';
import type { RuleTable } from '../nft/table.ts';
import type { ApplyReport, Backend, BackendNumbers, NodeFacts } from '../proxier/backend.ts';
import type { Route } from '../services/route.ts';
import { TimeSlice } from '../sync/time-slice.ts';
import { brokenLoyalties, type Loyalties, loyaltiesOf } from './affinity.ts';
import { type Chain, isForNft } from './chains.ts';
import { type Element, elementOf } from './element.ts';
import { brokenNotes, type Forgetting, forget } from './forgetting.ts';
import { isInterval, overlapping } from './intervals.ts';
import { localhostRejections } from './localhost.ts';
import { isLead, MAP_NAMES, type MapName } from './maps.ts';
import { type Difference, NftPlan, type Placed, type PlanOptions } from './plan.ts';
import {
  affinitiesOf,
  countersOf,
  declarations,
  fills,
  standingChains,
  TABLE,
} from './skeleton.ts';
import { type Step, stepsOf } from './steps.ts';
import { tableScript } from './text.ts';

export interface NftOptions extends PlanOptions {
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
  readonly #options: NftOptions;
  /** What somebody else did to the table since everything was compared. */
  #disturbance: string | undefined;
  #onLoss = () => {};
  /** Elements that were given to the kernel, by map. */
  #sizes = new Map<string, number>();
  #cleanupFailures = 0;
  #isClosed = false;
  readonly #plan: NftPlan;
  #localhostRejections: ReadonlyMap<Protocol, number> = new Map();
  /** Whether `disturbed` is called for whatever others do. */
  hearsOthers = false;
  /** Maps that packets write, of those that are known to be there. */
  #affinities: ReadonlySet<string> = new Set();

  constructor(tables: RuleTable, nft: NftCommand, options: NftOptions) {
    this.family = options.family;
    this.#tables = tables;
    this.#nft = nft;
    this.#options = options;
    this.#plan = new NftPlan(options);
  }

  setFacts(facts: NodeFacts): void {
    this.#plan.setFacts(facts);
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
      throw new RefusedElementError(this.#plan.nameOf(element), error);
    }
  }

  async loss(): Promise<string | undefined> {
    return this.#disturbance;
  }

  onLoss(callback: () => void): void {
    this.#onLoss = callback;
  }

  numbers(): BackendNumbers {
    return { elements: this.#sizes, cleanupFailures: this.#cleanupFailures };
  }

  /** None before there is a table. If they cannot be read now, or no more: as they were at the last call. */
  async localhostRejections(): Promise<ReadonlyMap<Protocol, number>> {
    if (!this.#options.rejectsOnLocalhost || this.#isClosed) return this.#localhostRejections;
    try {
      this.#localhostRejections = localhostRejections((await this.#tables.counters()) ?? []);
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
  disturbed(what: string): void {
    if (this.#disturbance !== undefined) return;
    this.#disturbance = what;
    this.#onLoss();
  }

  async #applyChanges(): Promise<number> {
    const difference = await this.#taken();
    const { chains, deletes, adds, afterwards, routes } = difference;
    // Before any element leads there: a packet under way may not see what comes with the element.
    await this.#declare(chains);
    await this.#tables.transact(fills(chains));
    const steps = stepsOf(difference, this.family);
    const broken = brokenLoyalties(
      loyaltiesOf(routes.flatMap(([before]) => before ?? [])),
      loyaltiesOf(routes.flatMap(([, after]) => after ?? [])),
    );
    await this.#tables.transact(changesIn(steps.ahead));
    await this.#swap(steps.swap, broken);
    await this.#tables.transact(changesIn(steps.late));
    // What is left of notes, and what packets that were under way noted since.
    if (broken.size > 0) await forget(this.#tables, broken, this.#forgetting(false));
    await this.#tables.transact(changesIn(steps.afterwards));
    for (const { map } of adds) count(this.#sizes, map, 1);
    for (const { map } of [...deletes, ...afterwards]) count(this.#sizes, map, -1);
    return deletes.length + adds.length + afterwards.length;
  }

  /** What changed, without holding the event loop. */
  async #taken(): Promise<Difference> {
    const slice = new TimeSlice();
    const steps = this.#plan.taking();
    for (;;) {
      const { done, value } = steps.next();
      if (done === true) return value;
      if (slice.isOver()) await slice.yield();
    }
  }

  /** Swaps, and has clients forget endpoints that go: as far as can be, in the same moment. */
  async #swap(swap: Step, broken: Loyalties): Promise<void> {
    const changes = changesIn(swap);
    const forgotten = await brokenNotes(this.#tables, broken, this.#forgetting(false));
    try {
      await this.#tables.transact([...changes, ...forgotten]);
    } catch (error) {
      if (!(error instanceof NftRefusedError) || forgotten.length === 0) throw error;
      // One of those may have ended by itself meanwhile; whatever else it was is refused again.
      await this.#tables.transact(changes);
    }
  }

  /** See `Forgetting`. */
  #forgetting(unknown: boolean): Forgetting {
    return { family: this.family, unknown, onWarning: this.#options.onWarning };
  }

  /**
   * Compares everything. What packets need last is written first, and what leads them there after
   * it; what is not wanted goes the other way round, when all that is wanted is there.
   */
  async #applyAll(): Promise<number> {
    this.#disturbance = undefined;
    const refusal = await this.#prepare();
    if (refusal !== undefined) return await this.#replace(refusal);
    const kernel = await this.#elements();
    const [sources, ranges, leads] = [new Pending(), new Pending(), new Pending()];
    const sticky: Placed[] = [];
    const slice = new TimeSlice();
    const sizes = new Map<string, number>();
    let written = 0;
    let writing = Promise.resolve();
    // While the kernel takes one transaction, the next is made up.
    const write = async (pending: Pending) => {
      written += pending.size;
      const changes = pending.take();
      await writing;
      writing = this.#tables.transact(changes);
      // Whoever awaits it next hears of it.
      writing.catch(() => {});
    };
    for (const { elements, placed } of this.#plan.takeAll()) {
      if (placed !== undefined && placed.route.affinitySeconds > 0) sticky.push(placed);
      for (const element of elements) {
        count(sizes, element.map, 1);
        const had = takeFrom(kernel.get(element.map), element);
        if (had === undefined || had !== dataText(element)) {
          const others = isInterval(element.map) ? ranges : sources;
          (isLead(element.map) ? leads : others).add(element, had !== undefined);
        }
        if (slice.isOver()) await slice.yield();
      }
      if (sources.size > ELEMENTS_PER_TRANSACTION) await write(sources);
    }
    await write(sources);
    this.#makeWay(ranges, kernel);
    await write(ranges);
    await writing;
    const chains = [...this.#plan.chains()];
    await this.#declare(chains);
    await this.#tables.transact(fills(chains));
    this.#makeWay(leads, kernel);
    await write(leads);
    await writing;
    this.#sizes = sizes;
    written += await this.#removeOthers(kernel);
    await this.#removeStrangers();
    this.#affinities = affinitiesOf(this.#plan.chains());
    const loyalties = this.#allLoyalties(sticky);
    return written + (await forget(this.#tables, loyalties, this.#forgetting(true)));
  }

  /** Has what the kernel cannot hold beside what is to be added go with it. */
  #makeWay(pending: Pending, stale: ReadonlyMap<MapName, Map<string, string>>): void {
    const old = [...stale]
      .filter(([map]) => isInterval(map))
      .flatMap(([map, keys]) => [...keys.keys()].map((key) => elementOf(map, key, this.family)));
    for (const element of overlapping(old, pending.added, this.family)) {
      pending.remove(element);
      stale.get(element.map)?.delete(keyText(element));
    }
  }

  /** Brings the table with its maps. @returns why the one that is there could not be made so. */
  async #prepare(): Promise<NftError | undefined> {
    try {
      await this.#nft.run(declarations(standingChains(this.#options), this.family));
      this.#affinities = affinitiesOf([]);
      return undefined;
    } catch (error) {
      if (!(error instanceof NftError) || (await this.#tables.sets()) === undefined) throw error;
      return error;
    }
  }

  /** Maps that packets write are declared by nft, which then can show what is in them. */
  async #declare(chains: readonly Chain[]): Promise<void> {
    const names = [...affinitiesOf(chains)];
    if (names.every((name) => this.#affinities.has(name))) return;
    await this.#nft.run(declarations(chains, this.family));
    this.#affinities = new Set([...this.#affinities, ...names]);
  }

  /** Makes the table anew, in one transaction: one of another version has other maps. */
  async #replace(refusal: NftError): Promise<number> {
    const [reason] = refusal.message.split('\n');
    const warning = `the table is of another version, it is replaced as a whole: ${reason}`;
    this.#options.onWarning(warning);
    const elements = [...this.#plan.takeAll()].flatMap((each) => each.elements);
    const chains = [...this.#plan.chains()];
    const written = chains.map((chain) => (isForNft(chain) ? chain : { ...chain, rules: [] }));
    const script = tableScript(written, elements, this.family);
    await this.#nft.run(script);
    await this.#tables.transact(fills(chains));
    this.#affinities = affinitiesOf(chains);
    this.#sizes = new Map();
    for (const { map } of elements) count(this.#sizes, map, 1);
    return elements.length;
  }

  /** What the kernel has, by map and key, as text. */
  async #elements(): Promise<Map<MapName, Map<string, string>>> {
    const maps = new Map<MapName, Map<string, string>>();
    for (const name of MAP_NAMES) {
      const elements = new Map<string, string>();
      await this.#tables.visitElements(
        name,
        (element) => elements.set(keyText(element), dataText(element)),
        () => elements.clear(),
      );
      maps.set(name, elements);
    }
    return maps;
  }

  /** Of every map that packets write, for what was noted while nobody looked may be of no use. */
  #allLoyalties(sticky: readonly Placed[]): Loyalties {
    const loyalties = loyaltiesOf(sticky);
    const names = affinitiesOf(this.#plan.chains());
    return new Map([...names].map((name) => [name, loyalties.get(name) ?? new Map()]));
  }

  /** Chains, maps and counters of no use any more: nothing leads to them by now. */
  async #removeStrangers(): Promise<void> {
    const known = new Set([...this.#plan.chains()].map(({ name }) => name));
    const chains = (await this.#tables.chains()) ?? [];
    const maps = new Set<string>([...MAP_NAMES, ...affinitiesOf(this.#plan.chains())]);
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

  async #removeOthers(stale: ReadonlyMap<MapName, ReadonlyMap<string, string>>): Promise<number> {
    let removed = 0;
    for (const isLast of [false, true]) {
      const elements = [...stale].flatMap(([map, keys]) =>
        isLead(map) === isLast
          ? []
          : [...keys.keys()].map((key) => elementOf(map, key, this.family)),
      );
      await this.#tables.transact(changesOf('delete', elements));
      removed += elements.length;
    }
    return removed;
  }
}

/** What an element maps to among these, which it leaves; undefined: it is none of them. */
function takeFrom(elements: Map<string, string> | undefined, element: Element): string | undefined {
  if (elements === undefined || elements.size === 0) return undefined;
  const key = keyText(element);
  const data = elements.get(key);
  elements.delete(key);
  return data;
}

/** Changes that are collected for a transaction. */
class Pending {
  #removed: Element[] = [];
  #added: Element[] = [];

  get size(): number {
    return this.#added.length;
  }

  get added(): readonly Element[] {
    return this.#added;
  }

  add(element: Element, isReplaced: boolean): void {
    if (isReplaced) this.#removed.push(element);
    this.#added.push(element);
  }

  remove(element: Element): void {
    this.#removed.push(element);
  }

  take(): NftChange[] {
    const changes = [...changesOf('delete', this.#removed), ...changesOf('add', this.#added)];
    this.#removed = [];
    this.#added = [];
    return changes;
  }
}

function count(sizes: Map<string, number>, map: MapName, change: 1 | -1): void {
  sizes.set(map, (sizes.get(map) ?? 0) + change);
}

function changesIn({ deletes, adds }: Step): NftChange[] {
  return [...changesOf('delete', deletes), ...changesOf('add', adds)];
}

function changesOf(action: NftChange['action'], elements: readonly Element[]): NftChange[] {
  return [...Map.groupBy(elements, ({ map }) => map)].map(([set, some]) => ({
    action,
    set,
    elements: action === 'add' ? some : some.map(({ data: _, ...rest }) => rest),
  }));
}
