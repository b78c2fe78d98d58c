/** VIP conflict resolution: which Service owns a VIP, a port of a VIP, or a node port. */
import { isDeepStrictEqual } from 'node:util';
import type { ServiceRefusal } from '../api/all-ports.ts';
import { getOrCreate, setList } from '../api/collections.ts';
import type { ObjectKey } from '../api/objects.ts';
import {
  commonRanges,
  normalizeRanges,
  type PortRange,
  rangesOverlap,
  rangeText,
} from '../api/ports.ts';
import type { ServedPort } from './served-ports.ts';
import { VipClaims } from './vip-claims.ts';
import { VipGrants } from './vip-grants.ts';
import {
  claimsOf,
  nodePortsOf,
  rangesOf,
  requestsOf,
  type ServiceVips,
  type VipClaim,
  type VipRequest,
} from './vip-requests.ts';

/** Maximum number of ports to list in a message, which counts further ports. */
const MAX_LISTED_PORTS = 5;

/** A request for owned ports. */
interface OwnedRequest {
  readonly serviceKey: ObjectKey;
  readonly ranges: readonly PortRange[];
  /** Ports of the VIP that are granted one by one, by their text. */
  readonly taken: Map<string, PortRange>;
}

/** What another Service has: the address, or granted ports of it. */
type Owner = VipClaim | VipRequest;

/** Requests of one Service for one VIP that lose against another Service. */
interface Overlap {
  /** The first that was found. */
  readonly owner: Owner;
  /** The first of `requests`. */
  readonly first: VipRequest;
  /** All losing requests, at least one. */
  readonly requests: VipRequest[];
  /** The ports that the other Service has, as written in the annotation; empty for all ports. */
  readonly ports: string[];
}

/**
 * Grants VIPs to Services.
 *
 * A cluster IP belongs to its Service alone, and external IPs get nothing of another Service's load balancer IP
 * (`VipClaims`). Services that share a VIP otherwise are granted ports by kind, namespace and age (`VipGrants`); the
 * loser takes over when the owner is deleted. A VIP that is an address of this node is refused to all-ports and
 * port-range Services, because they would cut off ssh and the kubelet.
 */
export class VipConflicts {
  readonly #claims = new VipClaims();
  readonly #grants = new VipGrants();
  readonly #requestsByService = new Map<ObjectKey, readonly VipRequest[]>();
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
   * Replaces the claims and requests of a Service.
   * @param ports empty for a Service that is not served: it still has its cluster IP and load balancer IPs.
   * @returns other Services whose VIPs may be granted differently now.
   */
  replaceService(service: ServiceVips, ports: readonly ServedPort[]): Set<ObjectKey> {
    const { key, creationTimestamp } = service;
    const requests = ports.flatMap((port) => requestsOf(port, key, creationTimestamp));
    return this.#replace(key, claimsOf(service, requests), requests);
  }

  /** Removes a Service. @returns as `replaceService`. */
  removeService(serviceKey: ObjectKey): Set<ObjectKey> {
    return this.#replace(serviceKey, [], []);
  }

