/** What one family should have in its maps, Route by Route. */
import { isDeepStrictEqual } from 'node:util';
import { compareText, getOrCreate } from '../api/collections.ts';
import { addressBytes } from '../netlink/core/address.ts';
import { hasSameData } from '../nft/element.ts';
import type { NodeAddresses } from '../services/node-port-addresses.ts';
import { type Route, type RouteMatch, vipsOf } from '../services/route.ts';
import { listedNodePortAddresses, type NodePortOptions } from '../traffic/options.ts';
import { allowsOwnVips, dependsOnNodeAddresses, trafficPlan } from '../traffic/plan.ts';
import { type NftChain, withJumpTargets } from './chains.ts';
import {
  type CompiledNftPlan,
  compileNftPlan,
  EMPTY_NFT_PLAN,
  type VipSharing,
} from './compile.ts';
import { elementId, type MapElement } from './element.ts';
import { overlapping } from './intervals.ts';
import { isDispatchMap, isNoEndpointMap, isReferenceCounted } from './maps.ts';
import { type StaticChainOptions, staticServiceChains } from './static-chains.ts';

export interface NftPlanOptions extends StaticChainOptions, NodePortOptions {}

/** A Route, and what of its surroundings its elements depend on. */
export interface PlannedRoute {
  readonly route: Route;
  /** By VIP, of those that it is not alone on. */
  readonly sharing: ReadonlyMap<string, VipSharing>;
  readonly allowsOwnVips: boolean;
}

/** What brings the kernel from what it was given last to what is wanted now. */
export interface PlanDiff {
  /** Chains that it does not have yet. */
  readonly chains: readonly NftChain[];
  /** What leads packets on, and what is in the way of the additions. See `steps.ts`. */
  readonly deletes: readonly MapElement[];
  readonly adds: readonly MapElement[];
  /** What packets that are under way may still be looking for. */
  readonly cleanup: readonly MapElement[];
  /** Routes that were and are, of those that changed, for what is to be forgotten of clients. */
  readonly routes: readonly (readonly [
    before: PlannedRoute | undefined,
    after: PlannedRoute | undefined,
  ])[];
}

/**
 * What one family should have in its maps, Route by Route. Pure but for its memory. It remembers
 * Routes and compiles them again to tell what goes, for elements take ten times the memory.
 */
export class NftPlan {
  readonly #options: NftPlanOptions;
  #nodeAddresses: NodeAddresses = { addresses: [], primary: [] };
  readonly #desired = new Map<string, PlannedRoute>();
  /** What the kernel was given. */
  #applied = new Map<string, PlannedRoute>();
  #appliedNodePortIps: readonly string[] = [];
  readonly #pending = new Set<string>();
  /** Ids of Routes by VIP. */
  readonly #routesByVip = new Map<string, Set<string>>();
  /** Of these, the Routes of all ports or of ranges. */
  readonly #allPortsByVip = new Map<string, Map<string, RouteMatch['kind']>>();
  /** How many given Routes ask for an element that several may ask for. */
  #references = new Map<string, number>();
  #chains = new Map<string, NftChain>();

  constructor(options: NftPlanOptions) {
    this.#options = options;
  }

