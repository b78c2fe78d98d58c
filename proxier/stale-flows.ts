/**
 * UDP has no end of connection that conntrack could see: while a client keeps sending, its flow
 * keeps the translation that it got with the first packet, also when the endpoint is long gone, or
 * when there was none yet. Such flows are forgotten after the rules changed (never before: the
 * next packet would bring the old flow back). TCP and SCTP flows end by themselves.
 */
import { isDeepStrictEqual } from 'node:util';
import { getOrCreate } from '../api/collections.ts';
import type { Route } from '../services/route.ts';

/** One UDP flow of conntrack, as far as it matters here. Addresses are canonical. */
export interface Flow {
  readonly origDst: string;
  readonly origDstPort: number;
  /** Who answers: the endpoint, or the original destination when nothing was translated. */
  readonly replySrc: string;
  readonly replySrcPort: number;
}

/** VIPs and node ports whose flows need a look, with the endpoints that they had and may have lost. */
export interface Suspects {
  readonly vips: ReadonlyMap<string, ReadonlySet<string>>;
  readonly nodePorts: ReadonlyMap<number, ReadonlySet<string>>;
}

const NO_ENDPOINTS: ReadonlySet<string> = new Set();

/** Knows the Routes of one family by VIP, and which VIPs a change puts under suspicion. */
export class FlowOwners {
  readonly #byVip = new Map<string, readonly Route[]>();
  readonly #byNodePort = new Map<number, Route>();
  #vips = new Map<string, Set<string>>();
  #nodePorts = new Map<number, Set<string>>();