  /**
   * Sets the addresses of this node.
   * @returns Services that request an added or removed address with all ports, port ranges or a watched port, and
   * Services with which these share it.
   */
  setNodeAddresses(addresses: ReadonlySet<string>): Set<ObjectKey> {
    const changed = [
      ...[...addresses].filter((address) => !this.#nodeAddresses.has(address)),
      ...[...this.#nodeAddresses].filter((address) => !addresses.has(address)),
    ];
    this.#nodeAddresses = addresses;
    const affected = new Set<ObjectKey>();
    const unlisted: VipRequest[] = [];
    const vips = new Map<ObjectKey, Set<string>>();
    for (const vip of changed) {
      for (const serviceKey of this.servicesAt(vip))
        getOrCreate(vips, serviceKey, () => new Set()).add(vip);
    }
    for (const request of this.#requestsFor(vips)) {
      const { kind } = request.match;
      if (kind === 'port' && !this.#isWatched(request)) continue;
      affected.add(request.serviceKey);
      if (kind !== 'port') unlisted.push(request);
    }
    this.#decide([], unlisted, affected);
    return affected;
  }

  /** The Services that claim an address. */
  servicesAt(vip: string): readonly ObjectKey[] {
    return this.#claims.at(vip).map(({ serviceKey }) => serviceKey);
  }

  /**
   * The refused requests of a Service, by `grantKey`. Requests for ports of one VIP that lose against the same
   * Service share one refusal, because a Service may list thousands of ports.
   */
  refusals(serviceKey: ObjectKey): Map<string, ServiceRefusal> {
    const refused = new Map<string, ServiceRefusal>();
    const overlaps = new Map<string, Overlap>();
    for (const request of this.#requestsByService.get(serviceKey) ?? []) {
      const { field, vip } = request;
      if (this.#isNodeAddress(request)) {
        const message = `${vip} is an address of this node, so an all-ports or port-range Service would cut off the node's own ports; use another VIP`;
        const refusal: ServiceRefusal = { serviceKey, reason: 'NodeAddress', field, message };
        refused.set(grantKey(request.id, vip), refusal);
        continue;
      }
      const owner = this.#claims.ownerOver(serviceKey, vip) ?? this.#grants.winnerOver(request);
      if (owner === undefined) continue;
      const key = `${vip} ${owner.serviceKey}`;
      const create = () => ({ owner, first: request, requests: [], ports: [] });
      const overlap: Overlap = getOrCreate(overlaps, key, create);
      overlap.requests.push(request);
      if (!('kind' in owner)) overlap.ports.push(...conflictingPorts(request, owner));
    }
    for (const overlap of overlaps.values()) {
      const refusal = overlapRefusal(overlap);
      for (const { id, vip } of overlap.requests) refused.set(grantKey(id, vip), refusal);
    }
    return refused;
  }

  /** The ports of an owned range that are granted one by one on this VIP: an exact port takes precedence. Sorted. */
  portsTakenFrom(port: ServedPort, vip: string): readonly PortRange[] {
    const taken = this.#ownedByVip.get(vip)?.get(port.id)?.taken;
    return taken === undefined ? [] : normalizeRanges([...taken.values()]);
  }

  #replace(
    serviceKey: ObjectKey,
    claims: readonly VipClaim[],
    requests: readonly VipRequest[],
  ): Set<ObjectKey> {
    const known = new Map(this.#requestsByService.get(serviceKey)?.map(withGrantKey));
    const kept = new Map<string, VipRequest>();
    for (const [key, request] of requests.map(withGrantKey)) {
      const before = known.get(key);
      // Unchanged requests stay, so that a change costs nothing for what it does not touch.
      kept.set(key, isDeepStrictEqual(before, request) ? (before ?? request) : request);
    }
    const removed = [...known].flatMap(([key, old]) => (kept.get(key) === old ? [] : [old]));
    const added = [...kept].flatMap(([key, request]) =>
      known.get(key) === request ? [] : [request],
    );
    setList(this.#requestsByService, serviceKey, [...kept.values()]);
    for (const request of removed) this.#removeOwned(request);
    for (const request of added) this.#addOwned(request);

    const affected = new Set<ObjectKey>();
    const toDecide = new Set(added);
    // The addresses of each Service whose requests are decided again, so that its requests are searched once.
    const vips = new Map<ObjectKey, Set<string>>();
    for (const { vip, claims: others } of this.#claims.replace(serviceKey, claims)) {
      for (const { serviceKey: key } of others) affected.add(key);
      for (const key of [serviceKey, ...others.map((claim) => claim.serviceKey)])
        getOrCreate(vips, key, () => new Set()).add(vip);
    }
    for (const request of this.#requestsFor(vips)) toDecide.add(request);
    this.#decide(removed, toDecide, affected);
    affected.delete(serviceKey);
    return affected;
  }

  /** Decides requests again. @param affected gets the Services whose grants change. */
  #decide(
    removed: readonly VipRequest[],
    changed: Iterable<VipRequest>,
    affected: Set<ObjectKey>,
  ): void {
    const { admitted = [], shut = [] } = Object.groupBy(changed, (request) =>
      this.#isAdmitted(request) ? 'admitted' : 'shut',
    );
    const { decided, ports } = this.#grants.replace([...removed, ...shut], admitted);
    for (const { serviceKey } of decided) affected.add(serviceKey);
    for (const request of ports) this.#updateTaken(request, affected);
  }

  /** Whether the request may take part in the decision about the ports of its VIP. */
  #isAdmitted(request: VipRequest): boolean {
    const { serviceKey, vip } = request;
    return !this.#isNodeAddress(request) && this.#claims.ownerOver(serviceKey, vip) === undefined;
  }

  #isNodeAddress({ match, vip }: VipRequest): boolean {
    return match.kind !== 'port' && this.#nodeAddresses.has(vip);
  }

  #isWatched({ match }: VipRequest): boolean {
    return (
      match.kind === 'port' && match.protocol === 'TCP' && this.#watchedPorts.includes(match.port)
    );
  }

  /** The requests of Services for these addresses. */
  *#requestsFor(vips: ReadonlyMap<ObjectKey, ReadonlySet<string>>): Iterable<VipRequest> {
    for (const [serviceKey, wanted] of vips)
      for (const request of this.#requestsByService.get(serviceKey) ?? [])
        if (wanted.has(request.vip)) yield request;
  }

  #addOwned(request: VipRequest): void {
    if (!request.isOwned) return;
    const { vip, id, serviceKey } = request;
    const ranges = rangesOf(request);
    const taken = new Map<string, PortRange>();
    for (const listed of this.#grants.grantedPorts(vip)) {
      const port = onePort(listed);
      if (rangesOverlap(ranges, [port])) taken.set(rangeText(port), port);
    }
    const owned = getOrCreate(this.#ownedByVip, vip, () => new Map());
    owned.set(id, { serviceKey, ranges, taken });
  }

  #removeOwned({ vip, id, isOwned }: VipRequest): void {
    if (!isOwned) return;
    const owned = this.#ownedByVip.get(vip);
    owned?.delete(id);
    if (owned?.size === 0) this.#ownedByVip.delete(vip);
  }

