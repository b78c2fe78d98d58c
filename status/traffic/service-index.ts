/** Finds the Route of a packet or of a conntrack entry by its original destination. Pure. */
import { familyOf } from '../../api/addresses.ts';
import { compareText, getOrCreate } from '../../api/collections.ts';
import { type IpFamily, PROTOCOLS, type Protocol } from '../../api/objects.ts';
import { hasPort, type PortRange } from '../../api/ports.ts';
import type { Endpoint } from '../../endpoints/select.ts';
import type { RouteListener } from '../../proxier/route-table.ts';
import { type Route, type RouteMatch, vipsOf } from '../../services/route.ts';

/** The destination that a client used, before translation. */
export interface Destination {
  readonly protocol: Protocol;
  /** Canonical text. */
  readonly address: string;
  readonly port: number;
}

/** A node port, or a port of a VIP. */
export type NodePort = Pick<Destination, 'protocol' | 'port'>;

/** The node port of a Route; undefined without. Only a Route of one port has one. */
export function nodePortOf({ match, nodePort }: Route): NodePort | undefined {
  return nodePort > 0 && match.kind === 'port'
    ? { protocol: match.protocol, port: nodePort }
    : undefined;
}

/** Routes of one VIP, by how they match ports. */
interface VipRoutes {
  /** By `portKey`. */
  readonly ports: Map<number, Route>;
  readonly ranges: Map<string, { readonly route: Route; readonly ranges: readonly PortRange[] }>;
  all: Route | undefined;
}

/**
 * Index of Routes by VIP and port, and by node port. As in the rules of every mode, an exact port has
 * precedence over a range, a range over all ports, and any of them over a node port.
 */
export class ServiceIndex {
  readonly #vips = new Map<string, VipRoutes>();
  #changes = 0;
  readonly #listeners = new Set<RouteListener>();
  /** Routes by address of their endpoints and by ID. */
  readonly #endpoints = new Map<string, Map<string, Route>>();
  readonly #nodePorts = { IPv4: new Map<number, Route>(), IPv6: new Map<number, Route>() };

