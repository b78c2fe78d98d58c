/** How much of a node the port ranges and owned ports of one namespace may take. */
import { annotationField, PORTS_ANNOTATION, type ServiceRefusal } from '../api/all-ports.ts';
import { compareText, getOrCreate } from '../api/collections.ts';
import { namespaceOf, type ObjectKey } from '../api/objects.ts';
import { OWNED_PORTS_ANNOTATION, sliceCount } from '../api/owned-ports.ts';
import type { ServedPort } from './served-ports.ts';
import { priorityOf, vipFields } from './vip-requests.ts';

/** What the Services of a namespace may have on a node, counted once for each VIP. */
export interface RangeLimit {
  readonly max: number;
  /** `ranges`: ranges and slices. `ports`: each port of a range, in a mode that writes them one by one. */
  readonly unit: 'ranges' | 'ports';
}

/** 256 VIPs with the most ranges, or 4 with the most slices. */
const RANGE_LIMIT: RangeLimit = { max: 2 ** 18, unit: 'ranges' };

const COUNTED = { ranges: 'ranges and slices', ports: 'ports of ranges' };

/** What ranges and slices of a Service cost, on all VIPs; 0 for a Service with listed ports or all ports. */
export function rangeCost(
  ports: readonly ServedPort[],
  unit: RangeLimit['unit'] = 'ranges',
): number {
  let cost = 0;
  for (const port of ports) {
    if (port.match.kind !== 'ranges') continue;
    const vips = new Set(vipFields(port).map(([, vip]) => vip)).size;
    const { ownership, sourceRanges = [] } = port;
    if (unit === 'ports') {
      // The kernel stores each port with each allowed source.
      const size = port.match.ranges.reduce((sum, { from, to }) => sum + to - from + 1, 0);
      cost += vips * size * (1 + sourceRanges.length);
      continue;
    }
    const ranges = port.match.ranges.length;
    const slices =
      ownership?.ports.ranges.reduce(
        (sum, range) => sum + sliceCount(range, ownership.ports.portsPerPod),
        0,
      ) ?? 0;
    // The sources of owned ports are allowed for each range.
    const sources = ownership === undefined ? sourceRanges.length : ranges * sourceRanges.length;
    cost += vips * (ranges + slices + sources);
  }
  return cost;
}

/** A Service with ranges. */
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
 * Grants ranges to Services of a namespace, the oldest first (`priorityOf`). A Service that does not fit into what older ones
 * leave is refused, and served once it fits. A change costs a look at the Services with ranges of its namespace, and only if
 * these ask for more than the budget.
 */
export class RangeBudget {
  readonly #limit: RangeLimit;
  readonly #accounts = new Map<string, Account>();

  constructor(limit: RangeLimit = RANGE_LIMIT) {
    this.#limit = limit;
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
    const cost = rangeCost(ports, this.#limit.unit);
    const account = this.#accounts.get(namespace);
    const before = account?.claims.get(serviceKey);
    if (cost === 0 && (account === undefined || before === undefined)) return new Set();
    const { claims, sum } = getOrCreate(this.#accounts, namespace, newAccount);
    claims.delete(serviceKey);
    if (cost > 0 && first !== undefined) {
      const isOwned = ports.some(({ ownership }) => ownership !== undefined);
      const field = annotationField(isOwned ? OWNED_PORTS_ANNOTATION : PORTS_ANNOTATION);
      const priority = priorityOf(first, serviceKey, creationTimestamp);
      claims.set(serviceKey, { serviceKey, cost, field, priority });
    }
    return this.#settle(namespace, sum + cost - (before?.cost ?? 0));
  }

  /** Why the Service is refused; undefined if it is not. */
  refusal(serviceKey: ObjectKey): ServiceRefusal | undefined {
    return this.#accounts.get(namespaceOf(serviceKey))?.refusals.get(serviceKey);
  }

  /** See `rangeCost`; also of a refused Service. */
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
    const { max, unit } = this.#limit;
    let left = max;
    const byAge =
      sum <= max ? [] : [...claims.values()].sort((a, b) => compareText(a.priority, b.priority));
    for (const { serviceKey, cost, field } of byAge) {
      if (cost <= left) {
        left -= cost;
        continue;
      }
      const message = `${cost} ${COUNTED[unit]} are more than older Services leave of the ${max} for namespace ${namespace} on a node; list fewer ranges, or use all ports`;
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
