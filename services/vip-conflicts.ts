/** VIP conflict resolution: which Service owns a VIP, a port of a VIP, or a node port. */
import type { ServiceRefusal } from '../api/all-ports.ts';
import { compareText, getOrCreate, setList } from '../api/collections.ts';
import type { IpFamily, ObjectKey } from '../api/objects.ts';
import {
  commonRanges,
  normalizeRanges,
  type PortRange,
  rangesOverlap,
  rangeText,
} from '../api/ports.ts';
import type { Route, RouteMatch } from './route.ts';
import type { ServedPort } from './served-ports.ts';

/** The pseudo-VIP of node ports, per family: a dual-stack Service uses the same number in both families. */
const nodePortsOf = (family: IpFamily) => `node port, ${family}`;

/** Maximum number of ports to list in a message, which counts further ports. */
const MAX_LISTED_PORTS = 5;

/** The part of a match that decides which requests can conflict. */
type ConflictScope = Extract<RouteMatch, { kind: 'port' }> | { readonly kind: 'ranges' | 'all' };

/** A request of a Service for a VIP: for one port, for port ranges, or for all ports. */
interface VipRequest {
  readonly vip: string;
  readonly id: string;
  readonly match: RouteMatch;
  readonly field: string;
  readonly serviceKey: ObjectKey;
  readonly family: IpFamily;
  /** Whether pods own the ports. */
  readonly isOwned: boolean;
  /** Sort key: creation time, then namespace/name. The first request owns the VIP. */
  readonly priority: string;
}

/** A request for owned ports. */
interface OwnedRequest {
  readonly serviceKey: ObjectKey;
  readonly ranges: readonly PortRange[];
  /** Ports that other Services list on the VIP, by `conflictScopeKey`. */
  readonly taken: Map<string, PortRange>;
}

/** Requests of one Service for one VIP that lose against another Service. */
interface Overlap {
  /** A request of the Service that owns the VIP. */
  readonly owner: VipRequest;
  /** All losing requests, at least one. */
  readonly requests: VipRequest[];
  /** The first of `requests`. */
  readonly first: VipRequest;
}

/**
 * Grants VIPs to Services.
 *
 * Requests of different kinds share a VIP: a listed port takes precedence over port ranges, and port ranges over all
 * ports. Overlapping requests of one kind conflict: the first by `priorityOf` owns the VIP; the other Service is refused,
 * and takes over when the owner is deleted. A VIP that is an address of this node is refused to all-ports and
 * port-range Services, because they would cut off ssh and the kubelet.
 */
export class VipConflicts {
  /** By `conflictScopeKey`, sorted by priority. Each port has its own key: a Service may list thousands of ports. */
  readonly #requestsByScope = new Map<string, readonly VipRequest[]>();
  readonly #requestsByService = new Map<ObjectKey, readonly VipRequest[]>();
  /** Ports that Services list one by one, by VIP and `conflictScopeKey`. */
  readonly #listedPorts = new Map<string, Map<string, PortRange>>();
  /** Requests for owned ports, by VIP and id. */
  readonly #ownedByVip = new Map<string, Map<string, OwnedRequest>>();
  readonly #watchedPorts: readonly number[];
  #nodeAddresses: ReadonlySet<string> = new Set();

  /**
   * @param watchedPorts TCP ports; `setNodeAddresses` also returns Services that list a watched port on a changed
   * address.
   */
  constructor(watchedPorts: readonly number[] = []) {
    this.#watchedPorts = watchedPorts;
  }