  /** Adds, replaces or removes a Route. Routes that differ in `before` and `after` have the same ID. */
  replaceRoute(before: Route | undefined, after: Route | undefined): void {
    this.#changes += 1;
    if (before !== undefined) this.#remove(before);
    if (after !== undefined) this.#add(after);
    for (const listener of this.#listeners) listener(before, after);
  }

  /** Calls the listener after each change. @returns a function that ends the calls. */
  watch(listener: RouteListener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /**
   * The Route that serves a destination; undefined if none does.
   * @param isNodeAddress whether node ports are served on an address.
   */
  find(destination: Destination, isNodeAddress: (address: string) => boolean): Route | undefined {
    return this.findByVip(destination) ?? this.#findByNodePort(destination, isNodeAddress);
  }

  /** The Route that serves a port of a VIP. */
  findByVip({ protocol, address, port }: Destination): Route | undefined {
    const routes = this.#vips.get(address);
    if (routes === undefined) return undefined;
    const exact = routes.ports.get(portKey(protocol, port));
    if (exact !== undefined) return exact;
    for (const { route, ranges } of routes.ranges.values()) {
      if (ranges.some((range) => hasPort(range, protocol, port))) return route;
    }
    return routes.all;
  }

  /** The Routes that send packets to an address and port, sorted by Service. */
  routesOfEndpoint({ protocol, address, port }: Destination): Route[] {
    const routes: Route[] = [];
    for (const route of this.#endpoints.get(address)?.values() ?? []) {
      const isEndpoint = (endpoint: Endpoint) =>
        endpoint.address === address && (endpoint.port ?? port) === port;
      if (
        matchesEndpointPort(route.match, protocol, port) &&
        route.servingEndpoints.some(isEndpoint)
      )
        routes.push(route);
    }
    return routes.sort((a, b) => compareText(a.serviceKey, b.serviceKey));
  }

  /** Number of changes so far. */
  get changes(): number {
    return this.#changes;
  }

  /** The Routes of a VIP; none if no Route has it. */
  routesOf(vip: string): Route[] {
    const routes = this.#vips.get(vip);
    if (routes === undefined) return [];
    const ranged = [...routes.ranges.values()].map(({ route }) => route);
    return [...routes.ports.values(), ...ranged, ...(routes.all ? [routes.all] : [])];
  }

  /** All VIPs of both families. */
  get vips(): Iterable<string> {
    return this.#vips.keys();
  }

  /** All Routes with a node port. */
  nodePorts(family: IpFamily): Iterable<Route> {
    return this.#nodePorts[family].values();
  }

  /** The Route that has a node port. */
  routeOfNodePort(family: IpFamily, { protocol, port }: NodePort): Route | undefined {
    return this.#nodePorts[family].get(portKey(protocol, port));
  }

  #findByNodePort(
    destination: Destination,
    isNodeAddress: (address: string) => boolean,
  ): Route | undefined {
    const { address } = destination;
    const route = this.routeOfNodePort(familyOf(address), destination);
    return route !== undefined && isNodeAddress(address) ? route : undefined;
  }

  #add(route: Route): void {
    const { match, family } = route;
    for (const vip of vipsOf(route)) {
      const routes = getOrCreate(this.#vips, vip, newVipRoutes);
      if (match.kind === 'port') routes.ports.set(portKey(match.protocol, match.port), route);
      else if (match.kind === 'ranges')
        routes.ranges.set(route.id, { route, ranges: match.ranges });
      else routes.all = route;
    }
    for (const { address } of route.servingEndpoints) {
      getOrCreate(this.#endpoints, address, newRoutes).set(route.id, route);
    }
    const nodePort = nodePortOf(route);
    if (nodePort !== undefined) {
      this.#nodePorts[family].set(portKey(nodePort.protocol, nodePort.port), route);
    }
  }

  #remove(route: Route): void {
    const { id, match, family } = route;
    for (const vip of vipsOf(route)) {
      const routes = this.#vips.get(vip);
      if (routes === undefined) continue;
      if (match.kind === 'port') deleteOwn(routes.ports, portKey(match.protocol, match.port), id);
      else if (match.kind === 'ranges') routes.ranges.delete(id);
      else if (routes.all?.id === id) routes.all = undefined;
      if (routes.ports.size + routes.ranges.size === 0 && routes.all === undefined) {
        this.#vips.delete(vip);
      }
    }
    for (const { address } of route.servingEndpoints) {
      const routes = this.#endpoints.get(address);
      if (routes?.delete(id) && routes.size === 0) this.#endpoints.delete(address);
    }
    const nodePort = nodePortOf(route);
    if (nodePort !== undefined) {
      deleteOwn(this.#nodePorts[family], portKey(nodePort.protocol, nodePort.port), id);
    }
  }
}

/** Another Route may have taken the key in the meantime: changes arrive one by one. */
function deleteOwn(map: Map<number, Route>, key: number, id: string): void {
  if (map.get(key)?.id === id) map.delete(key);
}

/** Whether a Route may send packets to a port of an endpoint; only a Route of one port changes the port. */
function matchesEndpointPort(match: RouteMatch, protocol: Protocol, port: number): boolean {
  if (match.kind === 'all') return true;
  if (match.kind === 'port') return match.protocol === protocol;
  return match.ranges.some((range) => hasPort(range, protocol, port));
}

function newRoutes(): Map<string, Route> {
  return new Map();
}

function newVipRoutes(): VipRoutes {
  return { ports: new Map(), ranges: new Map(), all: undefined };
}

function portKey(protocol: Protocol, port: number): number {
  return PROTOCOLS.indexOf(protocol) * 65_536 + port;
}
