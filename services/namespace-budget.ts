/** How much of a node the Services of one namespace may take: port ranges and owned ports, and listed ports of large Services. */
import { annotationField, PORTS_ANNOTATION, type ServiceRefusal } from '../api/all-ports.ts';
import { compareText } from '../api/collections.ts';
import { namespaceOf, type ObjectKey } from '../api/objects.ts';
import { OWNED_PORTS_ANNOTATION, sliceCount } from '../api/owned-ports.ts';
import type { ServedPort } from './served-ports.ts';
import { indexIn } from './vip-claims.ts';
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
  /** The same claims, the oldest first. */
  readonly byAge: Claim[];
  /** Cost of all claims. */
  sum: number;
  readonly refusals: Map<ObjectKey, Refused>;
}

interface Refused {
  readonly claim: Claim;
  readonly refusal: ServiceRefusal;
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
    const known = this.#accounts.get(namespace);
    const before = known?.claims.get(serviceKey);
    if (cost === 0 && before === undefined) return new Set();
    const account = known ?? newAccount();
    const { claims, byAge } = account;
    if (before !== undefined) {
      claims.delete(serviceKey);
      byAge.splice(indexIn(byAge, before, compareClaims), 1);
    }
    if (cost > 0 && first !== undefined) {
      const field = this.#resource.fieldOf(ports);
      const priority = priorityOf(first, serviceKey, creationTimestamp);
      const claim = { serviceKey, cost, field, priority };
      claims.set(serviceKey, claim);
      byAge.splice(indexIn(byAge, claim, compareClaims), 0, claim);
    }
    account.sum += cost - (before?.cost ?? 0);
    if (claims.size === 0) this.#accounts.delete(namespace);
    else this.#accounts.set(namespace, account);
    return this.#settle(namespace, account);
  }

  /** Why the Service is refused; undefined if it is not. */
  refusal(serviceKey: ObjectKey): ServiceRefusal | undefined {
    return this.#accounts.get(namespaceOf(serviceKey))?.refusals.get(serviceKey)?.refusal;
  }

  /** What the Service takes of the budget; 0 if it is refused. */
  costOf(serviceKey: ObjectKey): number {
    const account = this.#accounts.get(namespaceOf(serviceKey));
    if (account === undefined || account.refusals.has(serviceKey)) return 0;
    return account.claims.get(serviceKey)?.cost ?? 0;
  }

  #settle(namespace: string, { claims, byAge, sum, refusals }: Account): Set<ObjectKey> {
    const changed = new Set<ObjectKey>();
    for (const key of refusals.keys()) {
      if (claims.has(key) && sum > this.#resource.limit) continue;
      refusals.delete(key);
      changed.add(key);
    }
    if (sum <= this.#resource.limit) return changed;
    let left = this.#resource.limit;
    for (const claim of byAge) {
      const { serviceKey, cost } = claim;
      if (cost <= left) {
        left -= cost;
        if (refusals.delete(serviceKey)) changed.add(serviceKey);
      } else if (!isSameClaim(refusals.get(serviceKey)?.claim, claim)) {
        refusals.set(serviceKey, { claim, refusal: this.#refuse(namespace, claim) });
        changed.add(serviceKey);
      }
    }
    return changed;
  }

  #refuse(namespace: string, { serviceKey, cost, field }: Claim): ServiceRefusal {
    const { limit, name, advice } = this.#resource;
    const message = `${cost} ${name} are more than older Services leave of the ${limit} for namespace ${namespace} on a node; ${advice}`;
    return { serviceKey, reason: 'Budget', field, message };
  }
}

/** Whether two claims of a Service are refused with the same words. */
function isSameClaim(a: Claim | undefined, b: Claim): boolean {
  return a !== undefined && a.cost === b.cost && a.field === b.field;
}

function compareClaims(a: Claim, b: Claim): number {
  return compareText(a.priority, b.priority);
}

function newAccount(): Account {
  return { claims: new Map(), byAge: [], sum: 0, refusals: new Map() };
}
