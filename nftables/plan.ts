/** The desired elements and chains of table `portwide` in one IP family, and the changes to get there. */
import { isDeepStrictEqual } from 'node:util';
import { compareText, getOrCreate } from '../api/collections.ts';
import type { PortRange } from '../api/ports.ts';
import { finish, type Steps } from '../api/steps.ts';
import { addressBytes } from '../netlink/core/address.ts';
import type { NodeAddresses } from '../services/node-port-addresses.ts';
import { type Route, type RouteMatch, vipsOf } from '../services/route.ts';
import { listedNodePortAddresses, type NodePortOptions } from '../traffic/options.ts';
import {
  allowsOwnVips,
  dependsOnNodeAddresses,
  type SpokenFor,
  spokenPorts,
  trafficPlan,
} from '../traffic/plan.ts';
import { type NftChain, withJumpTargets } from './chains.ts';
import { changedOwners } from './changed-owners.ts';
import { type CompiledNftPlan, compileSteps, EMPTY_NFT_PLAN, type VipSharing } from './compile.ts';
import { elementId, type MapElement } from './element.ts';
import { elementDiffSteps, isRemovedFirst } from './element-diff.ts';
import { isReferenceCounted } from './maps.ts';
import {
  CLUSTER_IPS_CHAIN,
  type StaticChainOptions,
  staticServiceChains,
} from './static-chains.ts';

/** Elements in one part of a snapshot. */
const SNAPSHOT_PART = 256;

/** All settings that elements and chains depend on. */
export interface NftPlanOptions extends StaticChainOptions, NodePortOptions {}

/** A Route with the state of other Routes and of the node that its elements depend on. */
export interface PlannedRoute {
  readonly route: Route;
  /** By VIP; VIPs that are not shared may be missing. */
  readonly sharing: ReadonlyMap<string, VipSharing>;
  readonly allowsOwnVips: boolean;
  /** Absent if no owner of the Route owns ports of another Service. */
  readonly spokenFor?: SpokenFor;
}

/** A Route that the kernel has, with its elements and chains. */
export interface AppliedRoute extends CompiledNftPlan {
  readonly planned: PlannedRoute;
}

/** The changes from the applied state to the desired state. */
export interface PlanDiff {
  /** Chains that the kernel does not have yet, or not with these rules. */
  readonly chains: readonly NftChain[];
  /** Dispatch elements, node port addresses, and elements that an addition replaces or overlaps. See `phases.ts`. */
  readonly deletes: readonly MapElement[];
  readonly adds: readonly MapElement[];
  /** Elements to delete last, because packets in flight may still look them up. */
  readonly cleanup: readonly MapElement[];
  /** The changed Routes, to find affinity entries that became stale. */
  readonly routes: readonly (readonly [
    before: PlannedRoute | undefined,
    after: PlannedRoute | undefined,
  ])[];
}

/**
 * Tracks desired and applied Routes of one IP family. It keeps Routes and compiles them again to find
 * deleted elements, because elements would take ten times the memory.
 */
export class NftPlan {
  readonly #options: NftPlanOptions;
  #nodeAddresses: NodeAddresses = { addresses: [], primary: [] };
  #serviceCidrs: readonly string[];
  #appliedServiceCidrs: readonly string[] = [];
  readonly #desired = new Map<string, PlannedRoute>();
  /** Routes that the kernel has, once the last diff or snapshot is written. */
  #applied = new Map<string, PlannedRoute>();
  #appliedNodePortIps: readonly string[] = [];
  readonly #pending = new Set<string>();
  /** Ids of all Routes by VIP. */
  readonly #routesByVip = new Map<string, Set<string>>();
  /** Match kinds of all-ports and port-range Routes, by VIP and Route id. */
  readonly #allPortsByVip = new Map<string, Map<string, RouteMatch['kind']>>();
  /** Routes with owned ports by the address of an owner, and by id. */
  readonly #routesByOwner = new Map<string, Map<string, Route>>();
  /** Number of applied Routes that need a reference-counted element, by `elementId`. */
  #references = new Map<string, number>();
  #chains = new Map<string, NftChain>();

  constructor(options: NftPlanOptions) {
    this.#options = options;
    this.#serviceCidrs = options.serviceCidrs;
  }

