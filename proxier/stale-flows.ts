/**
 * Finds stale conntrack entries, which translate a flow differently than the current rules would. The entries are
 * deleted after the new rules are in force; before that, the next packet would create the same entry by the old rules.
 *
 * - UDP has no end of connection. While a client keeps sending, its entry keeps the translation of the first packet,
 *   also after the endpoint was removed, or if there was no endpoint at first.
 * - SCTP clients with a fixed port have the same problem. The INIT of a new association matches the old entry and
 *   refreshes it, so the association never recovers (kubernetes/kubernetes#106651).
 * - TCP: a SYN that passed while rules were missing, such as after another program flushed the table, has an entry
 *   without translation. Each further SYN meets that entry, so the client cannot connect.
 * - TCP clients notice a dead endpoint in the end, and connections may outlive the rules that created them. Only with
 *   `--reset-deleted-endpoint-connections` the agent deletes entries of endpoints that no EndpointSlice has any longer.
 *   The current rules then handle the client's next packet: another endpoint, or the rules, answer with a reset.
 */
import { isDeepStrictEqual } from 'node:util';
import { getOrCreate } from '../api/collections.ts';
import type { Protocol } from '../api/objects.ts';
import { hasPort } from '../api/ports.ts';
import type { Endpoint } from '../endpoints/select.ts';
import { IPS_SEEN_REPLY } from '../netlink/conntrack/entry.ts';
import { ownerAt, type Route, vipsOf } from '../services/route.ts';

/** The addresses and ports of a conntrack entry. Addresses are canonical. */
export interface FlowTuple {
  readonly origDst: string;
  readonly origDstPort: number;
  /** Source of replies: the endpoint, or the original destination if the flow was not translated. */
  readonly replySrc: string;
  readonly replySrcPort: number;
  /** IPS_ bits of linux/netfilter/nf_conntrack_common.h. */
  readonly status: number;
}

/** VIPs and node ports whose conntrack entries may be stale, each with the addresses of its former endpoints. */
export interface CleanupScope {
  /** Protocols whose entries may be stale. */
  readonly protocols: ReadonlySet<Protocol>;
  readonly vips: ReadonlyMap<string, ReadonlySet<string>>;
  /** By `nodePortKey`. */
  readonly nodePorts: ReadonlyMap<string, ReadonlySet<string>>;
}

/** Protocols whose clients do not notice that their endpoint was removed. */
const DATAGRAMS = ['UDP', 'SCTP'] as const satisfies readonly Protocol[];

const NO_FORMER_ENDPOINTS: ReadonlySet<string> = new Set();

/**
 * Tracks the Routes of one family by VIP and node port. Records which VIPs and node ports may have stale entries after
 * changes.
 */
export class StaleFlowTracker {
  /** By VIP and id. */
  readonly #byVip = new Map<string, Map<string, Route>>();
  readonly #byNodePort = new Map<string, Route>();
  readonly #resetsTcp: boolean;
  /**
   * VIPs with entries whose port no Route serves any longer, by protocol. An entry lives as long as its endpoint serves
   * other ports of the VIP, so any Route that loses an endpoint may make it stale.
   */
  readonly #outlived = new Map<string, Set<Protocol>>();
  #protocols = new Set<Protocol>();
  #vips = new Map<string, Set<string>>();
  #nodePorts = new Map<string, Set<string>>();

  /** @param resetsTcp whether TCP entries of deleted endpoints are stale. */
  constructor(resetsTcp = false) {
    this.#resetsTcp = resetsTcp;
  }

