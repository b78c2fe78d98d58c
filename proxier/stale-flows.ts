/**
 * UDP has no end of connection that conntrack could see: while a client keeps sending, its flow
 * keeps the translation that it got with the first packet, also when the endpoint is long gone, or
 * when there was none yet. Such flows are forgotten after the rules changed (never before: the
 * next packet would bring the old flow back). TCP and SCTP flows end by themselves.
 */
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

/** VIPs and node ports whose flows need a look. */
export interface Suspects {
  readonly vips: ReadonlySet<string>;
  readonly nodePorts: ReadonlySet<number>;
}

/** Knows the Routes of one family by VIP, and which VIPs a change puts under suspicion. */
export class FlowOwners {
  readonly #byVip = new Map<string, Map<string, Route>>();
  readonly #byNodePort = new Map<number, Route>();
  #vips = new Set<string>();
  #nodePorts = new Set<number>();

  /** A Route came, changed or went. */
  replace(before: Route | undefined, after: Route | undefined): void {
    if (before !== undefined) this.#forget(before);
    if (after !== undefined) this.#learn(after);
    if (!isSuspicious(before, after)) return;
    for (const route of [before, after]) {
      if (route === undefined || !carriesUdp(route)) continue;
      for (const vip of vipsOf(route)) this.#vips.add(vip);
      if (route.nodePort > 0) this.#nodePorts.add(route.nodePort);
    }
  }

  /** Puts everything under suspicion: what happened before the agent started is unknown. */
  suspectAll(): void {
    for (const vip of this.#byVip.keys()) this.#vips.add(vip);
    for (const port of this.#byNodePort.keys()) this.#nodePorts.add(port);
  }

  /** The suspects so far; they are handed out once. */
  takeSuspects(): Suspects | undefined {
    if (this.#vips.size === 0 && this.#nodePorts.size === 0) return undefined;
    const suspects = { vips: this.#vips, nodePorts: this.#nodePorts };
    this.#vips = new Set();
    this.#nodePorts = new Set();
    return suspects;
  }

  /** Puts suspects back whose flows could not be looked at. */
  returnSuspects(suspects: Suspects): void {
    for (const vip of suspects.vips) this.#vips.add(vip);
    for (const port of suspects.nodePorts) this.#nodePorts.add(port);
  }

  /**
   * Whether a flow leads somewhere that its Route does not. `isNodeAddress` tells node port
   * traffic from traffic that merely uses the same port elsewhere.
   */
  isStale(flow: Flow, suspects: Suspects, isNodeAddress: (address: string) => boolean): boolean {
    if (suspects.vips.has(flow.origDst)) {
      const routes = [...(this.#byVip.get(flow.origDst)?.values() ?? [])];
      const owner = ownerOf(routes, flow.origDstPort);
      if (owner !== undefined) return !leadsTo(owner, flow);
      // Nobody serves this port now. A flow to an endpoint that stays is not cut (all ports turned
      // off); one that nobody translated belongs to the host or to the network beyond it.
      const translated = flow.replySrc !== flow.origDst;
      return translated && !routes.some((route) => hasEndpoint(route, flow.replySrc));
    }
    if (suspects.nodePorts.has(flow.origDstPort) && isNodeAddress(flow.origDst)) {
      const owner = this.#byNodePort.get(flow.origDstPort);
      return owner === undefined ? flow.replySrc !== flow.origDst : !leadsTo(owner, flow);
    }
    return false;
  }

  #learn(route: Route): void {
    if (!carriesUdp(route)) return;
    for (const vip of vipsOf(route)) {
      getOrCreate(this.#byVip, vip, () => new Map()).set(route.id, route);
    }
    if (route.nodePort > 0) this.#byNodePort.set(route.nodePort, route);
  }

  #forget(route: Route): void {
    for (const vip of vipsOf(route)) {
      const routes = this.#byVip.get(vip);
      routes?.delete(route.id);
      if (routes?.size === 0) this.#byVip.delete(vip);
    }
    if (this.#byNodePort.get(route.nodePort)?.id === route.id) {
      this.#byNodePort.delete(route.nodePort);
    }
  }
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
  if (JSON.stringify(before.match) !== JSON.stringify(after.match)) return true;
  if (vipsOf(before).join() !== vipsOf(after).join() || before.nodePort !== after.nodePort) {
    return true;
  }
  const lost = before.aliveEndpoints.some(
    (endpoint) =>
      !after.aliveEndpoints.some(
        ({ address, port }) => address === endpoint.address && port === endpoint.port,
      ),
  );
  return (
    lost ||
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
