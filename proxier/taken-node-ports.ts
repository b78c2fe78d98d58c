/** Node ports of Services that another Service gets, because it has the port on an address of this node. */
import { getOrCreate } from '../api/collections.ts';
import type { ObjectKey } from '../api/objects.ts';
import type { Route } from '../services/route.ts';
import type { TakenNodePort } from '../services/service-warnings.ts';
import { vipFields } from '../services/vip-requests.ts';

/** A Route with a listed port on an address of this node. */
interface Taker {
  readonly serviceKey: ObjectKey;
  readonly field: string;
  readonly vip: string;
}

/** As in kube-proxy, packets to an external IP with a listed port are never packets to a node port. */
export class TakenNodePorts {
  /** Services by their node port. */
  readonly #owners = new Map<string, ObjectKey>();
  /** By port, then by Route and address. */
  readonly #takers = new Map<string, Map<string, Taker>>();
  #nodeAddresses: ReadonlySet<string> = new Set();

  /** Indexes an added, changed or removed Route. @returns Services that may take or lose other node ports now. */
  replaceRoute(before: Route | undefined, after: Route | undefined): Set<ObjectKey> {
    const changed = new Set<ObjectKey>();
    for (const port of [...this.#remove(before), ...this.#add(after)]) {
      const owner = this.#owners.get(port);
      if (owner !== undefined) changed.add(owner);
      for (const { serviceKey } of this.#takers.get(port)?.values() ?? []) changed.add(serviceKey);
    }
    return changed;
  }

  /**
   * @param routesAt the Routes of the Services with an address.
   * @returns Services that take or lose node ports, before or now.
   */
  setNodeAddresses(
    addresses: ReadonlySet<string>,
    routesAt: (address: string) => Iterable<Route>,
  ): Set<ObjectKey> {
    const known = this.#nodeAddresses;
    const differing = [
      ...[...addresses].filter((address) => !known.has(address)),
      ...[...known].filter((address) => !addresses.has(address)),
    ];
    this.#nodeAddresses = addresses;
    const changed = new Set<ObjectKey>();
    for (const address of differing) {
      for (const route of routesAt(address)) {
        for (const port of [...this.#removeTaker(route), ...this.#addTaker(route)]) {
          const owner = this.#owners.get(port);
          if (owner !== undefined) changed.add(owner).add(route.serviceKey);
        }
      }
    }
    return changed;
  }

  /** The node ports that a Service takes or loses. @param routes of the Service. */
  of(routes: Iterable<Route>): TakenNodePort[] {
    return [...routes].flatMap((route): TakenNodePort[] => {
      const { match, serviceKey, nodePort } = route;
      if (match.kind !== 'port') return [];
      const takenBy = (port: number) => this.#takers.get(portKey(route, port))?.values() ?? [];
      const lost = nodePort === 0 ? [] : [...takenBy(nodePort)];
      const owner = this.#owners.get(portKey(route, match.port));
      const taken = owner === undefined ? [] : [...takenBy(match.port)];
      const { protocol } = match;
      return [
        ...lost
          .filter((taker) => taker.serviceKey !== serviceKey)
          .map((taker) => ({ ...taker, protocol, port: nodePort, owner: serviceKey })),
        ...taken
          .filter((taker) => taker.serviceKey === serviceKey && owner !== serviceKey)
          .map((taker) => ({ ...taker, protocol, port: match.port, owner: owner ?? '' })),
      ];
    });
  }

  /** @returns the ports that may be taken otherwise now. */
  #add(route: Route | undefined): string[] {
    if (route === undefined) return [];
    const taken = this.#addTaker(route);
    const own = nodePortOf(route);
    if (own !== undefined) this.#owners.set(own, route.serviceKey);
    return [...taken, ...(own === undefined ? [] : [own])];
  }

  #addTaker(route: Route): string[] {
    const { id, match, serviceKey } = route;
    if (match.kind !== 'port') return [];
    const port = portKey(route, match.port);
    const vips = vipFields(route).filter(([, vip]) => this.#nodeAddresses.has(vip));
    for (const [field, vip] of vips)
      getOrCreate(this.#takers, port, () => new Map<string, Taker>()).set(`${id} ${vip}`, {
        serviceKey,
        field,
        vip,
      });
    return vips.length === 0 ? [] : [port];
  }

  #remove(route: Route | undefined): string[] {
    if (route === undefined) return [];
    const taken = this.#removeTaker(route);
    const own = nodePortOf(route);
    // Another Service may have the port already.
    if (own !== undefined && this.#owners.get(own) === route.serviceKey) this.#owners.delete(own);
    return [...taken, ...(own === undefined ? [] : [own])];
  }

  #removeTaker(route: Route): string[] {
    const { id, match } = route;
    if (match.kind !== 'port') return [];
    const port = portKey(route, match.port);
    const takers = this.#takers.get(port);
    if (takers === undefined) return [];
    const removed = vipFields(route).filter(([, vip]) => takers.delete(`${id} ${vip}`));
    if (takers.size === 0) this.#takers.delete(port);
    return removed.length === 0 ? [] : [port];
  }
}

function nodePortOf(route: Route): string | undefined {
  return route.nodePort > 0 ? portKey(route, route.nodePort) : undefined;
}

function portKey({ family, match }: Route, port: number): string {
  return `${family} ${match.kind === 'port' ? match.protocol : ''}/${port}`;
}
