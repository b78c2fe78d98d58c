/** Counts of Routes for metrics, kept as Routes change. */
import { IP_FAMILIES, type IpFamily, type ObjectKey } from '../api/objects.ts';
import type { Route, RouteMatch } from '../services/route.ts';

type TrafficSide = 'internal' | 'external';
type AllPortsKind = 'all' | 'ranges';

const KINDS: readonly RouteMatch['kind'][] = ['port', 'ranges', 'all'];
const SIDES: readonly TrafficSide[] = ['internal', 'external'];

/** Counts Routes for metrics, as they come and go. */
export class RouteCounts {
  /** By family and kind, or family and side of the policy. */
  readonly #counts = new Map<string, number>();
  /** All-ports Services, with their Routes: one for each family. */
  readonly #services: Readonly<Record<AllPortsKind, Map<ObjectKey, number>>> = {
    all: new Map(),
    ranges: new Map(),
  };

  /** A Route came, changed or went. */
  replace(before: Route | undefined, after: Route | undefined): void {
    if (before !== undefined) this.#count(before, -1);
    if (after !== undefined) this.#count(after, 1);
  }

  /** How many Routes of each kind there are. */
  routes() {
    return IP_FAMILIES.flatMap((family) =>
      KINDS.map((kind) => ({ family, kind, count: this.#get(family, kind) })),
    );
  }

  /** Routes whose policy wants endpoints of this node, which has none while others do. */
  noLocal() {
    return IP_FAMILIES.flatMap((family) =>
      SIDES.map((policy) => ({ family, policy, count: this.#get(family, policy) })),
    );
  }

  /** Services that are served on all ports, or on ranges, of at least one VIP. */
  allPortsServices(): Readonly<Record<AllPortsKind, number>> {
    return { all: this.#services.all.size, ranges: this.#services.ranges.size };
  }

  #get(family: IpFamily, what: RouteMatch['kind'] | TrafficSide): number {
    return this.#counts.get(`${family} ${what}`) ?? 0;
  }

  #count(route: Route, step: 1 | -1): void {
    const { family, match } = route;
    const add = (what: RouteMatch['kind'] | TrafficSide) =>
      this.#counts.set(`${family} ${what}`, this.#get(family, what) + step);
    add(match.kind);
    // As kube-proxy counts them: each port, and not where there is no endpoint anywhere.
    if (route.hasEndpointsAnywhere && route.localEndpoints.length === 0) {
      if (route.internalLocal) add('internal');
      if (route.externalLocal) add('external');
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