  /** Tracks an added, changed or removed Route. */
  replaceRoute(before: Route | undefined, after: Route | undefined): void {
    if (before !== undefined) this.#removeRoute(before);
    if (after !== undefined) this.#addRoute(after);
    const protocols = staleProtocols(before, after);
    if (this.#resetsTcp && losesEndpoint(before, after)) protocols.push('TCP');
    if (before !== undefined && losesServingEndpoint(before, after)) this.#addOutlived(before);
    for (const protocol of protocols) this.#protocols.add(protocol);
    for (const route of [before, after]) {
      if (route === undefined || !protocols.some((protocol) => hasProtocol(route, protocol)))
        continue;
      const former = before?.servingEndpoints.map(({ address }) => address) ?? [];
      for (const vip of vipsOf(route)) addAll(this.#vips, vip, former);
      for (const key of nodePortKeys(route)) addAll(this.#nodePorts, key, former);
    }
  }

  /** Returns the scope of all changes since the last call, and clears the scope; undefined if no entry can be stale. */
  takeCleanupScope(): CleanupScope | undefined {
    if (this.#vips.size === 0 && this.#nodePorts.size === 0) return undefined;
    for (const vip of this.#vips.keys()) {
      for (const protocol of this.#outlived.get(vip) ?? []) this.#protocols.add(protocol);
      // The check adds the VIP again if such entries are left.
      this.#outlived.delete(vip);
    }
    const scope = { protocols: this.#protocols, vips: this.#vips, nodePorts: this.#nodePorts };
    this.#protocols = new Set();
    this.#vips = new Map();
    this.#nodePorts = new Map();
    return scope;
  }

  /** The scope for checking all entries: every VIP and node port, and the former endpoints in `scope`. */
  fullCleanupScope(scope?: CleanupScope): CleanupScope {
    const withoutFormer = <Key>(keys: Iterable<Key>) =>
      [...keys].map((key): [Key, ReadonlySet<string>] => [key, NO_FORMER_ENDPOINTS]);
    const protocols = new Set(scope?.protocols).add('TCP');
    for (const routes of this.#byVip.values()) {
      for (const route of routes.values())
        for (const each of this.#protocolsOf(route)) protocols.add(each);
    }
    for (const route of this.#byNodePort.values()) {
      for (const each of this.#protocolsOf(route)) protocols.add(each);
    }
    return {
      protocols,
      vips: new Map([...withoutFormer(this.#byVip.keys()), ...(scope?.vips ?? [])]),
      nodePorts: new Map([...withoutFormer(this.#byNodePort.keys()), ...(scope?.nodePorts ?? [])]),
    };
  }

  /** Puts back a scope that could not be checked, so that the next sync checks it. */
  restoreCleanupScope({ protocols, vips, nodePorts }: CleanupScope): void {
    for (const protocol of protocols) this.#protocols.add(protocol);
    for (const [vip, former] of vips) addAll(this.#vips, vip, former);
    for (const [key, former] of nodePorts) addAll(this.#nodePorts, key, former);
  }

  /**
   * Whether an entry is stale. UDP and SCTP: its Route has no serving endpoint with the entry's reply source. TCP: its
   * Route has an endpoint, but the entry is neither translated nor answered. With `resetsTcp`, an entry is also stale if
   * no Route of the VIP has an endpoint with this address.
   * @param isNodeAddress distinguishes node port traffic from traffic to the same port of another host.
   */
  isStale(
    flow: FlowTuple,
    protocol: Protocol,
    scope: CleanupScope,
    isNodeAddress: (address: string) => boolean,
  ): boolean {
    const former = scope.vips.get(flow.origDst);
    const routes = [...(this.#byVip.get(flow.origDst)?.values() ?? [])];
    const nodePort = nodePortKey(protocol, flow.origDstPort);
    const formerOfPort = isNodeAddress(flow.origDst) ? scope.nodePorts.get(nodePort) : undefined;
    const vipOwner = former && ownerOf(routes, protocol, flow.origDstPort);
    const portOwner = formerOfPort && this.#byNodePort.get(nodePort);

    if (protocol === 'TCP') {
      const owner = vipOwner ?? portOwner;
      if (owner === undefined) return false;
      if (flow.replySrc === flow.origDst) {
        return owner.servingEndpoints.length > 0 && (flow.status & IPS_SEEN_REPLY) === 0;
      }
      if (!this.#resetsTcp) return false;
      const others = vipOwner === undefined ? [] : routes;
      return [owner, ...others].every((route) => !hasEndpoint(route, flow.replySrc));
    }
    if (vipOwner !== undefined) return !hasServingEndpoint(vipOwner, protocol, flow);
    // No Route serves this port now. A flow to an endpoint that still serves the VIP on other ports is live (the
    // Service no longer serves all ports). A flow to a former endpoint is stale, also if an earlier agent translated it.
    // The host and other programs use the addresses of the node as well, and an untranslated flow is not of a Service.
    if (former !== undefined && flow.replySrc !== flow.origDst) {
      if (routes.some((route) => servesAt(route, flow.replySrc))) {
        getOrCreate(this.#outlived, flow.origDst, () => new Set<Protocol>()).add(protocol);
      } else if (former.has(flow.replySrc) || !isNodeAddress(flow.origDst)) return true;
    }
    if (portOwner !== undefined) return !hasServingEndpoint(portOwner, protocol, flow);
    return formerOfPort?.has(flow.replySrc) === true;
  }

  #addOutlived(route: Route): void {
    const former = route.servingEndpoints.map(({ address }) => address);
    for (const vip of vipsOf(route)) {
      const protocols = this.#outlived.get(vip);
      if (protocols === undefined) continue;
      for (const protocol of protocols) this.#protocols.add(protocol);
      addAll(this.#vips, vip, former);
    }
  }

  #protocolsOf(route: Route): Protocol[] {
    return DATAGRAMS.filter((protocol) => hasProtocol(route, protocol));
  }

  #addRoute(route: Route): void {
    // Index Routes of every protocol, because the endpoints of all Routes of a VIP count as live.
    for (const vip of vipsOf(route)) {
      getOrCreate(this.#byVip, vip, () => new Map<string, Route>()).set(route.id, route);
    }
    for (const key of nodePortKeys(route)) this.#byNodePort.set(key, route);
  }

  #removeRoute(route: Route): void {
    for (const vip of vipsOf(route)) {
      const routes = this.#byVip.get(vip);
      routes?.delete(route.id);
      if (routes?.size === 0) this.#byVip.delete(vip);
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

function hasProtocol({ match }: Route, protocol: Protocol): boolean {
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

/**
 * The protocols, UDP or SCTP, whose entries the change may make stale. A gained endpoint makes entries stale only if it
 * is the first endpoint of the cluster or the local set.
 */
function staleProtocols(before: Route | undefined, after: Route | undefined): Protocol[] {
  const protocols = DATAGRAMS.filter((protocol) =>
    [before, after].some((route) => route !== undefined && hasProtocol(route, protocol)),
  );
  if (before === undefined || after === undefined || protocols.length === 0) return protocols;
  if (!isDeepStrictEqual(before.match, after.match)) return protocols;
  if (vipsOf(before).join() !== vipsOf(after).join() || before.nodePort !== after.nodePort) {
    return protocols;
  }
  if (!isDeepStrictEqual(before.owned, after.owned)) {
    const hasSamePorts =
      before.owned !== undefined &&
      isDeepStrictEqual({ ...before.owned, owners: after.owned?.owners }, after.owned);
    // UDP of owned ports is not tracked, with any owner.
    return hasSamePorts ? protocols.filter((protocol) => protocol !== 'UDP') : protocols;
  }
  const alive = new Set(after.servingEndpoints.map(({ address, port }) => `${address} ${port}`));
  const isStale =
    before.servingEndpoints.some(({ address, port }) => !alive.has(`${address} ${port}`)) ||
    gainsFirst(before.clusterEndpoints, after.clusterEndpoints) ||
    gainsFirst(before.localEndpoints, after.localEndpoints);
  return isStale ? protocols : [];
}

function losesServingEndpoint(before: Route, after: Route | undefined): boolean {
  const serving = new Set(after?.servingEndpoints.map(({ address }) => address));
  return before.servingEndpoints.some(({ address }) => !serving.has(address));
}

/** Whether a remaining Route with TCP lost an endpoint, ready or not. */
function losesEndpoint(before: Route | undefined, after: Route | undefined): boolean {
  if (before === undefined || after === undefined || !hasProtocol(after, 'TCP')) return false;
  const known = new Set(endpointsOf(after).map(({ address }) => address));
  return endpointsOf(before).some(({ address }) => !known.has(address));
}

function gainsFirst(before: readonly unknown[], after: readonly unknown[]): boolean {
  return before.length === 0 && after.length > 0;
}

/** The Route that handles packets to this port. Precedence: exact port, port range, all ports. */
function ownerOf(routes: readonly Route[], protocol: Protocol, port: number): Route | undefined {
  const exact = routes.find(
    ({ match }) => match.kind === 'port' && match.protocol === protocol && match.port === port,
  );
  const ranged = routes.find(
    ({ match }) =>
      match.kind === 'ranges' && match.ranges.some((range) => hasPort(range, protocol, port)),
  );
  return exact ?? ranged ?? routes.find(({ match }) => match.kind === 'all');
}

function hasServingEndpoint(route: Route, protocol: Protocol, flow: FlowTuple): boolean {
  if (route.owned !== undefined) {
    // UDP packets of owned ports are not tracked: an entry is of the time before the pods owned the ports.
    if (protocol === 'UDP') return false;
    const owner = ownerAt(route.owned, protocol, flow.origDstPort);
    return owner?.serves === true && owner.address === flow.replySrc;
  }
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

/** All endpoints in EndpointSlices, also endpoints that do not serve. */
function endpointsOf({ servingEndpoints, notServingEndpoints }: Route): readonly Endpoint[] {
  return [...servingEndpoints, ...notServingEndpoints];
}
