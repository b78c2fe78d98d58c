/**
 * Stale conntrack entries: the rules changed, but the entry of a flow still leads where the rules no longer
 * would. They are deleted after the rules are in force (before, the next packet would bring them back).
 *
 * - UDP has no end of connection. While a client keeps sending, the entry keeps the translation that the first
 *   packet got, also when that endpoint is gone, or when there was no endpoint yet.
 * - SCTP is the same for clients with a fixed port: the INIT of a new association matches the old entry and
 *   renews it, so the association never recovers (kubernetes/kubernetes#106651).
 * - TCP clients notice by themselves in the end, and connections may outlive the rules that made them. Only when
 *   asked to, the agent deletes the entries of endpoints that no EndpointSlice has any more. The client's next
 *   packet then has no entry, and whoever receives it answers with a reset.
 */
import { isDeepStrictEqual } from 'node:util';
import { getOrCreate } from '../api/collections.ts';
import type { Protocol } from '../api/objects.ts';
import type { Endpoint } from '../endpoints/select.ts';
import { type Route, vipsOf } from '../services/route.ts';

/** One conntrack entry, as far as it matters here. Addresses are canonical. */
export interface FlowTuple {
  readonly origDst: string;
  readonly origDstPort: number;
  /** Who answers: the endpoint, or the original destination when nothing was translated. */
  readonly replySrc: string;
  readonly replySrcPort: number;
}

/** VIPs and node ports whose entries may be stale, with the addresses of the endpoints that they had. */
export interface CleanupScope {
  /** Protocols whose entries are to be looked at. */
  readonly protocols: ReadonlySet<Protocol>;
  readonly vips: ReadonlyMap<string, ReadonlySet<string>>;
  /** By `nodePortKey`. */
  readonly nodePorts: ReadonlyMap<string, ReadonlySet<string>>;
}

/** Protocols whose clients do not notice that their endpoint went. */
const DATAGRAMS = ['UDP', 'SCTP'] as const satisfies readonly Protocol[];

const NO_FORMER_ENDPOINTS: ReadonlySet<string> = new Set();

/** Knows the Routes of one family by VIP, and which VIPs a change puts under suspicion. */
export class StaleFlowTracker {
  readonly #byVip = new Map<string, readonly Route[]>();
  readonly #byNodePort = new Map<string, Route>();
  readonly #resetsTcp: boolean;
  #protocols = new Set<Protocol>();
  #vips = new Map<string, Set<string>>();
  #nodePorts = new Map<string, Set<string>>();

  /** @param resetsTcp whether TCP entries of endpoints that were deleted are stale. */
  constructor(resetsTcp = false) {
    this.#resetsTcp = resetsTcp;
  }

