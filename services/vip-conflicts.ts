/** VIP conflict resolution: which Service owns a VIP, or a port of it. An all-ports VIP that is a node address is refused here. */
import type { ServiceRefusal } from '../api/all-ports.ts';
import { compareText, getOrCreate } from '../api/collections.ts';
import type { IpFamily, ObjectKey } from '../api/objects.ts';
import { commonRanges, type PortRange, rangesOverlap } from '../api/ports.ts';
import type { Route, RouteMatch } from './route.ts';
import type { ServedPort } from './served-ports.ts';

/** Pseudo-VIP on which node ports are claimed; a dual-stack Service uses one number in both families. */
const nodePortsOf = (family: IpFamily) => `node port, ${family}`;

/** Limit of ports listed in a message; the others are counted. */
const MAX_LISTED_PORTS = 5;

/** As much of a Match as says who its rivals are. */
type ConflictScope = Extract<RouteMatch, { kind: 'port' }> | { readonly kind: 'ranges' | 'all' };

/** A Service that wants a VIP, on a port, on ranges or whole. */
interface VipRequest {
  readonly vip: string;
  readonly id: string;
  readonly match: RouteMatch;
  readonly field: string;
  readonly serviceKey: ObjectKey;
  readonly family: IpFamily;
  /** Sorts claims: the older first, then by namespace/name. */
  readonly priority: string;
}

/** Claims of one Service to one VIP that the claims of another Service exclude. */
interface Overlap {
  /** One of those. */
  readonly owner: VipRequest;
  readonly first: VipRequest;
  /** `first` is among them. */
  readonly requests: VipRequest[];
}

/**
 * Who owns which VIP. Exact ports, ranges and all-ports share a VIP by precedence; two of one kind
 * that overlap do not: the older Service has it, the other is refused there and takes over when
 * the first goes. A VIP that is an address of this node is given to no all-ports Service: capturing
 * it whole would cut off ssh and the kubelet.
 */
export class VipConflicts {
  /** By `rivalryKey`, the most senior first. Exact ports each have a key: a Service may list thousands. */
  readonly #requestsByScope = new Map<string, readonly VipRequest[]>();
  readonly #requestsByService = new Map<ObjectKey, readonly VipRequest[]>();
  /** TCP ports. */
  readonly #watchedPorts: readonly number[];
  #nodeAddresses: ReadonlySet<string> = new Set();

  /** @param watchedPorts TCP ports whose owners are told when their VIP becomes, or ceases to be, an address of this node. */
  constructor(watchedPorts: readonly number[] = []) {
    this.#watchedPorts = watchedPorts;
  }

  /**
   * Records what a Service wants now (nothing: it has gone).
   * @returns the other Services whose VIPs may be granted differently from now on.
   */
  replace(
    serviceKey: ObjectKey,
    creationTimestamp: string,
    ports: readonly ServedPort[],
  ): Set<ObjectKey> {
    const affected = new Set<ObjectKey>();
    const before = this.#requestsByService.get(serviceKey) ?? [];
    const claims = ports.flatMap((port) => requestsOf(port, serviceKey, creationTimestamp));
    for (const claim of before) this.#remove(claim, affected);
    for (const claim of claims) this.#add(claim, affected);
    if (claims.length > 0) this.#requestsByService.set(serviceKey, claims);
    else this.#requestsByService.delete(serviceKey);
    affected.delete(serviceKey);
    return affected;
  }

  /**
   * @returns the Services that claim an address that came or went, with all ports, ranges or a port that is
   * watched.
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
   * The VIP claims of a Service that are refused now: keys as `grantKey` makes them. Claims to ports of one VIP
   * that one other Service owns share one Refusal, because a Service may list thousands.
   */
  refusals(serviceKey: ObjectKey): Map<string, ServiceRefusal> {
    const refused = new Map<string, ServiceRefusal>();
    const overlaps = new Map<string, Overlap>();
    for (const claim of this.#requestsByService.get(serviceKey) ?? []) {
      const { field, vip, match } = claim;
      if (match.kind !== 'port' && this.#nodeAddresses.has(vip)) {
        const message = `${vip} is an address of this node; all its ports would be taken from the node`;
        const refusal: ServiceRefusal = { serviceKey, reason: 'NodeAddress', field, message };
        refused.set(grantKey(claim.id, vip), refusal);
        continue;
      }
      const owner = this.#ownerOver(claim);
      if (owner === undefined) continue;
      const key = `${vip} ${owner.serviceKey}`;
      getOrCreate(overlaps, key, () => ({ owner, first: claim, requests: [] })).requests.push(
        claim,
      );
    }
    for (const overlap of overlaps.values()) {
      const refusal = overlapRefusal(overlap);
      for (const { id, vip } of overlap.requests) refused.set(grantKey(id, vip), refusal);
    }
    return refused;
  }