  /**
   * Replaces the requests of a Service; no ports if it is deleted.
   * @returns other Services whose VIPs may be granted differently now.
   */
  replaceRequests(
    serviceKey: ObjectKey,
    creationTimestamp: string,
    ports: readonly ServedPort[],
  ): Set<ObjectKey> {
    const affected = new Set<ObjectKey>();
    const before = this.#requestsByService.get(serviceKey) ?? [];
    const requests = ports.flatMap((port) => requestsOf(port, serviceKey, creationTimestamp));
    for (const request of before) this.#remove(request, affected);
    for (const request of requests) this.#add(request, affected);
    setList(this.#requestsByService, serviceKey, requests);
    affected.delete(serviceKey);
    return affected;
  }

  /**
   * Sets the addresses of this node.
   * @returns Services that request an added or removed address with all ports, port ranges or a watched port.
   */
  setNodeAddresses(addresses: ReadonlySet<string>): Set<ObjectKey> {
    const changed = [
      ...[...addresses].filter((address) => !this.#nodeAddresses.has(address)),
      ...[...this.#nodeAddresses].filter((address) => !addresses.has(address)),
    ];
    this.#nodeAddresses = addresses;
    const affected = new Set<ObjectKey>();
    const matches: ConflictScope[] = [
      { kind: 'ranges' },
      { kind: 'all' },
      ...this.#watchedPorts.map((port) => ({ kind: 'port', protocol: 'TCP', port }) as const),
    ];
    for (const vip of changed) {
      for (const match of matches)
        addServices(this.#requestsAt(conflictScopeKey(vip, match)), affected);
    }
    return affected;
  }

  /**
   * The refused requests of a Service, by `grantKey`. Requests for ports of one VIP that lose against the same
   * Service share one refusal, because a Service may list thousands of ports.
   */
  refusals(serviceKey: ObjectKey): Map<string, ServiceRefusal> {
    const refused = new Map<string, ServiceRefusal>();
    const overlaps = new Map<string, Overlap>();
    for (const request of this.#requestsByService.get(serviceKey) ?? []) {
      const { field, vip, match } = request;
      if (match.kind !== 'port' && this.#nodeAddresses.has(vip)) {
        const message = `${vip} is an address of this node, so an all-ports or port-range Service would cut off the node's own ports; use another VIP`;
        const refusal: ServiceRefusal = { serviceKey, reason: 'NodeAddress', field, message };
        refused.set(grantKey(request.id, vip), refusal);
        continue;
      }
      const owner = this.#ownerOver(request);
      if (owner === undefined) continue;
      const key = `${vip} ${owner.serviceKey}`;
      getOrCreate(overlaps, key, () => ({ owner, first: request, requests: [] })).requests.push(
        request,
      );
    }
    for (const overlap of overlaps.values()) {
      const refusal = overlapRefusal(overlap);
      for (const { id, vip } of overlap.requests) refused.set(grantKey(id, vip), refusal);
    }
    return refused;
  }

  /**
   * The ports of an owned range that other Services list one by one on this VIP: an exact port takes precedence. Sorted.
   */
  portsTakenFrom(port: ServedPort, vip: string): readonly PortRange[] {
    const taken = this.#ownedByVip.get(vip)?.get(port.id)?.taken;
    return taken === undefined ? [] : normalizeRanges([...taken.values()]);
  }

  /** The request of another Service that wins against `request`; undefined if `request` owns the VIP. */
  #ownerOver(request: VipRequest): VipRequest | undefined {
    const conflicting = this.#requestsAt(conflictScopeKey(request.vip, request.match));
    if (request.match.kind !== 'ranges') return unlessSame(conflicting[0], request);
    const granted: VipRequest[] = [];
    for (const other of conflicting) {
      const owner = granted.find((each) => rangesOverlap(rangesOf(each), rangesOf(other)));
      if (other.id === request.id) return owner;
      if (owner === undefined) granted.push(other);
    }
    return undefined;
  }

  #add(request: VipRequest, affected: Set<ObjectKey>): void {
    const key = conflictScopeKey(request.vip, request.match);
    const conflicting = this.#requestsAt(key);
    addServices(conflicting, affected);
    const all = conflicting.concat(request).sort((a, b) => compareText(a.priority, b.priority));
    this.#requestsByScope.set(key, all);
    if (request.isOwned) this.#addOwned(request);
    if (request.match.kind !== 'port') return;
    const port = onePort(request.match);
    getOrCreate(this.#listedPorts, request.vip, () => new Map()).set(key, port);
    for (const { serviceKey, taken } of this.#ownedAt(request.vip, port)) {
      if (!taken.has(key)) affected.add(serviceKey);
      taken.set(key, port);
    }
  }

  #remove(request: VipRequest, affected: Set<ObjectKey>): void {
    const key = conflictScopeKey(request.vip, request.match);
    const conflicting = this.#requestsAt(key).filter((other) => other.id !== request.id);
    addServices(conflicting, affected);
    setList(this.#requestsByScope, key, conflicting);
    if (request.isOwned) this.#removeOwned(request);
    if (conflicting.length > 0 || request.match.kind !== 'port') return;
    const listed = this.#listedPorts.get(request.vip);
    listed?.delete(key);
    if (listed?.size === 0) this.#listedPorts.delete(request.vip);
    for (const { serviceKey, taken } of this.#ownedAt(request.vip, onePort(request.match))) {
      if (taken.delete(key)) affected.add(serviceKey);
    }
  }

  #addOwned(request: VipRequest): void {
    const { vip, id, serviceKey } = request;
    const ranges = rangesOf(request);
    const taken = new Map<string, PortRange>();
    for (const [key, port] of this.#listedPorts.get(vip) ?? [])
      if (rangesOverlap(ranges, [port])) taken.set(key, port);
    const owned = getOrCreate(this.#ownedByVip, vip, () => new Map());
    owned.set(id, { serviceKey, ranges, taken });
  }

  #removeOwned({ vip, id }: VipRequest): void {
    const owned = this.#ownedByVip.get(vip);
    owned?.delete(id);
    if (owned?.size === 0) this.#ownedByVip.delete(vip);
  }

  /** The requests for owned ports that include a port of a VIP. */
  *#ownedAt(vip: string, port: PortRange): Iterable<OwnedRequest> {
    for (const owned of this.#ownedByVip.get(vip)?.values() ?? [])
      if (rangesOverlap(owned.ranges, [port])) yield owned;
  }

  #requestsAt(key: string): readonly VipRequest[] {
    return this.#requestsByScope.get(key) ?? [];
  }
}

/** The key of one VIP of one served port in `VipConflicts.refusals`. */
export function grantKey(id: string, vip: string): string {
  return `${id} ${vip}`;
}

/** The key of the node port of a served port in `VipConflicts.refusals`. */
export function nodePortGrantKey(port: ServedPort): string {
  return grantKey(port.id, nodePortsOf(port.family));
}

/** Sort key of a served port: creation time of the Service, then namespace/name. The first wins a conflict. */
export function priorityOf(
  { id }: ServedPort,
  serviceKey: ObjectKey,
  creationTimestamp: string,
): string {
  // A Service without a creation timestamp comes from a manifest and counts as the youngest.
  return `${creationTimestamp || '~'} ${serviceKey} ${id}`;
}

/** A Service in a conflict. */
interface Contender {
  readonly serviceKey: ObjectKey;
  /** See `priorityOf`. */
  readonly priority: string;
}

/** The Service that wins a conflict, and why: `the older Service a/b`, or `Service a/b, the first by name`. */
export function winnerText(winner: Contender, loser: Pick<Contender, 'priority'>): string {
  const createdAt = ({ priority }: Pick<Contender, 'priority'>) => priority.split(' ', 1)[0];
  const service = `Service ${winner.serviceKey}`;
  return createdAt(winner) === createdAt(loser)
    ? `${service}, the first by name`
    : `the older ${service}`;
}

function requestsOf(
  port: ServedPort,
  serviceKey: ObjectKey,
  creationTimestamp: string,
): VipRequest[] {
  const priority = priorityOf(port, serviceKey, creationTimestamp);
  const request = (vip: string, field: string, match = port.match): VipRequest => ({
    vip,
    id: port.id,
    match,
    field,
    serviceKey,
    family: port.family,
    isOwned: port.ownership !== undefined,
    priority,
  });
  const vips = new Map<string, VipRequest>();
  for (const [field, vip] of vipFields(port))
    if (!vips.has(vip)) vips.set(vip, request(vip, field));
  const requests = [...vips.values()];
  if (port.nodePort > 0 && port.match.kind === 'port') {
    const match: RouteMatch = { ...port.match, port: port.nodePort };
    requests.push(request(nodePortsOf(port.family), 'spec.ports.nodePort', match));
  }
  return requests;
}

/** The VIPs of a Service with the field that names each; one VIP may be in several fields. */
export function vipFields({
  clusterIP,
  externalIPs,
  loadBalancerIPs,
}: Pick<Route, 'clusterIP' | 'externalIPs' | 'loadBalancerIPs'>): [field: string, vip: string][] {
  const withField = (field: string, vips: readonly string[]) =>
    vips.map((vip): [string, string] => [field, vip]);
  return [
    ...withField('spec.clusterIPs', clusterIP === undefined ? [] : [clusterIP]),
    ...withField('spec.externalIPs', externalIPs),
    ...withField('status.loadBalancer.ingress', loadBalancerIPs),
  ];
}

/** Only requests with equal keys can conflict. */
function conflictScopeKey(vip: string, match: ConflictScope): string {
  return match.kind === 'port' ? `${vip} ${match.protocol}/${match.port}` : `${vip} ${match.kind}`;
}

function overlapRefusal({ owner, first, requests }: Overlap): ServiceRefusal {
  const { serviceKey, field, vip, family } = first;
  const isNodePort = vip === nodePortsOf(family);
  const ports = requests.flatMap((request) => conflictingPorts(request, owner));
  const hidden = ports.length - MAX_LISTED_PORTS;
  const shown = `${ports.slice(0, MAX_LISTED_PORTS).join(', ')}${hidden > 0 ? ` and ${hidden} more` : ''}`;
  const isOne = ports.length === 1 && !shown.includes('-');
  const what = `${isNodePort ? 'node ' : ''}${isOne ? 'port' : 'ports'} ${shown} ${isOne ? 'is' : 'are'}`;
  const subject = ports.length === 0 ? 'every port is' : what;
  const place = isNodePort ? family : vip;
  const message = `${place}: ${subject} already served for ${winnerText(owner, first)}`;
  const refusal = { serviceKey, reason: 'Overlap', field, message } as const;
  const isOwned = requests.some((request) => request.isOwned);
  return isOwned ? { ...refusal, lostVip: { vip, to: owner.serviceKey } } : refusal;
}

/** The conflicting ports as written in the annotation; empty for all ports. */
function conflictingPorts({ match }: VipRequest, owner: VipRequest): string[] {
  if (match.kind === 'port') return [`${match.port}/${match.protocol}`];
  if (match.kind === 'all') return [];
  return commonRanges(match.ranges, rangesOf(owner)).map(rangeText);
}

function onePort({ protocol, port }: Extract<RouteMatch, { kind: 'port' }>): PortRange {
  return { protocol, from: port, to: port };
}

function rangesOf(request: VipRequest): readonly PortRange[] {
  return request.match.kind === 'ranges' ? request.match.ranges : [];
}

function unlessSame(owner: VipRequest | undefined, request: VipRequest): VipRequest | undefined {
  return owner === undefined || owner.id === request.id ? undefined : owner;
}

function addServices(requests: readonly VipRequest[], affected: Set<ObjectKey>): void {
  for (const request of requests) affected.add(request.serviceKey);
}
