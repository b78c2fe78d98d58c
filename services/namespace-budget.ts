/** How much of a node the Services of one namespace may take: port ranges and owned ports, and listed ports of large Services. */
import { annotationField, PORTS_ANNOTATION, type ServiceRefusal } from '../api/all-ports.ts';
import { compareText, getOrCreate } from '../api/collections.ts';
import { namespaceOf, type ObjectKey } from '../api/objects.ts';
import { OWNED_PORTS_ANNOTATION, sliceCount } from '../api/owned-ports.ts';
import type { ServedPort } from './served-ports.ts';
import { priorityOf, vipFields } from './vip-requests.ts';

/** What a budget limits. */
export interface Resource {
  /** How much of it the Services of a namespace may have on a node. */
  readonly limit: number;
  /** A Service with so much of it, or less, takes nothing of the budget. */
  readonly free: number;
  costOf(ports: readonly ServedPort[]): number;
  /** The field that a refusal names. */
  fieldOf(ports: readonly ServedPort[]): string;
  /** What is counted, and what to do if it is too much, for the message of a refusal. */
  readonly name: string;
  readonly advice: string;
}

/** How many ranges the Services of a namespace may have on a node, on all VIPs together. */
export interface RangeLimit {
  readonly max: number;
  /** `ranges`: see `rangeCost`. `ports`: see `portCost`, for a mode that writes each port. */
  readonly unit: 'ranges' | 'ports';
}

/** 256 VIPs with the most ranges, or 4 with the most slices. */
const RANGE_LIMIT: RangeLimit = { max: 2 ** 18, unit: 'ranges' };

/** Ranges and slices, or ports of ranges. */
export function rangeBudget({ max, unit } = RANGE_LIMIT): NamespaceBudget {
  return new NamespaceBudget({
    limit: max,
    free: 0,
    costOf: unit === 'ranges' ? rangeCost : portCost,
    fieldOf: (ports) => {
      const isOwned = ports.some(({ ownership }) => ownership !== undefined);
      return annotationField(isOwned ? OWNED_PORTS_ANNOTATION : PORTS_ANNOTATION);
    },
    name: unit === 'ranges' ? 'ranges and slices' : 'ports of ranges',
    advice: 'list fewer ranges or source ranges, or use all ports',
  });
}

/**
 * Entries of listed ports, see `entryCost`. Changes of other Services wait for a sync of 32,768 entries, which takes mode nftables
 * about a second. Small Services are not counted: they all work, as with kube-proxy.
 */
export function entryBudget(limit: number = 2 ** 15): NamespaceBudget {
  return new NamespaceBudget({
    limit,
    free: 1024,
    costOf: entryCost,
    fieldOf: () => 'spec.ports',
    name: 'entries (listed ports times addresses and their source ranges)',
    advice: 'list fewer ports, addresses or source ranges, or use port ranges',
  });
}

/**
 * What a source range counts for each range of owned ports. They are elements of set `allowed-ranges` in mode nftables, where an
 * added element costs the size of the set. A change of 1,000 takes 0.4 s, of 10,000 17 s.
 */
const OWNED_SOURCE_COST = 256;

/** The ranges and slices of a Service, each counted once for each VIP; 0 for a Service with listed ports or all ports. */
export function rangeCost(ports: readonly ServedPort[]): number {
  let cost = 0;
  for (const port of ports) {
    if (port.match.kind !== 'ranges') continue;
    const { ownership, sourceRanges = [], loadBalancerIPs } = port;
    const ranges = port.match.ranges.length;
    const slices =
      ownership?.ports.ranges.reduce(
        (sum, range) => sum + sliceCount(range, ownership.ports.portsPerPod),
        0,
      ) ?? 0;
    const perSource = ownership === undefined ? 1 : ranges * OWNED_SOURCE_COST;
    cost += vipCount(port) * (ranges + slices);
    cost += loadBalancerIPs.length * sourceRanges.length * perSource;
  }
  return cost;
}

/** The ports in ranges of a Service, each counted once for each VIP, and on load balancer IPs once more for each source range. */
export function portCost(ports: readonly ServedPort[]): number {
  let cost = 0;
  for (const port of ports) {
    if (port.match.kind !== 'ranges') continue;
    const { sourceRanges = [], loadBalancerIPs } = port;
    const size = port.match.ranges.reduce((sum, { from, to }) => sum + to - from + 1, 0);
    cost += size * (vipCount(port) + loadBalancerIPs.length * sourceRanges.length);
  }
  return cost;
}