  setNodeAddresses(facts: NodeAddresses): void {
    this.#nodeAddresses = facts;
    for (const { route } of [...this.#desired.values()]) {
      if (dependsOnNodeAddresses(route)) this.#setDesired(route);
    }
  }

  update(upserts: Iterable<Route>, removals: Iterable<string>): void {
    const changed = [...upserts];
    const before = new Map<string, string>();
    const index = (route: Route | undefined, isThere: boolean) => {
      for (const vip of route === undefined ? [] : vipsOf(route)) {
        if (!before.has(vip)) before.set(vip, this.#allPortsText(vip));
        this.#index(vip, route as Route, isThere);
      }
    };
    for (const id of removals) {
      index(this.#desired.get(id)?.route, false);
      this.#desired.delete(id);
      this.#pending.add(id);
    }
    for (const route of changed) {
      index(this.#desired.get(route.id)?.route, false);
      index(route, true);
    }
    for (const route of changed) this.#setDesired(route);
    for (const [vip, wide] of before) {
      if (this.#allPortsText(vip) === wide) continue;
      for (const id of this.#routesByVip.get(vip) ?? []) {
        const neighbour = this.#desired.get(id);
        if (neighbour !== undefined) this.#setDesired(neighbour.route);
      }
    }
  }

  /** What changed since it was last taken. The caller brings it to the kernel or calls `takeAll`. */
  diff(): PlanDiff {
    const steps = this.diffSteps();
    for (;;) {
      const { done, value } = steps.next();
      if (done === true) return value;
    }
  }

  /**
   * As `take`, Route by Route, so that the event loop may turn in between. What is wanted from then on
   * is for the next time.
   */
  *diffSteps(): Generator<undefined, PlanDiff> {
    const routes = [...this.#pending].map(
      (id) => [this.#applied.get(id), this.#desired.get(id)] as const,
    );
    // All at once: what is wanted meanwhile is held against it.
    for (const id of this.#pending) {
      const now = this.#desired.get(id);
      if (now === undefined) this.#applied.delete(id);
      else this.#applied.set(id, now);
    }
    this.#pending.clear();
    const chains: NftChain[] = [];
    const before = new Map<string, MapElement>();
    const after = new Map<string, MapElement>();
    const shared = new Map<string, { readonly element: MapElement; change: number }>();
    const collect = (
      placed: PlannedRoute | undefined,
      into: Map<string, MapElement>,
      change: 1 | -1,
    ) => {
      const compiled = placed === undefined ? EMPTY_NFT_PLAN : this.#compile(placed);
      for (const element of compiled.elements) {
        const key = elementId(element);
        if (!isReferenceCounted(element.map)) into.set(key, element);
        else getOrCreate(shared, key, () => ({ element, change: 0 })).change += change;
      }
      if (change === 1) chains.push(...compiled.chains);
    };
    for (const [old, now] of routes) {
      collect(old, before, -1);
      collect(now, after, 1);
      yield undefined;
    }
    const deletes: MapElement[] = [];
    const gone: MapElement[] = [];
    for (const [key, element] of before) {
      const now = after.get(key);
      if (now !== undefined && hasSameData(element, now)) after.delete(key);
      else if (now !== undefined || isRemovedFirst(element)) deletes.push(element);
      else gone.push(element);
    }
    const adds = [...after.values()];
    const inTheWay = new Set(overlapping(gone, adds, this.#options.family));
    deletes.push(...inTheWay);
    const cleanup = gone.filter((element) => !inTheWay.has(element));
    for (const [key, { element, change }] of shared) {
      const held = this.#references.get(key) ?? 0;
      this.#addReferences(key, change);
      if (held === 0 && change > 0) adds.push(element);
      if (held > 0 && held + change === 0)
        (isRemovedFirst(element) ? deletes : cleanup).push(element);
    }
    const ips = listedNodePortAddresses(this.#options, this.#nodeAddresses);
    const givenIps = this.#appliedNodePortIps;
    this.#appliedNodePortIps = ips;
    adds.push(...ips.filter((ip) => !givenIps.includes(ip)).map(nodePortIpElement));
    deletes.push(...givenIps.filter((ip) => !ips.includes(ip)).map(nodePortIpElement));
    return { chains: this.#registerChains(chains), deletes, adds, cleanup: cleanup, routes };
  }

  /**
   * All that is wanted, Route by Route; from now on that counts as given. Elements that several
   * Routes ask for come once.
   */
  *snapshot(): Iterable<{
    readonly elements: readonly MapElement[];
    readonly placed?: PlannedRoute;
  }> {
    this.#pending.clear();
    this.#applied = new Map(this.#desired);
    this.#references = new Map();
    this.#chains = new Map(this.#staticChains().map((chain) => [chain.name, chain]));
    this.#appliedNodePortIps = listedNodePortAddresses(this.#options, this.#nodeAddresses);
    yield { elements: this.#appliedNodePortIps.map(nodePortIpElement) };
    for (const placed of [...this.#applied.values()]) {
      const compiled = this.#compile(placed);
      this.#registerChains(compiled.chains);
      const elements = compiled.elements.filter((element) => {
        if (!isReferenceCounted(element.map)) return true;
        return this.#addReferences(elementId(element), 1) === 1;
      });
      yield { elements, placed };
    }
  }

  /** All chains that the kernel should have once everything is taken. */
  chains(): Iterable<NftChain> {
    return this.#chains.values();
  }

  /** The Route that an element is of (`ns/name` or `ns/name:port`), as far as it is of one. */
  servicePortOf(element: MapElement): string | undefined {
    const key = elementId(element);
    for (const placed of this.#applied.values()) {
      const { elements } = this.#compile(placed);
      if (elements.some((each) => elementId(each) === key)) return placed.route.name;
    }
    return undefined;
  }

  #staticChains(): NftChain[] {
    return staticServiceChains(this.#options);
  }

  #registerChains(chains: readonly NftChain[]): NftChain[] {
    const fresh: NftChain[] = [];
    for (const chain of chains.flatMap(withJumpTargets)) {
      if (this.#chains.has(chain.name)) continue;
      this.#chains.set(chain.name, chain);
      fresh.push(chain);
    }
    return fresh;
  }

  #addReferences(key: string, change: number): number {
    const held = (this.#references.get(key) ?? 0) + change;
    if (held === 0) this.#references.delete(key);
    else this.#references.set(key, held);
    return held;
  }

  #compile({ route, sharing: places, allowsOwnVips }: PlannedRoute): CompiledNftPlan {
    return compileNftPlan(trafficPlan(route, allowsOwnVips), places, this.#options);
  }

  /** Sees to it that a Route is wanted as its surroundings now demand. */
  #setDesired(route: Route): void {
    const placed = this.#planned(route);
    this.#desired.set(route.id, placed);
    const given = this.#applied.get(route.id);
    if (given !== undefined && isDeepStrictEqual(given, placed)) this.#pending.delete(route.id);
    else this.#pending.add(route.id);
  }

  #planned(route: Route): PlannedRoute {
    let places = SHARES_NO_VIP;
    for (const vip of vipsOf(route)) {
      const others = this.#allPortsOn(vip);
      const ranges = others.filter((id) => this.#allPortsByVip.get(vip)?.get(id) === 'ranges');
      const slot = ranges.indexOf(route.id) + 1;
      const sharesWithAllPorts = others.some((id) => id !== route.id);
      if (slot === 0 && !sharesWithAllPorts) continue;
      places = new Map([...places, [vip, { slot, sharesWithAllPorts: sharesWithAllPorts }]]);
    }
    return {
      route,
      sharing: places,
      allowsOwnVips: allowsOwnVips(route, this.#nodeAddresses.addresses),
    };
  }

  /** Routes of all ports or of ranges on a VIP: ids, sorted, for slots must not depend on history. */
  #allPortsOn(vip: string): string[] {
    return [...(this.#allPortsByVip.get(vip)?.keys() ?? [])].sort(compareText);
  }

  #allPortsText(vip: string): string {
    return this.#allPortsOn(vip)
      .map((id) => `${id} ${this.#allPortsByVip.get(vip)?.get(id)}`)
      .join();
  }

  #index(vip: string, { id, match }: Route, isThere: boolean): void {
    if (isThere) {
      getOrCreate(this.#routesByVip, vip, () => new Set()).add(id);
      if (match.kind !== 'port')
        getOrCreate(this.#allPortsByVip, vip, () => new Map()).set(id, match.kind);
      return;
    }
    const [ids, wide] = [this.#routesByVip.get(vip), this.#allPortsByVip.get(vip)];
    ids?.delete(id);
    if (ids?.size === 0) this.#routesByVip.delete(vip);
    wide?.delete(id);
    if (wide?.size === 0) this.#allPortsByVip.delete(vip);
  }
}

/** Of Routes that have their VIPs to themselves: nearly all. */
const SHARES_NO_VIP: ReadonlyMap<string, VipSharing> = new Map();

/** Nothing is to be led there any more. */
function isRemovedFirst({ map }: MapElement): boolean {
  return isDispatchMap(map) && !isNoEndpointMap(map);
}

function nodePortIpElement(address: string): MapElement {
  return { map: 'node-port-ips', key: addressBytes(address) };
}