  /** Takes a listed port from owned ranges, or gives it back. */
  #updateTaken(request: VipRequest, affected: Set<ObjectKey>): void {
    const owned = this.#ownedByVip.get(request.vip);
    if (owned === undefined) return;
    const port = onePort(request);
    const key = rangeText(port);
    const isGranted = this.#grants.grantedPort(request) !== undefined;
    for (const { serviceKey, ranges, taken } of owned.values()) {
      if (taken.has(key) === isGranted || !rangesOverlap(ranges, [port])) continue;
      if (isGranted) taken.set(key, port);
      else taken.delete(key);
      affected.add(serviceKey);
    }
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

function withGrantKey(request: VipRequest): [string, VipRequest] {
  return [grantKey(request.id, request.vip), request];
}

function onePort(request: VipRequest): PortRange {
  const [port] = rangesOf(request);
  if (port === undefined) throw new TypeError('a request for all ports has no single port');
  return port;
}

function overlapRefusal({ owner, first, requests, ports }: Overlap): ServiceRefusal {
  const { serviceKey, field, vip, family } = first;
  const isNodePort = vip === nodePortsOf(family);
  const why = 'kind' in owner ? claimText(owner) : grantText(ports, owner, first);
  const message = `${isNodePort ? family : vip}: ${why}`;
  const refusal = { serviceKey, reason: 'Overlap', field, message } as const;
  if (isNodePort) return refusal;
  const ownsPorts = requests.some(({ isOwned }) => isOwned);
  return { ...refusal, lostVip: { vip, to: owner.serviceKey, ownsPorts } };
}

function claimText({ kind, serviceKey }: VipClaim): string {
  return kind === 'cluster'
    ? `is the cluster IP of Service ${serviceKey}, and no other Service gets a port of it`
    : `is a load balancer IP of Service ${serviceKey}, and external IPs of other Services get no port of it`;
}

function grantText(ports: readonly string[], owner: VipRequest, first: VipRequest): string {
  const hidden = ports.length - MAX_LISTED_PORTS;
  const shown = `${ports.slice(0, MAX_LISTED_PORTS).join(', ')}${hidden > 0 ? ` and ${hidden} more` : ''}`;
  const isOne = ports.length === 1 && !shown.includes('-');
  const isNodePort = first.vip === nodePortsOf(first.family);
  const what = `${isNodePort ? 'node ' : ''}${isOne ? 'port' : 'ports'} ${shown} ${isOne ? 'is' : 'are'}`;
  const subject = ports.length === 0 ? 'every port is' : what;
  return `${subject} already served for ${winnerText(owner, first)}`;
}

/** The conflicting ports as written in the annotation; empty for all ports. */
function conflictingPorts(request: VipRequest, owner: VipRequest): string[] {
  const own = rangesOf(request);
  return (owner.match.kind === 'all' ? own : commonRanges(own, rangesOf(owner))).map(rangeText);
}