  /** A Route came, changed or went. */
  replace(before: Route | undefined, after: Route | undefined): void {
    if (before !== undefined) this.#removeRoute(before);
    if (after !== undefined) this.#addRoute(after);
    const protocols = staleProtocols(before, after);
    if (this.#resetsTcp && losesEndpoint(before, after)) protocols.push('TCP');
    for (const protocol of protocols) this.#protocols.add(protocol);
    for (const route of [before, after]) {
      if (route === undefined || !protocols.some((protocol) => carries(route, protocol))) continue;
      const former = before?.servingEndpoints.map(({ address }) => address) ?? [];
      for (const vip of vipsOf(route)) addAll(this.#vips, vip, former);
      for (const key of nodePortKeys(route)) addAll(this.#nodePorts, key, former);
    }
  }

  /** The suspects so far; they are handed out once. */
  takeCleanupScope(): CleanupScope | undefined {
    if (this.#vips.size === 0 && this.#nodePorts.size === 0) return undefined;
    const suspects = { protocols: this.#protocols, vips: this.#vips, nodePorts: this.#nodePorts };
    this.#protocols = new Set();
    this.#vips = new Map();
    this.#nodePorts = new Map();
    return suspects;
  }

  /** Everything there is, and `suspects`: for when it is unknown what happened. */
  fullCleanupScope(suspects?: CleanupScope): CleanupScope {
    const live = <Key>(keys: Iterable<Key>) =>
      [...keys].map((key): [Key, ReadonlySet<string>] => [key, NO_FORMER_ENDPOINTS]);
    const protocols = new Set(suspects?.protocols);
    for (const routes of this.#byVip.values()) {
      for (const route of routes) for (const each of this.#protocolsOf(route)) protocols.add(each);
    }
    for (const route of this.#byNodePort.values()) {
      for (const each of this.#protocolsOf(route)) protocols.add(each);
    }
    return {
      protocols,
      vips: new Map([...live(this.#byVip.keys()), ...(suspects?.vips ?? [])]),
      nodePorts: new Map([...live(this.#byNodePort.keys()), ...(suspects?.nodePorts ?? [])]),
    };
  }

  /** Puts suspects back whose entries could not be looked at. */
  restoreCleanupScope({ protocols, vips, nodePorts }: CleanupScope): void {
    for (const protocol of protocols) this.#protocols.add(protocol);
    for (const [vip, former] of vips) addAll(this.#vips, vip, former);
    for (const [key, former] of nodePorts) addAll(this.#nodePorts, key, former);
  }

  /**
   * Whether an entry leads somewhere that its Route does not. `isNodeAddress` tells node port
   * traffic from traffic that merely uses the same port elsewhere.
   */
  isStale(
    flow: FlowTuple,
    protocol: Protocol,
    suspects: CleanupScope,
    isNodeAddress: (address: string) => boolean,
  ): boolean {
    const former = suspects.vips.get(flow.origDst);
    const routes = this.#byVip.get(flow.origDst) ?? [];
    const nodePort = nodePortKey(protocol, flow.origDstPort);
    const formerOfPort = isNodeAddress(flow.origDst) ? suspects.nodePorts.get(nodePort) : undefined;
    const vipOwner = former && ownerOf(routes, protocol, flow.origDstPort);
    const portOwner = formerOfPort && this.#byNodePort.get(nodePort);

    if (protocol === 'TCP') {
      const owner = vipOwner ?? portOwner;
      if (owner === undefined || flow.replySrc === flow.origDst) return false;
      const others = vipOwner === undefined ? [] : routes;
      return [owner, ...others].every((route) => !hasEndpoint(route, flow.replySrc));
    }
    if (vipOwner !== undefined) return !hasServingEndpoint(vipOwner, flow);
    // Nobody serves this port now. A flow to an endpoint that stays is not cut (all ports turned
    // off); one to an endpoint that went is. Any other was never a Service's: the host may use
    // the address too, and others translate there.
    if (
      former?.has(flow.replySrc) === true &&
      !routes.some((route) => servesAt(route, flow.replySrc))
    ) {
      return true;
    }
    if (portOwner !== undefined) return !hasServingEndpoint(portOwner, flow);
    return formerOfPort?.has(flow.replySrc) === true;
  }

  #protocolsOf(route: Route): Protocol[] {
    const protocols: readonly Protocol[] = this.#resetsTcp ? [...DATAGRAMS, 'TCP'] : DATAGRAMS;
    return protocols.filter((protocol) => carries(route, protocol));
  }

  #addRoute(route: Route): void {
    // Whatever their protocol: their endpoints are endpoints that stay.
    for (const vip of vipsOf(route)) {
      this.#byVip.set(vip, (this.#byVip.get(vip) ?? []).concat(route));
    }
    for (const key of nodePortKeys(route)) this.#byNodePort.set(key, route);
  }

  #removeRoute(route: Route): void {
    for (const vip of vipsOf(route)) {
      const others = (this.#byVip.get(vip) ?? []).filter(({ id }) => id !== route.id);
      if (others.length > 0) this.#byVip.set(vip, others);
      else this.#byVip.delete(vip);
    }
    for (const key of nodePortKeys(route)) {
      if (this.#byNodePort.get(key)?.id === route.id) this.#byNodePort.delete(key);
    }
  }
}

function addAll<Key>(map: Map<Key, Set<string>>, key: Key, addresses: Iterable<string>): void {
  const known = getOrCreate(map, key, () => new Set<string>());
  for (const address of addresses) known.add(address);
}

function carries({ match }: Route, protocol: Protocol): boolean {
  if (match.kind === 'all') return true;
  if (match.kind === 'port') return match.protocol === protocol;
  return match.ranges.some((range) => range.protocol === protocol);
}

function nodePortKey(protocol: Protocol, port: number): string {
  return `${protocol}/${port}`;
}

function nodePortKeys({ match, nodePort }: Route): string[] {
  return nodePort > 0 && match.kind === 'port' ? [nodePortKey(match.protocol, nodePort)] : [];
}

/** Of UDP and SCTP, those whose entries a change may make stale. A Route that only gains endpoints makes none. */
function staleProtocols(before: Route | undefined, after: Route | undefined): Protocol[] {
  const protocols = DATAGRAMS.filter((protocol) =>
    [before, after].some((route) => route !== undefined && carries(route, protocol)),
  );
  if (before === undefined || after === undefined || protocols.length === 0) return protocols;
  if (!isDeepStrictEqual(before.match, after.match)) return protocols;
  if (vipsOf(before).join() !== vipsOf(after).join() || before.nodePort !== after.nodePort) {
    return protocols;
  }
  const alive = new Set(after.servingEndpoints.map(({ address, port }) => `${address} ${port}`));
  const isStale =
    before.servingEndpoints.some(({ address, port }) => !alive.has(`${address} ${port}`)) ||
    gainsFirst(before.clusterEndpoints, after.clusterEndpoints) ||
    gainsFirst(before.localEndpoints, after.localEndpoints);
  return isStale ? protocols : [];
}

/** Whether a Route that carries TCP stays and has an endpoint no more, ready or not. */
function losesEndpoint(before: Route | undefined, after: Route | undefined): boolean {
  if (before === undefined || after === undefined || !carries(after, 'TCP')) return false;
  const known = new Set(endpointsOf(after).map(({ address }) => address));
  return endpointsOf(before).some(({ address }) => !known.has(address));
}

function gainsFirst(before: readonly unknown[], after: readonly unknown[]): boolean {
  return before.length === 0 && after.length > 0;
}

/** The Route that a packet to this port gets: exact port, then range, then all. */
function ownerOf(routes: readonly Route[], protocol: Protocol, port: number): Route | undefined {
  const exact = routes.find(
    ({ match }) => match.kind === 'port' && match.protocol === protocol && match.port === port,
  );
  const ranged = routes.find(
    ({ match }) =>
      match.kind === 'ranges' &&
      match.ranges.some(
        (range) => range.protocol === protocol && range.from <= port && port <= range.to,
      ),
  );
  return exact ?? ranged ?? routes.find(({ match }) => match.kind === 'all');
}

function hasServingEndpoint(route: Route, flow: FlowTuple): boolean {
  return route.servingEndpoints.some(
    ({ address, port }) =>
      address === flow.replySrc && (port ?? flow.origDstPort) === flow.replySrcPort,
  );
}

function servesAt(route: Route, address: string): boolean {
  return route.servingEndpoints.some((endpoint) => endpoint.address === address);
}

function hasEndpoint(route: Route, address: string): boolean {
  return endpointsOf(route).some((endpoint) => endpoint.address === address);
}

/** All endpoints that EndpointSlices have, also those that are not ready. */
function endpointsOf({ servingEndpoints, notServingEndpoints }: Route): readonly Endpoint[] {
  return [...servingEndpoints, ...notServingEndpoints];
}
