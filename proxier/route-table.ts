/** From objects to Routes: which Services a change touches, and what became different for them. */
import { isDeepStrictEqual } from 'node:util';
import type { ServiceRefusal } from '../api/all-ports.ts';
import {
  type ApiObject,
  type EndpointSlice,
  type Kind,
  type Node,
  type ObjectKey,
  SERVING_KINDS,
  type Service,
} from '../api/objects.ts';
import type { NodeTopology } from '../endpoints/select.ts';
import { resolveRoute } from '../services/resolve-route.ts';
import type { Route } from '../services/route.ts';
import { type ServedService, servedPorts } from '../services/served-ports.ts';
import { type ServiceHealth, serviceHealth } from '../services/service-health.ts';
import {
  listenerWarnings,
  mismatchWarnings,
  type NodeListener,
  nodeEndpointWarnings,
  type ServiceWarning,
} from '../services/service-warnings.ts';
import { VipConflicts } from '../services/vip-conflicts.ts';
import type { ObjectSink } from '../sources/source.ts';
import { type ChangeTrigger, ChangeTriggers } from './change-triggers.ts';
import { RouteCounts } from './route-counts.ts';

/** Refusals and warnings that came or went, for logs and Events. */
export interface RefusalChanges {
  readonly raised: readonly ServiceRefusal[];
  readonly cleared: readonly ServiceRefusal[];
  /** New warnings; the end of a warning is not reported. */
  readonly warnings: readonly ServiceWarning[];
}

export interface RouteTableOptions {
  readonly nodeName: string;
  readonly allPortsEnabled: boolean;
  /** See `mismatchWarnings`; false by default. */
  readonly warnsOfMismatches?: boolean;
  /** Of this node, whose ports a Service may take; none by default. */
  readonly listeners?: readonly NodeListener[];
  /** Whether node ports are served on the loopback address; false by default. */
  readonly isLoopbackServed?: boolean;
  /** Called whenever there may be something to take, also once all is synced. */
  readonly onChange: () => void;
  /** Milliseconds since 1970. */
  readonly now?: () => number;
}

type ChangingKind = 'Service' | 'EndpointSlice';

interface ServiceState {
  readonly service: Service;
  readonly served: ServedService;
}

/** What follows from one Service's objects. */
interface Resolved {
  readonly routes: Map<string, Route>;
  /** The Service is refused as a whole. */
  readonly isRefused: boolean;
  readonly refusals: readonly ServiceRefusal[];
  readonly health: readonly ServiceHealth[];
}

/**
 * The objects that sources handed over, and the Routes that follow from them. A change marks the
 * Services that it touches; `takeChanges` resolves those and no others. Objects that Services are not
 * served from are passed over.
 */