  /** The claim that keeps this one from its VIP. */
  #ownerOver(claim: VipRequest): VipRequest | undefined {
    const rivals = this.#requestsAt(conflictScopeKey(claim.vip, claim.match));
    if (claim.match.kind !== 'ranges') return unlessSame(rivals[0], claim);
    const granted: VipRequest[] = [];
    for (const other of rivals) {
      const winner = granted.find((owner) => rangesOverlap(rangesOf(owner), rangesOf(other)));
      if (other.id === claim.id) return winner;
      if (winner === undefined) granted.push(other);
    }
    return undefined;
  }

  #add(claim: VipRequest, affected: Set<ObjectKey>): void {
    const key = conflictScopeKey(claim.vip, claim.match);
    const rivals = this.#requestsAt(key);
    addServices(rivals, affected);
    const all = rivals.concat(claim).sort((a, b) => compareText(a.priority, b.priority));
    this.#requestsByScope.set(key, all);
  }

  #remove(claim: VipRequest, affected: Set<ObjectKey>): void {
    const key = conflictScopeKey(claim.vip, claim.match);
    const rivals = this.#requestsAt(key).filter((other) => other.id !== claim.id);
    addServices(rivals, affected);
    if (rivals.length > 0) this.#requestsByScope.set(key, rivals);
    else this.#requestsByScope.delete(key);
  }

  #requestsAt(key: string): readonly VipRequest[] {
    return this.#requestsByScope.get(key) ?? [];
  }
}

/** Names one VIP of one served port in `VipLedger.refusals`. */
export function grantKey(id: string, vip: string): string {
  return `${id} ${vip}`;
}

/** As `grantKey`, for the node port. */
export function nodePortGrantKey(port: ServedPort): string {
  return grantKey(port.id, nodePortsOf(port.family));
}

function requestsOf(
  port: ServedPort,
  serviceKey: ObjectKey,
  creationTimestamp: string,
): VipRequest[] {
  // A Service without a timestamp (a manifest) was never created by an API server: it is the youngest.
  const seniority = `${creationTimestamp || '~'} ${serviceKey} ${port.id}`;
  const claim = (vip: string, field: string, match = port.match): VipRequest => ({
    vip,
    id: port.id,
    match,
    field,
    serviceKey,
    family: port.family,
    priority: seniority,
  });
  const vips = new Map<string, VipRequest>();
  for (const [field, vip] of vipFields(port)) if (!vips.has(vip)) vips.set(vip, claim(vip, field));
  const claims = [...vips.values()];
  if (port.nodePort > 0 && port.match.kind === 'port') {
    const match: RouteMatch = { ...port.match, port: port.nodePort };
    claims.push(claim(nodePortsOf(port.family), 'spec.ports.nodePort', match));
  }
  return claims;
}

/** VIPs, each after the field of a Service that names it; one may be in several. */
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

/** Claims of one key may keep each other from the VIP. */
function conflictScopeKey(vip: string, match: ConflictScope): string {
  return match.kind === 'port' ? `${vip} ${match.protocol}/${match.port}` : `${vip} ${match.kind}`;
}

function overlapRefusal({ owner, first, requests: claims }: Overlap): ServiceRefusal {
  const { serviceKey, field, vip, family } = first;
  const isNodePort = vip === nodePortsOf(family);
  const ports = claims.flatMap((claim) => conflictingPorts(claim, owner));
  const hidden = ports.length - MAX_LISTED_PORTS;
  const shown = `${ports.slice(0, MAX_LISTED_PORTS).join(', ')}${hidden > 0 ? ` and ${hidden} more` : ''}`;
  const isOne = ports.length === 1 && !shown.includes('-');
  const what = `${isNodePort ? 'node ' : ''}${isOne ? 'port' : 'ports'} ${shown} ${isOne ? 'is' : 'are'}`;
  const subject = ports.length === 0 ? 'every port is' : what;
  const place = isNodePort ? family : vip;
  const message = `${place}: ${subject} already served for the older Service ${owner.serviceKey}`;
  return { serviceKey, reason: 'Overlap', field, message };
}

/** As written in the annotation; none for all ports. */
function conflictingPorts({ match }: VipRequest, owner: VipRequest): string[] {
  if (match.kind === 'port') return [`${match.port}/${match.protocol}`];
  if (match.kind === 'all') return [];
  return commonRanges(match.ranges, rangesOf(owner)).map(({ protocol, from, to }) =>
    from === to ? `${from}/${protocol}` : `${from}-${to}/${protocol}`,
  );
}

function rangesOf(claim: VipRequest): readonly PortRange[] {
  return claim.match.kind === 'ranges' ? claim.match.ranges : [];
}

function unlessSame(winner: VipRequest | undefined, claim: VipRequest): VipRequest | undefined {
  return winner === undefined || winner.id === claim.id ? undefined : winner;
}

function addServices(claims: readonly VipRequest[], affected: Set<ObjectKey>): void {
  for (const claim of claims) affected.add(claim.serviceKey);
}
