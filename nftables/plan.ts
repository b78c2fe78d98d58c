/** What one family should have in its maps, Route by Route. */
import { isDeepStrictEqual } from 'node:util';
import { compareText, getOrCreate } from '../api/collections.ts';
import { addressBytes } from '../netlink/core/address.ts';
import { sameData } from '../nft/element.ts';
import type { NodeFacts } from '../proxier/backend.ts';
import { type Match, type Route, vipsOf } from '../services/route.ts';
import { type NodePortOptions, namedNodePortAddresses } from '../traffic/options.ts';
import { allowsOwnVips, dependsOnNodeAddresses, trafficPlan } from '../traffic/plan.ts';
import { type Chain, withNeeds } from './chains.ts';
import { type Compiled, compilePlan, NOTHING, type Place } from './compile.ts';
import { type Element, elementKey } from './element.ts';
import { overlapping } from './intervals.ts';
import { isFate, isLead, isShared } from './maps.ts';
import { type SkeletonOptions, standingChains } from './skeleton.ts';

export interface PlanOptions extends SkeletonOptions, NodePortOptions {}

/** A Route, and what of its surroundings its elements depend on. */
export interface Placed {
  readonly route: Route;
  /** By VIP, of those that it is not alone on. */
  readonly places: ReadonlyMap<string, Place>;
  readonly allowsOwnVips: boolean;
}

/** What brings the kernel from what it was given last to what is wanted now. */
export interface Difference {
  /** Chains that it does not have yet. */
  readonly chains: readonly Chain[];
  /** What leads packets on, and what is in the way of the additions. See `steps.ts`. */
  readonly deletes: readonly Element[];
  readonly adds: readonly Element[];
  /** What packets that are under way may still be looking for. */
  readonly afterwards: readonly Element[];
  /** Routes that were and are, of those that changed, for what is to be forgotten of clients. */
  readonly routes: readonly (readonly [before: Placed | undefined, after: Placed | undefined])[];
}

/**
 * What one family should have in its maps, Route by Route. Pure but for its memory. It remembers
 * Routes and compiles them again to tell what goes, for elements take ten times the memory.
 */
export class NftPlan {
  readonly #options: PlanOptions;
  #facts: NodeFacts = { addresses: [], primary: [] };
  readonly #wanted = new Map<string, Placed>();
  /** What the kernel was given. */
  #given = new Map<string, Placed>();
  #givenNodePortIps: readonly string[] = [];
  readonly #pending = new Set<string>();
  /** Ids of Routes by VIP. */
  readonly #onVip = new Map<string, Set<string>>();
  /** Of these, the Routes of all ports or of ranges. */
  readonly #wide = new Map<string, Map<string, Match['kind']>>();
  /** How many given Routes ask for an element that several may ask for. */
  #holders = new Map<string, number>();
  #chains = new Map<string, Chain>();

  constructor(options: PlanOptions) {
    this.#options = options;
  }

