/** Counts Routes for metrics, incrementally. */
import { IP_FAMILIES, type IpFamily, type ObjectKey } from '../api/objects.ts';
import { type Route, type RouteMatch, sliceCounts } from '../services/route.ts';

type TrafficSide = 'internal' | 'external';
type AllPortsKind = 'all' | 'ranges';

const KINDS: readonly RouteMatch['kind'][] = ['port', 'ranges', 'all'];
const SIDES: readonly TrafficSide[] = ['internal', 'external'];

/** Counts of Routes by kind and traffic policy, updated with each changed Route. */
export class RouteCounts {
  /** By family and match kind, and by family and traffic policy. */
  readonly #counts = new Map<string, number>();
  /** Number of Routes by all-ports Service. A Service on all ports whose pods own some of them counts for both kinds. */
  readonly #services: Readonly<Record<AllPortsKind, Map<ObjectKey, number>>> = {
    all: new Map(),
    ranges: new Map(),
  };

  /** Slices of owned ports, over all ranges, by family. */
  readonly #slices: Record<IpFamily, { total: number; served: number }> = {
    IPv4: { total: 0, served: 0 },
    IPv6: { total: 0, served: 0 },
  };

  #endpoints = 0;

  /** Number of endpoints of all Routes. An endpoint that serves several ports counts for each. */
  get endpoints(): number {
    return this.#endpoints;
  }

  /** Counts an added, changed or removed Route. */
  replaceRoute(before: Route | undefined, after: Route | undefined): void {
    if (before !== undefined) this.#count(before, -1);
    if (after !== undefined) this.#count(after, 1);
  }

  /** Number of Routes by family and match kind. */
  routes() {
    return IP_FAMILIES.flatMap((family) =>
      KINDS.map((kind) => ({ family, kind, count: this.#get(family, kind) })),
    );
  }

  /** Number of Routes with traffic policy Local that have endpoints, but none on this node; by family and policy. */
  withoutLocalEndpoints() {
    return IP_FAMILIES.flatMap((family) =>
      SIDES.map((policy) => ({ family, policy, count: this.#get(family, policy) })),
    );
  }

  /** Number of Services that serve all ports, or port ranges, of at least one VIP. */
  allPortsServices(): Readonly<Record<AllPortsKind, number>> {
    return { all: this.#services.all.size, ranges: this.#services.ranges.size };
  }

  /** Number of slices of owned ports, by family and whether an owner gets the packets. */
  ownedSlices() {
    return IP_FAMILIES.flatMap((family) => {
      const { total, served } = this.#slices[family];
      return [
        { family, state: 'served', count: served },
        { family, state: 'vacant', count: total - served },
      ] as const;
    });
  }

  #get(family: IpFamily, what: RouteMatch['kind'] | TrafficSide): number {
    return this.#counts.get(`${family} ${what}`) ?? 0;
  }

  #count(route: Route, step: 1 | -1): void {
    const { family, match } = route;
    const add = (what: RouteMatch['kind'] | TrafficSide) =>
      this.#counts.set(`${family} ${what}`, this.#get(family, what) + step);
    add(match.kind);
    this.#endpoints += step * route.servingEndpoints.length;
    // Like kube-proxy, count each port, and do not count Services without any endpoint.
    if (route.hasEndpointsAnywhere && route.localEndpoints.length === 0) {
      if (route.internalLocal) add('internal');
      if (route.externalLocal) add('external');
    }
    if (route.owned !== undefined) {
      const { total, served } = sliceCounts(route.owned);
      const counts = this.#slices[family];
      counts.total += step * total;
      counts.served += step * served;
    }
    if (match.kind !== 'port') this.#countService(match.kind, route.serviceKey, step);
  }

  #countService(kind: AllPortsKind, key: ObjectKey, step: 1 | -1): void {
    const services = this.#services[kind];
    const routes = (services.get(key) ?? 0) + step;
    if (routes > 0) services.set(key, routes);
    else services.delete(key);
  }
}
