/** Resolves Services and EndpointSlices to Routes, incrementally: only Services affected by a change. */
import { isDeepStrictEqual } from 'node:util';
import type { PortFeatures, ServiceRefusal } from '../api/all-ports.ts';
import { setList } from '../api/collections.ts';
import {
  type ApiObject,
  type EndpointSlice,
  type Kind,
  type Node,
  namespaceOf,
  type ObjectKey,
  SERVING_KINDS,
  type Service,
} from '../api/objects.ts';
import type { NodeTopology } from '../endpoints/select.ts';
import type { AddressHolders, EndpointWithoutSlice } from '../endpoints/slice-owners.ts';
import {
  entryBudget,
  type NamespaceBudget,
  type RangeLimit,
  rangeBudget,
} from '../services/namespace-budget.ts';
import { nextStep } from '../services/owner-steps.ts';
import { type RouteContext, resolveRoute } from '../services/resolve-route.ts';
import type { Route } from '../services/route.ts';
import {
  type ServedPort,
  type ServedService,
  servedPorts,
  serviceAddresses,
} from '../services/served-ports.ts';
import { healthChanges, type ServiceHealth, serviceHealth } from '../services/service-health.ts';
import type { ServiceWarning } from '../services/service-warnings.ts';
import { VipConflicts } from '../services/vip-conflicts.ts';
import { nodePortsOf, vipFields } from '../services/vip-requests.ts';
import type { ObjectSink, PodWatches } from '../sources/source.ts';
import { AffectedServices, type TakeLimits } from './affected-services.ts';
import type { RefusalState } from './backend.ts';
import { type ChangeTrigger, ChangeTriggers } from './change-triggers.ts';
import { ContestedVips } from './contested-vips.ts';
import { EndpointAddresses } from './endpoint-addresses.ts';
import { LIST_TIMEOUT, OwnerPods } from './owner-pods.ts';
import { RouteCounts } from './route-counts.ts';
import { ServiceSlices } from './service-slices.ts';
import { TakenNodePorts } from './taken-node-ports.ts';
import { UdpOwners } from './udp-owners.ts';
import {
  type EndpointsWithoutSlice,
  type WarningOptions,
  WarningsInForce,
} from './warnings-in-force.ts';

/** New and ended refusals, and new warnings, for logs and Events. */
export interface RefusalChanges {
  readonly raised: readonly ServiceRefusal[];
  readonly cleared: readonly ServiceRefusal[];
  /** New warnings; the end of a warning is not reported. */
  readonly warnings: readonly ServiceWarning[];
}

/** Options of the RouteTable. */
export interface RouteTableOptions extends WarningOptions {
  readonly nodeName: string;
  /**
   * Kinds that must be listed before rules are written; by default those needed to serve Services. The first sync waits 30 s for
   * others.
   */
  readonly awaitedKinds?: readonly Kind[];
  readonly allPortsEnabled: boolean;
  /** See `PortFeatures.externalIPs`; true by default. */
  readonly externalIPsEnabled?: boolean;
  /** See `PortFeatures.modeWithoutOwnedPorts`; undefined by default. */
  readonly modeWithoutOwnedPorts?: string | undefined;
  /** See `PortFeatures.consistentHashProblem`; undefined by default. */
  readonly consistentHashProblem?: string | undefined;
  /** Default: 262,144 ranges and slices. */
  readonly rangeLimit?: RangeLimit | undefined;
  /** Called when `takeChanges` may return changes, and when a kind of object has been listed. */
  readonly onChange: () => void;
  /** Milliseconds since 1970. */
  readonly now?: () => number;
}

/** Called for a Route that was added, changed or removed. */
export type RouteListener = (before: Route | undefined, after: Route | undefined) => void;

type ChangingKind = 'Service' | 'EndpointSlice';

interface ServiceState {
  readonly service: Service;
  /** What is served: nothing of a Service that exceeds the budget of its namespace. */
  readonly served: ServedService;
}