  /** The CIDRs of cluster IPs: packets to addresses in them that no Service has are dropped. */
  get serviceCidrs(): readonly string[] {
    return this.#serviceCidrs;
  }

  setServiceCidrs(cidrs: readonly string[]): void {
    this.#serviceCidrs = cidrs;
  }

  setNodeAddresses(nodeAddresses: NodeAddresses): void {
    this.#nodeAddresses = nodeAddresses;
    for (const { route } of [...this.#desired.values()]) {
      if (dependsOnNodeAddresses(route)) this.#setDesired(route);
    }
  }

  /** The addresses on which node ports are served. */
  get nodePortAddresses(): readonly string[] {
    return listedNodePortAddresses(this.#options, this.#nodeAddresses);
  }

  update(upserts: Iterable<Route>, removals: Iterable<string>): void {
    const changed = [...upserts];
    const before = new Map<string, string>();
    const owners = new Set<string>();
    const index = (route: Route | undefined, isPresent: boolean) => {
      for (const { address } of route?.owned?.owners ?? []) {
        if (this.#indexOwner(address, route as Route, isPresent)) owners.add(address);
      }
      for (const vip of route === undefined ? [] : vipsOf(route)) {
        if (!before.has(vip)) before.set(vip, this.#allPortsText(vip));
        this.#index(vip, route as Route, isPresent);
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
    for (const [vip, allPorts] of before) {
      if (this.#allPortsText(vip) === allPorts) continue;
      for (const id of this.#routesByVip.get(vip) ?? []) {
        const planned = this.#desired.get(id);
        if (planned !== undefined) this.#setDesired(planned.route);
      }
    }
    const sharingOwners = new Set(
      [...owners].flatMap((address) => [...(this.#routesByOwner.get(address)?.keys() ?? [])]),
    );
    for (const id of sharingOwners) {
      const planned = this.#desired.get(id);
      if (planned !== undefined) this.#setDesired(planned.route);
    }
  }

  /**
   * The changes since the last diff or snapshot, which count as applied from now on. If the caller cannot write the
   * changes, it must call `snapshot` next.
   */
  diff(): PlanDiff {
    return finish(this.diffSteps());
  }

  /**
   * Computes `diff` in steps, so that the caller can yield to the event loop. Updates during the
   * iteration are part of the next diff.
   */
  *diffSteps(): Steps<PlanDiff> {
    const routes = [...this.#pending].map(
      (id) => [this.#applied.get(id), this.#desired.get(id)] as const,
    );
    // Mark all Routes as applied before the first yield: updates during the iteration compare with the applied state.
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
    const compile = (planned: PlannedRoute) => this.#compileSteps(planned);
    function* collect(
      planned: PlannedRoute | undefined,
      into: Map<string, MapElement>,
      change: 1 | -1,
    ): Steps<void> {
      const compiled = planned === undefined ? EMPTY_NFT_PLAN : yield* compile(planned);
      for (const element of compiled.elements) {
        yield undefined;
        const key = elementId(element);
        if (!isReferenceCounted(element.map)) into.set(key, element);
        else getOrCreate(shared, key, () => ({ element, change: 0 })).change += change;
      }
      if (change === 1) chains.push(...compiled.chains);
    }
    for (const [old, now] of routes) {
      const [was, is] = old && now ? changedOwners(old, now) : [old, now];
      yield* collect(was, before, -1);
      yield* collect(is, after, 1);
      yield undefined;
    }
    const { deletes, adds, cleanup } = yield* elementDiffSteps(before, after, this.#options.family);
    // Packets reach slices only by these addresses. Slices are deleted in several transactions, and a packet must not
    // find some of them only.
    const addresses: MapElement[] = [];
    for (const [key, { element, change }] of shared) {
      yield undefined;
      const references = this.#references.get(key) ?? 0;
      this.#addReferences(key, change);
      if (references === 0 && change > 0) adds.push(element);
      if (references === 0 || references + change > 0) continue;
      if (isRemovedFirst(element)) deletes.push(element);
      else (element.map === 'owned-addresses' ? addresses : cleanup).push(element);
    }
    const ips = this.nodePortAddresses;
    const appliedIps = this.#appliedNodePortIps;
    this.#appliedNodePortIps = ips;
    adds.push(...ips.filter((ip) => !appliedIps.includes(ip)).map(nodePortIpElement));
    deletes.push(...appliedIps.filter((ip) => !ips.includes(ip)).map(nodePortIpElement));
    return {
      chains: [...this.#changedStaticChains(), ...this.#registerChains(chains)],
      deletes,
      adds,
      cleanup: [...addresses, ...cleanup],
      routes,
    };
  }

  /**
   * All desired elements, Route by Route, each element once. They count as applied from the first
   * iteration on. Iterations are short: some have no elements, and a Route with many has several.
   */
  *snapshot(): Iterable<{
    readonly elements: readonly MapElement[];
    readonly planned?: PlannedRoute;
  }> {
    this.#pending.clear();
    this.#applied = new Map(this.#desired);
    this.#references = new Map();
    this.#chains = new Map(this.#staticChains().map((chain) => [chain.name, chain]));
    this.#appliedNodePortIps = this.nodePortAddresses;
    this.#appliedServiceCidrs = this.#serviceCidrs;
    yield { elements: this.#appliedNodePortIps.map(nodePortIpElement) };
    for (const planned of [...this.#applied.values()]) {
      const steps = this.#compileSteps(planned);
      let step = steps.next();
      for (; step.done !== true; step = steps.next()) yield { elements: [] };
      const compiled = step.value;
      this.#registerChains(compiled.chains);
      const isFirst = (element: MapElement) =>
        !isReferenceCounted(element.map) || this.#addReferences(elementId(element), 1) === 1;
      yield { elements: compiled.elements.slice(0, SNAPSHOT_PART).filter(isFirst), planned };
      for (let at = SNAPSHOT_PART; at < compiled.elements.length; at += SNAPSHOT_PART)
        yield { elements: compiled.elements.slice(at, at + SNAPSHOT_PART).filter(isFirst) };
    }
  }

  /** Whether there was a snapshot, so that the applied state is known. */
  get hasApplied(): boolean {
    return this.#chains.size > 0;
  }

  /**
   * The applied Routes with their elements and chains, Route by Route. Elements that several Routes
   * need appear several times.
   */
  *applied(isIncluded: (planned: PlannedRoute) => boolean = () => true): Iterable<AppliedRoute> {
    for (const planned of this.#applied.values()) {
      if (isIncluded(planned)) yield { planned, ...this.#compile(planned) };
    }
  }

  *appliedRoutes(): Iterable<Route> {
    for (const { route } of this.#applied.values()) yield route;
  }

  /** Applied elements of no Route. */
  appliedNodeElements(): MapElement[] {
    return this.#appliedNodePortIps.map(nodePortIpElement);
  }

  /** All chains that applied Routes have used since the last snapshot, and the static chains. */
  chains(): Iterable<NftChain> {
    return this.#chains.values();
  }

  /** The Service port (`ns/name` or `ns/name:port`) that needs an element; undefined if none does. */
  servicePortOf(element: MapElement): string | undefined {
    const key = elementId(element);
    for (const planned of this.#applied.values()) {
      const { elements } = this.#compile(planned);
      if (elements.some((each) => elementId(each) === key)) return planned.route.name;
    }
    return undefined;
  }

  #staticChains(): NftChain[] {
    return staticServiceChains({ ...this.#options, serviceCidrs: this.#serviceCidrs });
  }

  #changedStaticChains(): NftChain[] {
    if (isDeepStrictEqual(this.#appliedServiceCidrs, this.#serviceCidrs)) return [];
    this.#appliedServiceCidrs = this.#serviceCidrs;
    const changed = this.#staticChains().filter(({ name }) => name === CLUSTER_IPS_CHAIN);
    for (const chain of changed) this.#chains.set(chain.name, chain);
    return changed;
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
    const references = (this.#references.get(key) ?? 0) + change;
    if (references === 0) this.#references.delete(key);
    else this.#references.set(key, references);
    return references;
  }

  #compile(planned: PlannedRoute): CompiledNftPlan {
    return finish(this.#compileSteps(planned));
  }

  #compileSteps({ route, sharing, allowsOwnVips, spokenFor }: PlannedRoute) {
    const plan = trafficPlan(route, allowsOwnVips, spokenFor);
    return compileSteps(plan, sharing, this.#options);
  }

  /** Plans a Route again after a change of the Route, of another Route on its VIPs, or of the node's addresses. */
  #setDesired(route: Route): void {
    const planned = this.#planned(route);
    this.#desired.set(route.id, planned);
    const applied = this.#applied.get(route.id);
    if (applied !== undefined && isDeepStrictEqual(applied, planned))
      this.#pending.delete(route.id);
    else this.#pending.add(route.id);
  }

  #planned(route: Route): PlannedRoute {
    let sharing: Map<string, VipSharing> | undefined;
    for (const vip of vipsOf(route)) {
      const others = this.#allPortsOn(vip);
      const ranges = others.filter((id) => this.#allPortsByVip.get(vip)?.get(id) === 'ranges');
      const slot = ranges.indexOf(route.id) + 1;
      const sharesWithAllPorts = others.some((id) => id !== route.id);
      if (slot === 0 && !sharesWithAllPorts) continue;
      const lastSlot = slot === 1 ? ranges.length : undefined;
      sharing ??= new Map();
      sharing.set(vip, { slot, sharesWithAllPorts, lastSlot });
    }
    const spokenFor = this.#spokenFor(route);
    return {
      route,
      sharing: sharing ?? SHARES_NO_VIP,
      allowsOwnVips: allowsOwnVips(route, this.#nodeAddresses.addresses),
      ...(spokenFor.size === 0 ? {} : { spokenFor }),
    };
  }

  /** Ports from which owners of the Route speak for older Services. */
  #spokenFor({ id, owned }: Route): SpokenFor {
    const spoken = new Map<string, readonly PortRange[]>();
    for (const { address } of owned?.owners ?? []) {
      const routes = this.#routesByOwner.get(address);
      if (routes === undefined || routes.size < 2) continue;
      const older = [...routes.values()].filter(
        (other) => other.id !== id && (other.owned?.priority ?? '') < (owned?.priority ?? ''),
      );
      const ports = older.flatMap((other) => spokenPorts(other, address));
      if (ports.length > 0) spoken.set(address, ports);
    }
    return spoken;
  }

  /** @returns whether another Route has the owner too. */
  #indexOwner(address: string, route: Route, isPresent: boolean): boolean {
    const routes = getOrCreate(this.#routesByOwner, address, () => new Map<string, Route>());
    if (isPresent) routes.set(route.id, route);
    else routes.delete(route.id);
    if (routes.size === 0) this.#routesByOwner.delete(address);
    return routes.size > (isPresent ? 1 : 0);
  }

  /**
   * Ids of the all-ports and port-range Routes on a VIP. Sorted, so that slots do not depend on the order of updates.
   */
  #allPortsOn(vip: string): string[] {
    return [...(this.#allPortsByVip.get(vip)?.keys() ?? [])].sort(compareText);
  }

  #allPortsText(vip: string): string {
    return this.#allPortsOn(vip)
      .map((id) => `${id} ${this.#allPortsByVip.get(vip)?.get(id)}`)
      .join();
  }

  #index(vip: string, { id, match }: Route, isPresent: boolean): void {
    if (isPresent) {
      getOrCreate(this.#routesByVip, vip, () => new Set()).add(id);
      if (match.kind !== 'port')
        getOrCreate(this.#allPortsByVip, vip, () => new Map()).set(id, match.kind);
      return;
    }
    const [ids, allPorts] = [this.#routesByVip.get(vip), this.#allPortsByVip.get(vip)];
    ids?.delete(id);
    if (ids?.size === 0) this.#routesByVip.delete(vip);
    allPorts?.delete(id);
    if (allPorts?.size === 0) this.#allPortsByVip.delete(vip);
  }
}

/** The same value for all Routes that share no VIP, which are nearly all. */
const SHARES_NO_VIP: ReadonlyMap<string, VipSharing> = new Map();

function nodePortIpElement(address: string): MapElement {
  return { map: 'node-port-ips', key: addressBytes(address) };
}