  /** A Route came, changed or went. */
  replace(before: Route | undefined, after: Route | undefined): void {
    if (before !== undefined) this.#forget(before);
    if (after !== undefined) this.#learn(after);
    if (!isSuspicious(before, after)) return;
    for (const route of [before, after]) {
      if (route === undefined || !carriesUdp(route)) continue;
      const former = before?.aliveEndpoints.map(({ address }) => address) ?? [];
      for (const vip of vipsOf(route)) addAll(this.#vips, vip, former);
      if (route.nodePort > 0) addAll(this.#nodePorts, route.nodePort, former);
    }
  }

  /** The suspects so far; they are handed out once. */
  takeSuspects(): Suspects | undefined {
    if (this.#vips.size === 0 && this.#nodePorts.size === 0) return undefined;
    const suspects = { vips: this.#vips, nodePorts: this.#nodePorts };
    this.#vips = new Map();
    this.#nodePorts = new Map();
    return suspects;
  }

  /** Everything there is, and `suspects`: for when it is unknown what happened. */
  everything(suspects?: Suspects): Suspects {
    const innocent = <Key>(keys: Iterable<Key>) =>
      [...keys].map((key): [Key, ReadonlySet<string>] => [key, NO_ENDPOINTS]);
    return {
      vips: new Map([...innocent(this.#byVip.keys()), ...(suspects?.vips ?? [])]),
      nodePorts: new Map([...innocent(this.#byNodePort.keys()), ...(suspects?.nodePorts ?? [])]),
    };
  }

  /** Puts suspects back whose flows could not be looked at. */
  returnSuspects(suspects: Suspects): void {
    for (const [vip, former] of suspects.vips) addAll(this.#vips, vip, former);
    for (const [port, former] of suspects.nodePorts) addAll(this.#nodePorts, port, former);
  }

  /**
   * Whether a flow leads somewhere that its Route does not. `isNodeAddress` tells node port
   * traffic from traffic that merely uses the same port elsewhere.
   */
  isStale(flow: Flow, suspects: Suspects, isNodeAddress: (address: string) => boolean): boolean {
    const former = suspects.vips.get(flow.origDst);
    if (former !== undefined) {
      const routes = this.#byVip.get(flow.origDst) ?? [];
      const owner = ownerOf(routes, flow.origDstPort);
      if (owner !== undefined) return !leadsTo(owner, flow);
      // Nobody serves this port now. A flow to an endpoint that stays is not cut (all ports turned
      // off); one to an endpoint that went is. Any other was never a Service's: the host may use
      // the address too, and others translate there.
      if (former.has(flow.replySrc) && !routes.some((route) => hasEndpoint(route, flow.replySrc))) {
        return true;
      }
    }
    const formerOfPort = suspects.nodePorts.get(flow.origDstPort);
    if (formerOfPort === undefined || !isNodeAddress(flow.origDst)) return false;
    const owner = this.#byNodePort.get(flow.origDstPort);
    return owner === undefined ? formerOfPort.has(flow.replySrc) : !leadsTo(owner, flow);
  }

  #learn(route: Route): void {
    // Also Routes without UDP: their endpoints are endpoints that stay.
    for (const vip of vipsOf(route)) {
      this.#byVip.set(vip, (this.#byVip.get(vip) ?? []).concat(route));
    }
    if (route.nodePort > 0 && carriesUdp(route)) this.#byNodePort.set(route.nodePort, route);
  }

  #forget(route: Route): void {
    for (const vip of vipsOf(route)) {
      const others = (this.#byVip.get(vip) ?? []).filter(({ id }) => id !== route.id);
      if (others.length > 0) this.#byVip.set(vip, others);
      else this.#byVip.delete(vip);
    }
    if (this.#byNodePort.get(route.nodePort)?.id === route.id) {
      this.#byNodePort.delete(route.nodePort);
    }
  }
}

function addAll<Key>(map: Map<Key, Set<string>>, key: Key, addresses: Iterable<string>): void {
  const known = getOrCreate(map, key, () => new Set<string>());
  for (const address of addresses) known.add(address);
}

function carriesUdp({ match }: Route): boolean {
  if (match.kind === 'all') return true;
  if (match.kind === 'port') return match.protocol === 'UDP';
  return match.ranges.some((range) => range.protocol === 'UDP');
}

function vipsOf(route: Route): string[] {
  const clusterIPs = route.clusterIP === undefined ? [] : [route.clusterIP];
  return [...clusterIPs, ...route.externalIPs, ...route.loadBalancerIPs];
}

/** A Route that only gained endpoints leaves every flow where it may stay. */
function isSuspicious(before: Route | undefined, after: Route | undefined): boolean {
  if (before === undefined || after === undefined) return true;
  if (!carriesUdp(before) && !carriesUdp(after)) return false;
  if (!isDeepStrictEqual(before.match, after.match)) return true;
  if (vipsOf(before).join() !== vipsOf(after).join() || before.nodePort !== after.nodePort) {
    return true;
  }
  const alive = new Set(after.aliveEndpoints.map(({ address, port }) => `${address} ${port}`));
  return (
    before.aliveEndpoints.some(({ address, port }) => !alive.has(`${address} ${port}`)) ||
    gainsFirst(before.clusterEndpoints, after.clusterEndpoints) ||
    gainsFirst(before.localEndpoints, after.localEndpoints)
  );
}

function gainsFirst(before: readonly unknown[], after: readonly unknown[]): boolean {
  return before.length === 0 && after.length > 0;
}

/** The Route that a packet to this UDP port gets: exact port, then range, then all. */
function ownerOf(routes: readonly Route[], port: number): Route | undefined {
  const exact = routes.find(
    ({ match }) => match.kind === 'port' && match.protocol === 'UDP' && match.port === port,
  );
  const ranged = routes.find(
    ({ match }) =>
      match.kind === 'ranges' &&
      match.ranges.some(
        (range) => range.protocol === 'UDP' && range.from <= port && port <= range.to,
      ),
  );
  return exact ?? ranged ?? routes.find(({ match }) => match.kind === 'all');
}

function leadsTo(route: Route, flow: Flow): boolean {
  return route.aliveEndpoints.some(
    ({ address, port }) =>
      address === flow.replySrc && (port ?? flow.origDstPort) === flow.replySrcPort,
  );
}

function hasEndpoint(route: Route, address: string): boolean {
  return route.aliveEndpoints.some((endpoint) => endpoint.address === address);
}