/** A stored Service. */
interface StoredService extends ServiceState {
  /** What would be served without a budget. */
  readonly wanted: ServedService;
}

/** A Service with its objects, and what this node made of them. */
export interface InspectedService extends ServiceState {
  /** See `serviceAddresses`; also of a refused Service. */
  readonly addresses: readonly string[];
  readonly slices: readonly EndpointSlice[];
  readonly routes: readonly Route[];
  readonly refusals: readonly ServiceRefusal[];
  readonly warnings: readonly ServiceWarning[];
  readonly health: readonly ServiceHealth[];
}

/** Everything derived from the objects of one Service. */
interface Resolved {
  readonly routes: Map<string, Route>;
  readonly withoutSlice: readonly EndpointsWithoutSlice[];
  /** Whether the Service is refused as a whole. */
  readonly isRefused: boolean;
  readonly refusals: readonly ServiceRefusal[];
  readonly health: readonly ServiceHealth[];
}

/**
 * Stores Services, EndpointSlices and Pods that may own ports from the sources, and resolves them to Routes. A change
 * marks the affected Services; `takeChanges` resolves only these. Objects of other kinds are ignored.
 */
export class RouteTable implements ObjectSink {
  readonly #options: RouteTableOptions;
  readonly #features: PortFeatures;
  readonly #services = new Map<ObjectKey, StoredService>();
  readonly #slices = new ServiceSlices();
  readonly #vipConflicts: VipConflicts;
  readonly #rangeBudget: NamespaceBudget;
  readonly #entryBudget = entryBudget();
  /** Costs of the Services with ranges and large ones whose Routes `takeChanges` has returned, see `#costOf`. */
  readonly #costs = new Map<ObjectKey, number>();
  readonly #routes = new Map<ObjectKey, readonly Route[]>();
  readonly #refusals = new Map<ObjectKey, readonly ServiceRefusal[]>();
  /** Services that are or were refused as a whole, as opposed to single VIPs. */
  readonly #refused = new Map<ObjectKey, RefusalState>();
  readonly #health = new Map<ObjectKey, readonly ServiceHealth[]>();
  readonly #affected = new AffectedServices();
  /** What affected Services get in steps, if nothing has changed since. */
  readonly #unfinished = new Map<ObjectKey, Resolved>();
  readonly #triggers: ChangeTriggers;
  /** Number of changes since the start, and of changes that `takeChanges` has not returned yet. */
  readonly #changes = {
    Service: { total: 0, pending: 0 },
    EndpointSlice: { total: 0, pending: 0 },
  };
  readonly #udpOwners = new UdpOwners();
  readonly #contestedVips = new ContestedVips();
  readonly #takenNodePorts = new TakenNodePorts();
  #revision = 0;
  readonly #routeListeners = new Set<RouteListener>();
  /** Counts of the Routes that `takeChanges` has returned. */
  readonly routeCounts = new RouteCounts();
  readonly #unsynced: Set<Kind>;
  #node: Node | undefined;
  #nodeAddresses: ReadonlySet<string> = new Set();
  readonly #warnings: WarningsInForce;
  /** Resolved Services with owned ports, which a pod with the address of an endpoint affects. */
  readonly #withOwnedPorts = new EndpointAddresses();
  readonly #pods: OwnerPods;

  constructor(options: RouteTableOptions) {
    this.#options = options;
    this.#features = {
      allPorts: options.allPortsEnabled,
      externalIPs: options.externalIPsEnabled ?? true,
      modeWithoutOwnedPorts: options.modeWithoutOwnedPorts,
      consistentHashProblem: options.consistentHashProblem,
    };
    this.#unsynced = new Set(options.awaitedKinds ?? SERVING_KINDS);
    this.#vipConflicts = new VipConflicts(options.listeners?.map(({ port }) => port) ?? []);
    this.#rangeBudget = rangeBudget(options.rangeLimit);
    this.#warnings = new WarningsInForce(options, (key) => this.#affectNow([key]));
    this.#pods = new OwnerPods(options.timers, (services) => this.#affectNow(services));
    this.#triggers = new ChangeTriggers(options.now ?? Date.now);
  }

  /**
   * Lets the source watch Pods only in namespaces that have Services with owned ports. By default, the table stores all
   * Pods. Call it before the first object.
   */
  usePodWatches(watches: PodWatches): void {
    this.#pods.useWatches(watches);
  }

  /**
   * Whether all awaited kinds of objects have been listed, and the Pods of namespaces with owned ports, unless the wait for them
   * is over. Rules must not be written before, because a restart would withdraw what is not listed yet.
   */
  get isSynced(): boolean {
    return this.#unsynced.size === 0 && this.#pods.awaited.size === 0;
  }

  /** Kinds that no source has listed yet. */
  get unsynced(): ReadonlySet<Kind> {
    return this.#unsynced;
  }

  /** Namespaces whose Pods the first sync still waits for. */
  get awaitedPods(): ReadonlySet<string> {
    return this.#pods.awaited;
  }

  /** The Node object of this node; undefined while no source has it. */
  get node(): Node | undefined {
    return this.#node;
  }

  /** The current version of a Service. */
  service(key: ObjectKey): Service | undefined {
    return this.#services.get(key)?.service;
  }

  /** Number of changes of Services and EndpointSlices since the start, and of changes not yet returned. */
  get changeCounts(): Readonly<
    Record<ChangingKind, { readonly total: number; readonly pending: number }>
  > {
    return this.#changes;
  }

  /** Changes whenever the result of `serviceKeys`, `inspect` or `topology` may have changed. */
  get revision(): number {
    return this.#revision;
  }

  upsert(object: ApiObject): void {
    if (object.kind === 'Service') {
      this.#count(object.kind);
      this.#upsertService(object);
    } else if (object.kind === 'EndpointSlice') {
      this.#count(object.kind);
      this.#upsertSlice(object);
    } else if (object.kind === 'Node' && object.name === this.#options.nodeName)
      this.#setNode(object);
    else if (object.kind !== 'Pod' || !this.#affectOwners(object.key, this.#pods.upsert(object)))
      return;
    this.#options.onChange();
  }

  remove(kind: Kind, key: ObjectKey): void {
    if (kind === 'Service') {
      this.#count(kind);
      this.#removeService(key);
    } else if (kind === 'EndpointSlice') {
      this.#count(kind);
      this.#removeSlice(key);
    } else if (kind === 'Node' && key === this.#options.nodeName) this.#setNode(undefined);
    else if (kind !== 'Pod' || !this.#affectOwners(key, this.#pods.remove(key))) return;
    this.#options.onChange();
  }

  synced(kind: Kind, namespace?: string): void {
    if (kind === 'Pod') this.#pods.listed(namespace);
    if (!this.#unsynced.delete(kind)) return;
    if (kind === 'EndpointSlice') this.#triggers.start();
    if (this.#unsynced.size === 0) this.#pods.awaitLists();
    else if (SERVING_KINDS.every((each) => !this.#unsynced.has(each))) {
      // The others only add rules: Services are served without them, if their list fails.
      this.#options.timers?.set(() => {
        for (const each of [...this.#unsynced]) this.synced(each);
      }, LIST_TIMEOUT);
    }
    this.#options.onChange();
  }

  /** Sets the addresses of this node. @param addresses without addresses on the dummy interface of mode ipvs. */
  setNodeAddresses(addresses: ReadonlySet<string>): void {
    const before = this.#nodeAddresses;
    const isSame =
      addresses.size === before.size && [...addresses].every((each) => before.has(each));
    if (isSame) return;
    this.#nodeAddresses = addresses;
    const routesAt = (address: string) =>
      [...this.#vipConflicts.servicesAt(address)].flatMap((key) => this.#routes.get(key) ?? []);
    this.#affect(this.#takenNodePorts.setNodeAddresses(addresses, routesAt));
    const holders = this.#vipConflicts.setNodeAddresses(addresses);
    this.#affect(holders);
    // A Service lets go of an address of the node at once, whatever it costs.
    for (const key of holders) this.#affected.hurry(key);
    this.#options.onChange();
  }

  /** Keys of all Services, served or not. */
  get serviceKeys(): Iterable<ObjectKey> {
    return this.#services.keys();
  }

  /** Number of Services, served or not. */
  get serviceCount(): number {
    return this.#services.size;
  }

  /** Objects of a Service and everything derived from them; undefined if there is no such Service. */
  inspect(key: ObjectKey): InspectedService | undefined {
    const state = this.#services.get(key);
    if (state === undefined) return undefined;
    return {
      ...state,
      addresses: serviceAddresses(state.service, this.#features),
      slices: this.#slices.of(key),
      routes: this.#routes.get(key) ?? [],
      refusals: this.#refusals.get(key) ?? [],
      warnings: this.#warnings.of(key),
      health: this.#health.get(key) ?? [],
    };
  }

  /** Name and zone of this node. */
  get topology(): NodeTopology {
    return { name: this.#options.nodeName, zone: this.#node?.zone };
  }

  /**
   * Reports each Route that `takeChanges` adds, changes or removes.
   * @returns a function that ends the reports.
   */
  watchRoutes(listener: RouteListener): () => void {
    this.#routeListeners.add(listener);
    return () => this.#routeListeners.delete(listener);
  }

  /** All Routes. */
  *routes(): Iterable<Route> {
    for (const routes of this.#routes.values()) yield* routes;
  }

  /** Routes by which the endpoint with an address owns UDP ports. */
  udpRoutesOfOwner(address: string): readonly Route[] {
    return this.#udpOwners.routesOf(address);
  }

  /** Decides which endpoints can own ports. */
  get pods(): AddressHolders {
    return this.#pods;
  }

  /** All addresses of this node, without those on the agent's own dummy interface. */
  get nodeAddresses(): ReadonlySet<string> {
    return this.#nodeAddresses;
  }

  /** All refusals in force. */
  *refusals(): Iterable<ServiceRefusal> {
    for (const refusals of this.#refusals.values()) yield* refusals;
  }

  /** Number of Services that hide a listener of the node. */
  get servicesOnListenerPorts(): number {
    return this.#warnings.servicesOnListenerPorts;
  }

  /** Numbers of endpoints that own no ports, although pods own the ports of their Service, by reason. */
  get endpointsWithoutSlice(): ReadonlyMap<EndpointWithoutSlice['reason'], number> {
    return this.#warnings.withoutSlice();
  }

  /** Whether affected Services have not been resolved yet. */
  get hasChanges(): boolean {
    return this.#affected.size > 0;
  }

  /** Numbers of affected Services that have not been resolved yet. */
  get waiting(): { readonly ordinary: number; readonly costly: number } {
    const { size, ordinary } = this.#affected;
    return { ordinary, costly: size - ordinary };
  }

  /**
   * Resolves the Services affected since the last call, at most so many.
   * @returns the changes for these Services: Routes, refusals, warnings, health check node ports, trigger times.
   */
  takeChanges(limits: TakeLimits = { services: Infinity, cost: Infinity }) {
    const triggers: ChangeTrigger[] = [];
    const upserts: Route[] = [];
    const removals: Route[] = [];
    const before = new Map<string, Route>();
    const refused = new Map<ObjectKey, RefusalState>();
    const raised: ServiceRefusal[] = [];
    const cleared: ServiceRefusal[] = [];
    const health: ServiceHealth[] = [];
    const withWarnings = new Set<ObjectKey>();
    const unfinished: (readonly [ObjectKey, Resolved])[] = [];
    if (this.#affected.size > 0) this.#revision += 1;
    for (const key of this.#takeAffected(limits)) {
      if (this.#ownsPorts(key) && !this.#pods.isSettled(namespaceOf(key))) {
        removals.push(...this.#releaseListedPorts(key));
        continue;
      }
      const cost = this.#costOf(key);
      if (cost > 0) this.#costs.set(key, cost);
      else this.#costs.delete(key);
      const resolved = this.#unfinished.get(key) ?? this.#resolve(key);
      const { refusals } = resolved;
      const known = new Map(this.#routes.get(key)?.map((route) => [route.id, route]));
      const routes: Route[] = [];
      let isFinished = true;
      for (const route of known.values()) if (!resolved.routes.has(route.id)) removals.push(route);
      for (const wanted of resolved.routes.values()) {
        const old = known.get(wanted.id);
        // With Routes of another kind at once, ports would have none for a moment.
        const isChange = old !== undefined || known.size === 0;
        const route = isChange ? nextStep(old, wanted, limits.owners ?? Infinity) : wanted;
        routes.push(route);
        isFinished &&= route === wanted;
        if (old !== undefined && isDeepStrictEqual(old, route)) continue;
        upserts.push(route);
        if (old !== undefined) before.set(route.id, old);
      }
      setList(this.#routes, key, routes);
      this.#unfinished.delete(key);
      if (isFinished) {
        triggers.push(...this.#triggers.take(key));
        health.push(...healthChanges(this.#health.get(key) ?? [], resolved.health));
        setList(this.#health, key, resolved.health);
      } else unfinished.push([key, resolved]);
      this.#warnings.setWithoutSlice(key, resolved.withoutSlice);
      this.#withOwnedPorts.set(key, this.#ownsPorts(key) ? this.#slices.of(key) : []);

      const state = this.#recordRefusal(key, resolved.isRefused);
      if (state !== undefined) refused.set(key, state);

      const previous = this.#refusals.get(key) ?? [];
      raised.push(...without(refusals, previous));
      cleared.push(...without(previous, refusals));
      setList(this.#refusals, key, refusals);
      for (const owner of this.#contestedVips.setRefusals(key, refusals)) withWarnings.add(owner);

      withWarnings.add(key);
    }
    const replace = (old: Route | undefined, now: Route | undefined) => {
      this.routeCounts.replaceRoute(old, now);
      for (const key of this.#udpOwners.replaceRoute(old, now)) withWarnings.add(key);
      for (const key of this.#takenNodePorts.replaceRoute(old, now)) withWarnings.add(key);
      for (const listener of this.#routeListeners) listener(old, now);
    };
    for (const route of removals) replace(route, undefined);
    for (const route of upserts) replace(before.get(route.id), route);
    for (const [key, resolved] of unfinished) {
      // The next step costs as much as this one.
      const cost = Math.min(this.#costOf(key), limits.owners ?? Infinity);
      this.#affected.add(key, cost, () => placesOf(this.#routes.get(key) ?? []));
      this.#unfinished.set(key, resolved);
    }
    const warnings = [...withWarnings]
      // An affected Service gets its warnings when it is resolved.
      .filter((key) => !this.#affected.has(key))
      .flatMap((key) => this.#updateWarnings(key));
    if (this.#affected.size === 0) {
      for (const changes of Object.values(this.#changes)) changes.pending = 0;
    }
    return {
      /** `before` has the previous versions of the Routes in `upserts`. */
      routes: { upserts, removals, before },
      /** Changed states of Services that are or were refused as a whole. */
      refused,
      refusals: { raised, cleared, warnings },
      /** Changed health check node ports; a removed health check node port has port 0. */
      health,
      triggers,
    };
  }

  /**
   * The other Routes of a Service with owned ports stay as they are until its owners are known: `OwnerPods` affects it again.
   * But its former listed ports may be granted to other Services.
   */
  #releaseListedPorts(key: ObjectKey): Route[] {
    const { released = [], kept = [] } = Object.groupBy(this.#routes.get(key) ?? [], ({ match }) =>
      match.kind === 'port' ? 'released' : 'kept',
    );
    setList(this.#routes, key, kept);
    return released;
  }

  /** @returns the new state of a Service that is or was refused; undefined if it has not changed. */
  #recordRefusal(key: ObjectKey, isRefused: boolean): RefusalState | undefined {
    const before = this.#refused.get(key);
    if (before === undefined && !isRefused) return undefined;
    const served = this.#services.has(key) ? 'served' : 'deleted';
    const now = isRefused ? 'refused' : served;
    if (now === 'deleted') this.#refused.delete(key);
    else this.#refused.set(key, now);
    return now === before ? undefined : now;
  }

  #updateWarnings(key: ObjectKey): ServiceWarning[] {
    const routes = this.#routes.get(key) ?? [];
    return this.#warnings.update(key, {
      state: this.#services.get(key),
      slices: this.#slices.of(key),
      routes,
      contestedVips: this.#contestedVips.of(key),
      takenNodePorts: this.#takenNodePorts.of(routes),
      otherSpeakers: new Map(routes.flatMap((route) => [...this.#udpOwners.winners(route)])),
      nodeAddresses: this.#nodeAddresses,
    });
  }

  #resolve(key: ObjectKey): Resolved {
    const routes = new Map<string, Route>();
    const state = this.#services.get(key);
    const withoutSlice: EndpointsWithoutSlice[] = [];
    if (state === undefined)
      return { routes, withoutSlice, isRefused: false, refusals: [], health: [] };
    const refused = this.#vipConflicts.refusals(key);
    const slices = this.#slices.of(key);
    const context: RouteContext = {
      node: this.topology,
      pods: this.#pods,
      refused,
      portsTakenFrom: (port, vip) => this.#vipConflicts.portsTakenFrom(port, vip),
    };
    for (const port of state.served.ports) {
      const resolved = resolveRoute(state.service, port, slices, context);
      if (resolved === undefined) continue;
      const { route, withoutSlice: endpoints } = resolved;
      routes.set(route.id, route);
      if (endpoints.length > 0) withoutSlice.push({ family: route.family, endpoints });
    }
    return {
      routes,
      withoutSlice,
      isRefused: state.served.refusals.length > 0,
      refusals: [...state.served.refusals, ...new Set(refused.values())],
      health: serviceHealth(key, state.served.ports, refused, slices, this.#options.nodeName),
    };
  }

  #ownsPorts(key: ObjectKey): boolean {
    return this.#services.get(key)?.served.ports.some(({ ownership }) => ownership) === true;
  }

  #count(kind: ChangingKind): void {
    this.#revision += 1;
    this.#changes[kind].total += 1;
    this.#changes[kind].pending += 1;
  }

  #upsertService(service: Service): void {
    const served = servedPorts(service, this.#features);
    this.#services.set(service.key, { service, served, wanted: served });
    this.#claimBudgets(service.key, service.creationTimestamp, served.ports);
    this.#requestVips(service.key);
  }

  #removeService(key: ObjectKey): void {
    if (!this.#services.delete(key)) return;
    this.#claimBudgets(key, '', []);
    this.#requestVips(key);
  }

  /** Serves or refuses this and other Services of the namespace within its budgets. */
  #claimBudgets(key: ObjectKey, creationTimestamp: string, ports: ServedService['ports']): void {
    const budgets = [this.#rangeBudget, this.#entryBudget];
    const changed = budgets.flatMap((budget) => [
      ...budget.replaceClaim(key, creationTimestamp, ports),
    ]);
    for (const each of new Set([key, ...changed])) {
      const state = this.#services.get(each);
      if (state === undefined) continue;
      const { wanted } = state;
      // A Service has listed ports or ranges, so one budget counts it.
      const refusal = this.#rangeBudget.refusal(each) ?? this.#entryBudget.refusal(each);
      const served = refusal === undefined ? wanted : { ...wanted, ports: [], refusals: [refusal] };
      this.#services.set(each, { ...state, served });
      if (each !== key) this.#requestVips(each);
    }
  }

  /** Passes on which VIPs a Service wants, and whether pods own its ports; nothing if it is deleted. */
  #requestVips(key: ObjectKey): void {
    const state = this.#services.get(key);
    const others =
      state === undefined
        ? this.#vipConflicts.removeService(key)
        : this.#vipConflicts.replaceService(state.service, state.served.ports);
    this.#affect(others.add(key));
    this.#pods.setService(key, namespaceOf(key), this.#ownsPorts(key));
  }

  /** Has Services resolved again. */
  #affect(services: Iterable<ObjectKey>): void {
    for (const key of services) {
      this.#unfinished.delete(key);
      const cost = Math.max(this.#costs.get(key) ?? 0, this.#costOf(key));
      this.#affected.add(key, cost, () => placesOf(this.#routes.get(key) ?? []));
    }
  }

  /** What a Service with ranges or a large one takes of the budgets; 0 for an ordinary Service. */
  #costOf(key: ObjectKey): number {
    return this.#rangeBudget.costOf(key) + this.#entryBudget.costOf(key);
  }

  /** Takes the next affected Services, each with waiting Services that may lose a port to it. */
  *#takeAffected(limits: TakeLimits): Iterable<ObjectKey> {
    const keys = this.#affected.take(limits);
    for (const key of keys) {
      for (const place of placesOf(this.#services.get(key)?.served.ports ?? []))
        keys.push(...this.#affected.takeAt(place));
      yield key;
    }
  }

  #upsertSlice(slice: EndpointSlice): void {
    // Like kube-proxy's informer, ignore slices of headless Services.
    if (slice.headlessLabel) {
      this.#removeSlice(slice.key);
      return;
    }
    const owner = this.#slices.ownerOf(slice.key);
    if (owner !== undefined && owner !== slice.serviceKey) this.#removeSlice(slice.key);
    this.#triggers.record(slice, this.#slices.upsert(slice));
    this.#affect([slice.serviceKey]);
  }

  #removeSlice(key: ObjectKey): void {
    const owner = this.#slices.remove(key);
    if (owner === undefined) return;
    this.#triggers.discard(owner);
    this.#affect([owner]);
  }

  /** Affects Services outside of a call of a source. */
  #affectNow(services: Iterable<ObjectKey>): void {
    this.#affect(services);
    this.#options.onChange();
  }

  /**
   * Affects the Services with owned ports that have an endpoint with one of the addresses of a pod.
   * @returns whether there are such Services.
   */
  #affectOwners(pod: ObjectKey, addresses: ReadonlySet<string>): boolean {
    const namespace = namespaceOf(pod);
    const services = [...this.#withOwnedPorts.servicesAt(addresses)].filter(
      (key) => namespaceOf(key) === namespace,
    );
    this.#affect(services);
    return services.length > 0;
  }

  #setNode(node: Node | undefined): void {
    const zoneChanged = this.#node?.zone !== node?.zone;
    if (zoneChanged) this.#revision += 1;
    this.#node = node;
    // Topology hints of every Service depend on the node's zone.
    if (zoneChanged) this.#affect(this.#services.keys());
  }
}

/** The listed ports and node ports: each is one key in the kernel. Services with ranges of one VIP have slots of their own. */
function* placesOf(ports: Iterable<ServedPort | Route>): Iterable<string> {
  for (const port of ports) {
    const { match, nodePort, family } = port;
    if (match.kind !== 'port') continue;
    for (const [, vip] of vipFields(port)) yield `${vip} ${match.protocol}/${match.port}`;
    if (nodePort > 0) yield `${nodePortsOf(family)} ${match.protocol}/${nodePort}`;
  }
}

function without(
  all: readonly ServiceRefusal[],
  known: readonly ServiceRefusal[],
): ServiceRefusal[] {
  // A Service may lose thousands of VIPs, each with a refusal.
  const keyOf = ({ field, message }: ServiceRefusal) => `${field} ${message}`;
  const byKey = new Map(known.map((refusal) => [keyOf(refusal), refusal]));
  return all.filter((refusal) => !isDeepStrictEqual(refusal, byKey.get(keyOf(refusal))));
}