/**
 * The listed ports of a Service, each counted once for each VIP, and there once more for each source range; 0 for a Service
 * with port ranges or all ports.
 */
export function entryCost(ports: readonly ServedPort[]): number {
  let cost = 0;
  for (const port of ports) {
    if (port.match.kind !== 'port') continue;
    const { sourceRanges = [], loadBalancerIPs } = port;
    cost += vipCount(port) + loadBalancerIPs.length * sourceRanges.length;
  }
  return cost;
}

function vipCount(port: ServedPort): number {
  return new Set(vipFields(port).map(([, vip]) => vip)).size;
}

/** What a Service asks for. */
interface Claim {
  readonly serviceKey: ObjectKey;
  readonly cost: number;
  readonly field: string;
  /** See `priorityOf`. */
  readonly priority: string;
}

interface Account {
  readonly claims: Map<ObjectKey, Claim>;
  /** Cost of all claims. */
  sum: number;
  refusals: Map<ObjectKey, ServiceRefusal>;
}

/**
 * Grants a resource to Services of a namespace, the oldest first (`priorityOf`). A Service that does not fit into what older
 * ones leave is refused, and served once it fits. An older Service that grows takes from younger ones. To keep what is served
 * instead, the agent would need the order of changes, which it does not know after a restart. A change costs a look at the claims of
 * its namespace, and only if these ask for more than the budget.
 */
export class NamespaceBudget {
  readonly #resource: Resource;
  readonly #accounts = new Map<string, Account>();

  constructor(resource: Resource) {
    this.#resource = resource;
  }

  /**
   * Replaces the claim of a Service; no ports if it is deleted.
   * @returns the Services that are newly refused, no longer refused, or refused with another message.
   */
  replaceClaim(
    serviceKey: ObjectKey,
    creationTimestamp: string,
    ports: readonly ServedPort[],
  ): Set<ObjectKey> {
    const namespace = namespaceOf(serviceKey);
    const [first] = ports;
    const wanted = this.#resource.costOf(ports);
    const cost = wanted > this.#resource.free ? wanted : 0;
    const account = this.#accounts.get(namespace);
    const before = account?.claims.get(serviceKey);
    if (cost === 0 && (account === undefined || before === undefined)) return new Set();
    const { claims, sum } = getOrCreate(this.#accounts, namespace, newAccount);
    claims.delete(serviceKey);
    if (cost > 0 && first !== undefined) {
      const field = this.#resource.fieldOf(ports);
      const priority = priorityOf(first, serviceKey, creationTimestamp);
      claims.set(serviceKey, { serviceKey, cost, field, priority });
    }
    return this.#settle(namespace, sum + cost - (before?.cost ?? 0));
  }

  /** Why the Service is refused; undefined if it is not. */
  refusal(serviceKey: ObjectKey): ServiceRefusal | undefined {
    return this.#accounts.get(namespaceOf(serviceKey))?.refusals.get(serviceKey);
  }

  /** What the Service takes of the budget, or would take if it is refused. */
  costOf(serviceKey: ObjectKey): number {
    return this.#accounts.get(namespaceOf(serviceKey))?.claims.get(serviceKey)?.cost ?? 0;
  }

  #settle(namespace: string, sum: number): Set<ObjectKey> {
    const account = getOrCreate(this.#accounts, namespace, newAccount);
    const { claims, refusals: before } = account;
    const refusals = new Map<ObjectKey, ServiceRefusal>();
    account.sum = sum;
    account.refusals = refusals;
    if (claims.size === 0) this.#accounts.delete(namespace);
    const { limit, name, advice } = this.#resource;
    let left = limit;
    const byAge =
      sum <= limit ? [] : [...claims.values()].sort((a, b) => compareText(a.priority, b.priority));
    for (const { serviceKey, cost, field } of byAge) {
      if (cost <= left) {
        left -= cost;
        continue;
      }
      const message = `${cost} ${name} are more than older Services leave of the ${limit} for namespace ${namespace} on a node; ${advice}`;
      refusals.set(serviceKey, { serviceKey, reason: 'Budget', field, message });
    }
    const changed = new Set<ObjectKey>();
    for (const [key, { message }] of refusals)
      if (before.get(key)?.message !== message) changed.add(key);
    for (const key of before.keys()) if (!refusals.has(key)) changed.add(key);
    return changed;
  }
}

function newAccount(): Account {
  return { claims: new Map(), sum: 0, refusals: new Map() };
}