  setFacts(facts: NodeFacts): void {
    this.#facts = facts;
    for (const { route } of [...this.#wanted.values()]) {
      if (dependsOnNodeAddresses(route)) this.#want(route);
    }
  }

  update(upserts: Iterable<Route>, removals: Iterable<string>): void {
    const changed = [...upserts];
    const before = new Map<string, string>();
    const index = (route: Route | undefined, isThere: boolean) => {
      for (const vip of route === undefined ? [] : vipsOf(route)) {
        if (!before.has(vip)) before.set(vip, this.#wideText(vip));
        this.#index(vip, route as Route, isThere);
      }
    };
    for (const id of removals) {
      index(this.#wanted.get(id)?.route, false);
      this.#wanted.delete(id);
      this.#pending.add(id);
    }
    for (const route of changed) {
      index(this.#wanted.get(route.id)?.route, false);
      index(route, true);
    }
    for (const route of changed) this.#want(route);
    for (const [vip, wide] of before) {
      if (this.#wideText(vip) === wide) continue;
      for (const id of this.#onVip.get(vip) ?? []) {
        const neighbour = this.#wanted.get(id);
        if (neighbour !== undefined) this.#want(neighbour.route);
      }
    }
  }

  /** What changed since it was last taken. The caller brings it to the kernel or calls `takeAll`. */
  take(): Difference {
    const steps = this.taking();
    for (;;) {
      const { done, value } = steps.next();
      if (done === true) return value;
    }
  }

  /**
   * As `take`, Route by Route, so that the event loop may turn in between. What is wanted from then on
   * is for the next time.
   */
  *taking(): Generator<undefined, Difference> {
    const routes = [...this.#pending].map(
      (id) => [this.#given.get(id), this.#wanted.get(id)] as const,
    );
    // All at once: what is wanted meanwhile is held against it.
    for (const id of this.#pending) {
      const now = this.#wanted.get(id);
      if (now === undefined) this.#given.delete(id);
      else this.#given.set(id, now);
    }
    this.#pending.clear();
    const chains: Chain[] = [];
    const before = new Map<string, Element>();
    const after = new Map<string, Element>();
    const shared = new Map<string, { readonly element: Element; change: number }>();
    const collect = (placed: Placed | undefined, into: Map<string, Element>, change: 1 | -1) => {
      const compiled = placed === undefined ? NOTHING : this.#compile(placed);
      for (const element of compiled.elements) {
        const key = elementKey(element);
        if (!isShared(element.map)) into.set(key, element);
        else getOrCreate(shared, key, () => ({ element, change: 0 })).change += change;
      }
      if (change === 1) chains.push(...compiled.chains);
    };
    for (const [old, now] of routes) {
      collect(old, before, -1);
      collect(now, after, 1);
      yield undefined;
    }
    const deletes: Element[] = [];
    const gone: Element[] = [];
    for (const [key, element] of before) {
      const now = after.get(key);
      if (now !== undefined && sameData(element, now)) after.delete(key);
      else if (now !== undefined || goesFirst(element)) deletes.push(element);
      else gone.push(element);
    }
    const adds = [...after.values()];
    const inTheWay = new Set(overlapping(gone, adds, this.#options.family));
    deletes.push(...inTheWay);
    const afterwards = gone.filter((element) => !inTheWay.has(element));
    for (const [key, { element, change }] of shared) {
      const held = this.#holders.get(key) ?? 0;
      this.#hold(key, change);
      if (held === 0 && change > 0) adds.push(element);
      if (held > 0 && held + change === 0)
        (goesFirst(element) ? deletes : afterwards).push(element);
    }
    const ips = namedNodePortAddresses(this.#options, this.#facts);
    const givenIps = this.#givenNodePortIps;
    this.#givenNodePortIps = ips;
    adds.push(...ips.filter((ip) => !givenIps.includes(ip)).map(nodePortIp));
    deletes.push(...givenIps.filter((ip) => !ips.includes(ip)).map(nodePortIp));
    return { chains: this.#takeNewChains(chains), deletes, adds, afterwards, routes };
  }

  /**
   * All that is wanted, Route by Route; from now on that counts as given. Elements that several
   * Routes ask for come once.
   */
  *takeAll(): Iterable<{ readonly elements: readonly Element[]; readonly placed?: Placed }> {
    this.#pending.clear();
    this.#given = new Map(this.#wanted);
    this.#holders = new Map();
    this.#chains = new Map(this.#standing().map((chain) => [chain.name, chain]));
    this.#givenNodePortIps = namedNodePortAddresses(this.#options, this.#facts);
    yield { elements: this.#givenNodePortIps.map(nodePortIp) };
    for (const placed of [...this.#given.values()]) {
      const compiled = this.#compile(placed);
      this.#takeNewChains(compiled.chains);
      const elements = compiled.elements.filter((element) => {
        if (!isShared(element.map)) return true;
        return this.#hold(elementKey(element), 1) === 1;
      });
      yield { elements, placed };
    }
  }

  /** All chains that the kernel should have once everything is taken. */
  chains(): Iterable<Chain> {
    return this.#chains.values();
  }

  /** The Route that an element is of (`ns/name` or `ns/name:port`), as far as it is of one. */
  nameOf(element: Element): string | undefined {
    const key = elementKey(element);
    for (const placed of this.#given.values()) {
      const { elements } = this.#compile(placed);
      if (elements.some((each) => elementKey(each) === key)) return placed.route.name;
    }
    return undefined;
  }

  #standing(): Chain[] {
    return standingChains(this.#options);
  }

  #takeNewChains(chains: readonly Chain[]): Chain[] {
    const fresh: Chain[] = [];
    for (const chain of chains.flatMap(withNeeds)) {
      if (this.#chains.has(chain.name)) continue;
      this.#chains.set(chain.name, chain);
      fresh.push(chain);
    }
    return fresh;
  }

  #hold(key: string, change: number): number {
    const held = (this.#holders.get(key) ?? 0) + change;
    if (held === 0) this.#holders.delete(key);
    else this.#holders.set(key, held);
    return held;
  }

  #compile({ route, places, allowsOwnVips }: Placed): Compiled {
    return compilePlan(trafficPlan(route, allowsOwnVips), places, this.#options);
  }

  /** Sees to it that a Route is wanted as its surroundings now demand. */
  #want(route: Route): void {
    const placed = this.#place(route);
    this.#wanted.set(route.id, placed);
    const given = this.#given.get(route.id);
    if (given !== undefined && isDeepStrictEqual(given, placed)) this.#pending.delete(route.id);
    else this.#pending.add(route.id);
  }

  #place(route: Route): Placed {
    let places = NOWHERE;
    for (const vip of vipsOf(route)) {
      const others = this.#wideOn(vip);
      const ranges = others.filter((id) => this.#wide.get(vip)?.get(id) === 'ranges');
      const slot = ranges.indexOf(route.id) + 1;
      const isBesideAllPorts = others.some((id) => id !== route.id);
      if (slot === 0 && !isBesideAllPorts) continue;
      places = new Map([...places, [vip, { slot, isBesideAllPorts }]]);
    }
    return { route, places, allowsOwnVips: allowsOwnVips(route, this.#facts.addresses) };
  }

  /** Routes of all ports or of ranges on a VIP: ids, sorted, for slots must not depend on history. */
  #wideOn(vip: string): string[] {
    return [...(this.#wide.get(vip)?.keys() ?? [])].sort(compareText);
  }

  #wideText(vip: string): string {
    return this.#wideOn(vip)
      .map((id) => `${id} ${this.#wide.get(vip)?.get(id)}`)
      .join();
  }

  #index(vip: string, { id, match }: Route, isThere: boolean): void {
    if (isThere) {
      getOrCreate(this.#onVip, vip, () => new Set()).add(id);
      if (match.kind !== 'port') getOrCreate(this.#wide, vip, () => new Map()).set(id, match.kind);
      return;
    }
    const [ids, wide] = [this.#onVip.get(vip), this.#wide.get(vip)];
    ids?.delete(id);
    if (ids?.size === 0) this.#onVip.delete(vip);
    wide?.delete(id);
    if (wide?.size === 0) this.#wide.delete(vip);
  }
}

/** Of Routes that have their VIPs to themselves: nearly all. */
const NOWHERE: ReadonlyMap<string, Place> = new Map();

/** Nothing is to be led there any more. */
function goesFirst({ map }: Element): boolean {
  return isLead(map) && !isFate(map);
}

function nodePortIp(address: string): Element {
  return { map: 'node-port-ips', key: addressBytes(address) };
}
