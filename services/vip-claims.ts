/** Which Services have an address: its cluster IP, a load balancer IP, or an external IP. */
import { compareText, setList } from '../api/collections.ts';
import type { ObjectKey } from '../api/objects.ts';
import { CLAIM_KINDS, type VipClaim } from './vip-requests.ts';

/** Claims of an address that are decided differently after a change of its first claim. */
export interface ClaimChange {
  readonly vip: string;
  readonly claims: readonly VipClaim[];
}

/**
 * The claims of Services to addresses. A cluster IP belongs to its Service alone. External IPs get nothing of an address
 * that is the load balancer IP of another Service. Age decides only between claims of one kind.
 */
export class VipClaims {
  /** By address; the strongest kind first, then by priority. */
  readonly #byVip = new Map<string, readonly VipClaim[]>();
  /** By Service and address. */
  readonly #byService = new Map<ObjectKey, ReadonlyMap<string, VipClaim>>();

  /** Replaces the claims of a Service. */
  replace(serviceKey: ObjectKey, claims: readonly VipClaim[]): ClaimChange[] {
    const known = this.#byService.get(serviceKey) ?? new Map<string, VipClaim>();
    const after = new Map(claims.map((claim) => [claim.vip, claim]));
    if (after.size > 0) this.#byService.set(serviceKey, after);
    else this.#byService.delete(serviceKey);
    return [...new Set([...known.keys(), ...after.keys()])].flatMap((vip): ClaimChange[] => {
      const [old, now] = [known.get(vip), after.get(vip)];
      if (old?.kind === now?.kind && old?.priority === now?.priority) return [];
      const first = this.at(vip)[0];
      if (old !== undefined) this.#remove(old);
      if (now !== undefined) this.#insert(now);
      return [{ vip, claims: this.#decidedBy(vip, first, serviceKey) }];
    });
  }

  /** The claims to an address, the strongest first. */
  at(vip: string): readonly VipClaim[] {
    return this.#byVip.get(vip) ?? [];
  }

  /** The claim that keeps a Service from the address; undefined if the Service may request ports of it. */
  ownerOver(serviceKey: ObjectKey, vip: string): VipClaim | undefined {
    const first = this.at(vip)[0];
    if (first === undefined || first.serviceKey === serviceKey) return undefined;
    if (first.kind === 'cluster') return first;
    if (first.kind !== 'loadBalancer') return undefined;
    return this.#byService.get(serviceKey)?.get(vip)?.kind === 'external' ? first : undefined;
  }

  /** The claims that a change of the first claim decides differently, without the claims of the changed Service. */
  #decidedBy(vip: string, before: VipClaim | undefined, serviceKey: ObjectKey): VipClaim[] {
    const claims = this.at(vip);
    const after = claims[0];
    if (before?.serviceKey === after?.serviceKey && before?.kind === after?.kind) return [];
    const kinds = [before?.kind, after?.kind];
    const isDecided = ({ kind }: VipClaim) =>
      kinds.includes('cluster') || (kind === 'external' && kinds.includes('loadBalancer'));
    return claims.filter((claim) => claim.serviceKey !== serviceKey && isDecided(claim));
  }

  #insert(claim: VipClaim): void {
    this.#byVip.set(claim.vip, insertSorted(this.at(claim.vip), claim, compareClaims));
  }

  #remove(claim: VipClaim): void {
    const left = this.at(claim.vip).filter(({ serviceKey }) => serviceKey !== claim.serviceKey);
    setList(this.#byVip, claim.vip, left);
  }
}

/** A copy of a sorted list with another value. */
function insertSorted<T>(
  sorted: readonly T[],
  value: T,
  compare: (a: T, b: T) => number,
): readonly T[] {
  return sorted.toSpliced(indexIn(sorted, value, compare), 0, value);
}

/** Where a value stands, or would stand, in a sorted list. */
export function indexIn<T>(
  sorted: readonly T[],
  value: T,
  compare: (a: T, b: T) => number,
): number {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (compare(sorted[middle] as T, value) < 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

function compareClaims(a: VipClaim, b: VipClaim): number {
  const rank = ({ kind }: VipClaim) => CLAIM_KINDS.indexOf(kind);
  return rank(a) - rank(b) || compareText(a.priority, b.priority);
}