export class RouteTable implements ObjectSink {
  readonly #options: RouteTableOptions;
  readonly #services = new Map<ObjectKey, ServiceState>();
  readonly #slices = new Map<ObjectKey, readonly EndpointSlice[]>();
  /** Which Service a slice belongs to, for when its label changes. */
  readonly #sliceOwner = new Map<ObjectKey, ObjectKey>();
  readonly #vipConflicts: VipConflicts;
  readonly #routes = new Map<ObjectKey, readonly Route[]>();
  readonly #refusals = new Map<ObjectKey, readonly ServiceRefusal[]>();
  /** Services that are refused as a whole, and not for some of their VIPs. */
  readonly #refused = new Set<ObjectKey>();
  readonly #health = new Map<ObjectKey, readonly ServiceHealth[]>();
  readonly #touched = new Set<ObjectKey>();
  readonly #triggers: ChangeTriggers;
  /** Changes since the start, and those of these that are not handed on yet. */
  readonly #changes = {
    Service: { total: 0, pending: 0 },
    EndpointSlice: { total: 0, pending: 0 },
  };
  /** Of the Routes handed on. */
  readonly counts = new RouteCounts();
  readonly #unsynced = new Set<Kind>(SERVING_KINDS);
  #node: Node | undefined;
  #nodeAddresses: ReadonlySet<string> = new Set();
  /** Warnings in force. */
  readonly #warnings = new Map<ObjectKey, readonly ServiceWarning[]>();
  /** Services that take a port of the node's own. */
  readonly #onListenerPorts = new Set<ObjectKey>();

  constructor(options: RouteTableOptions) {
    this.#options = options;
    this.#vipConflicts = new VipConflicts(options.listeners?.map(({ port }) => port) ?? []);
    this.#triggers = new ChangeTriggers(options.now ?? Date.now);
  }

  /** All sources have listed; before that nothing may be programmed. */
  get isSynced(): boolean {
    return this.#unsynced.size === 0;
  }

  /** Kinds that no source has listed yet. */
  get unsynced(): ReadonlySet<Kind> {
    return this.#unsynced;
  }

  /** This node's object, once a source had it. */
  get node(): Node | undefined {
    return this.#node;
  }

  /** A Service as it is now. */
  service(key: ObjectKey): Service | undefined {
    return this.#services.get(key)?.service;
  }

  /** How often Services and EndpointSlices changed. */
  get changes(): Readonly<
    Record<ChangingKind, { readonly total: number; readonly pending: number }>
  > {
    return this.#changes;
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
    else return;
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
    else return;
    this.#options.onChange();
  }

  synced(kind: Kind): void {
    if (!this.#unsynced.delete(kind)) return;
    if (kind === 'EndpointSlice') this.#triggers.start();
    this.#options.onChange();
  }

  /** Addresses of this node other than on the agent's own dummy device (contract, line 6). */
  setNodeAddresses(addresses: ReadonlySet<string>): void {
    this.#nodeAddresses = addresses;
    for (const key of this.#vipConflicts.setNodeAddresses(addresses)) this.#touched.add(key);
    this.#options.onChange();
  }

  /** All Routes. */
  *routes(): Iterable<Route> {
    for (const routes of this.#routes.values()) yield* routes;
  }

  /** All refusals in force. */
  *refusals(): Iterable<ServiceRefusal> {
    for (const refusals of this.#refusals.values()) yield* refusals;
  }

  /** How many Services take a port of the node's own. */
  get servicesOnListenerPorts(): number {
    return this.#onListenerPorts.size;
  }

  /** Some Service was touched and is not resolved yet. */
  get hasChanges(): boolean {
    return this.#touched.size > 0;
  }

  /**
   * Resolves Services touched since the last call, at most `limit` of them.
   * @returns everything that became different for them.
   */
  takeChanges(limit = Infinity) {
    const triggers: ChangeTrigger[] = [];
    const upserts: Route[] = [];
    const removals: Route[] = [];
    const before = new Map<string, Route>();
    const refused = new Map<ObjectKey, boolean>();
    const raised: ServiceRefusal[] = [];
    const cleared: ServiceRefusal[] = [];
    const health: ServiceHealth[] = [];
    const warnings: ServiceWarning[] = [];
    for (const key of [...this.#touched].slice(0, limit)) {
      this.#touched.delete(key);
      triggers.push(...this.#triggers.take(key));
      const resolved = this.#resolve(key);
      const { routes, refusals } = resolved;
      const known = new Map(this.#routes.get(key)?.map((route) => [route.id, route]));
      for (const route of known.values()) if (!routes.has(route.id)) removals.push(route);
      for (const route of routes.values()) {
        const old = known.get(route.id);
        if (old !== undefined && isDeepStrictEqual(old, route)) continue;
        upserts.push(route);
        if (old !== undefined) before.set(route.id, old);
      }
      if (routes.size > 0) this.#routes.set(key, [...routes.values()]);
      else this.#routes.delete(key);

      if (resolved.isRefused !== this.#refused.has(key)) refused.set(key, resolved.isRefused);
      if (resolved.isRefused) this.#refused.add(key);
      else this.#refused.delete(key);

      const standing = this.#refusals.get(key) ?? [];
      raised.push(...without(refusals, standing));
      cleared.push(...without(standing, refusals));
      if (refusals.length > 0) this.#refusals.set(key, refusals);
      else this.#refusals.delete(key);

      warnings.push(...this.#newWarnings(key, [...routes.values()]));

      health.push(...healthChanges(this.#health.get(key) ?? [], resolved.health));
      if (resolved.health.length > 0) this.#health.set(key, resolved.health);
      else this.#health.delete(key);
    }
    for (const route of removals) this.counts.replace(route, undefined);
    for (const route of upserts) this.counts.replace(before.get(route.id), route);
    if (this.#touched.size === 0) {
      for (const changes of Object.values(this.#changes)) changes.pending = 0;
    }
    return {
      /** `before` has Routes as they were, for those in `upserts` that existed before. */
      routes: { upserts, removals, before },
      /** Services that came to be refused as a whole (true), or are no longer: they are served again or gone (false). */
      refused,
      refusals: { raised, cleared, warnings },
      /** Health check node ports; port 0 where one went. */
      health,
      triggers,
    };
  }

  #resolve(key: ObjectKey): Resolved {
    const routes = new Map<string, Route>();
    const state = this.#services.get(key);
    if (state === undefined) return { routes, isRefused: false, refusals: [], health: [] };
    const refused = this.#vipConflicts.refusals(key);
    const slices = this.#slices.get(key) ?? [];
    const place: NodeTopology = { name: this.#options.nodeName, zone: this.#node?.zone };
    for (const port of state.served.ports) {
      const route = resolveRoute(state.service, port, refused, slices, place);
      if (route === undefined) continue;
      routes.set(route.id, route);
    }
    return {
      routes,
      isRefused: state.served.refusals.length > 0,
      refusals: [...state.served.refusals, ...new Set(refused.values())],
      health: serviceHealth(key, state.served.ports, refused, slices, this.#options.nodeName),
    };
  }

  /** @returns warnings that were not in force before, so that each is reported once. */
  #newWarnings(serviceKey: ObjectKey, routes: readonly Route[]): ServiceWarning[] {
    const { listeners = [], isLoopbackServed = false, warnsOfMismatches } = this.#options;
    const state = this.#services.get(serviceKey);
    const slices = this.#slices.get(serviceKey) ?? [];
    const onListeners = listenerWarnings(routes, listeners, this.#nodeAddresses, isLoopbackServed);
    if (onListeners.length > 0) this.#onListenerPorts.add(serviceKey);
    else this.#onListenerPorts.delete(serviceKey);
    const isRefused = state !== undefined && state.served.refusals.length > 0;
    const warnings = [
      ...(state?.served.warnings ?? []).map((message) => ({ serviceKey, message })),
      ...(warnsOfMismatches && !isRefused
        ? mismatchWarnings(serviceKey, state?.service, slices, state?.served.ports ?? [])
        : []),
      ...onListeners,
      ...nodeEndpointWarnings(routes, this.#nodeAddresses),
    ];
    const known = this.#warnings.get(serviceKey) ?? [];
    if (warnings.length > 0) this.#warnings.set(serviceKey, warnings);
    else this.#warnings.delete(serviceKey);
    return warnings.filter((warning) => !known.some((other) => isDeepStrictEqual(warning, other)));
  }

  #count(kind: ChangingKind): void {
    this.#changes[kind].total += 1;
    this.#changes[kind].pending += 1;
  }

  #upsertService(service: Service): void {
    const served = servedPorts(service, this.#options.allPortsEnabled);
    this.#services.set(service.key, { service, served });
    this.#requestVips(service.key, service.creationTimestamp, served);
  }

  #removeService(key: ObjectKey): void {
    if (!this.#services.delete(key)) return;
    this.#requestVips(key, '', undefined);
  }

  #requestVips(key: ObjectKey, creationTimestamp: string, served: ServedService | undefined): void {
    const affected = this.#vipConflicts.replace(key, creationTimestamp, served?.ports ?? []);
    for (const other of affected) this.#touched.add(other);
    this.#touched.add(key);
  }

  #upsertSlice(slice: EndpointSlice): void {
    // As kube-proxy's informer, which does not get to see those.
    if (slice.headlessLabel) {
      this.#removeSlice(slice.key);
      return;
    }
    const owner = this.#sliceOwner.get(slice.key);
    if (owner !== undefined && owner !== slice.serviceKey) this.#removeSlice(slice.key);
    this.#sliceOwner.set(slice.key, slice.serviceKey);
    const slices = this.#slices.get(slice.serviceKey) ?? [];
    const before = slices.find(({ key }) => key === slice.key);
    this.#triggers.record(slice, before);
    this.#slices.set(slice.serviceKey, slices.filter((each) => each !== before).concat(slice));
    this.#touched.add(slice.serviceKey);
  }

  #removeSlice(key: ObjectKey): void {
    const owner = this.#sliceOwner.get(key);
    if (owner === undefined) return;
    this.#sliceOwner.delete(key);
    const slices = (this.#slices.get(owner) ?? []).filter((slice) => slice.key !== key);
    if (slices.length > 0) this.#slices.set(owner, slices);
    else this.#slices.delete(owner);
    this.#triggers.discard(owner);
    this.#touched.add(owner);
  }

  #setNode(node: Node | undefined): void {
    const moved = this.#node?.zone !== node?.zone;
    this.#node = node;
    // The zone decides on topology everywhere: the one change that concerns every Service.
    if (moved) for (const key of this.#services.keys()) this.#touched.add(key);
  }
}

function without(
  all: readonly ServiceRefusal[],
  known: readonly ServiceRefusal[],
): ServiceRefusal[] {
  return all.filter((refusal) => !known.some((other) => isDeepStrictEqual(refusal, other)));
}

function healthChanges(
  before: readonly ServiceHealth[],
  after: readonly ServiceHealth[],
): ServiceHealth[] {
  const gone = before
    .filter(({ family }) => !after.some((each) => each.family === family))
    .map((health) => ({ ...health, port: 0, localEndpoints: 0 }));
  const changed = after.filter(
    (health) => !before.some((other) => isDeepStrictEqual(health, other)),
  );
  return [...gone, ...changed];
}
