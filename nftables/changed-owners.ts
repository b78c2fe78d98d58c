/** Reduces a change of owned ports to the owners that change, so that it costs no more than they do. */
import { isDeepStrictEqual } from 'node:util';
import type { SliceOwner } from '../endpoints/slice-owners.ts';
import type { OwnedSlices } from '../services/route.ts';
import type { PlannedRoute } from './plan.ts';

/**
 * Two versions of a Route, without the owners that both have in the same way. What `compileOwnedSteps` makes of an owner does
 * not depend on other owners, except for those with the same address, so the reduced versions differ by the same elements
 * and references. If more than the owners differs, the versions are returned as they are.
 */
export function changedOwners(
  before: PlannedRoute,
  after: PlannedRoute,
): readonly [before: PlannedRoute, after: PlannedRoute] {
  const [old, now] = [before.route.owned, after.route.owned];
  if (old === undefined || now === undefined) return [before, after];
  if (!isDeepStrictEqual(withoutOwners(before, old), withoutOwners(after, now)))
    return [before, after];
  const addresses = changedAddresses(old.owners, now.owners);
  const reduce = (planned: PlannedRoute, owned: OwnedSlices): PlannedRoute => {
    const owners = owned.owners.filter(({ address }) => addresses.has(address));
    return { ...planned, route: { ...planned.route, owned: { ...owned, owners } } };
  };
  return [reduce(before, old), reduce(after, now)];
}

/** Everything but the owners and the endpoints, which are the owners. */
function withoutOwners({ route, ...state }: PlannedRoute, owned: OwnedSlices) {
  const { clusterEndpoints, servingEndpoints, notServingEndpoints, ...others } = route;
  const isReachable = clusterEndpoints.length > 0;
  return { ...state, ...others, isReachable, owned: { ...owned, owners: [] } };
}

/** Addresses of owners that differ. @param before, after By ordinal, in ascending order. */
function changedAddresses(
  before: readonly SliceOwner[],
  after: readonly SliceOwner[],
): Set<string> {
  const addresses = new Set<string>();
  const known = new Map(before.map((owner) => [owner.ordinal, owner]));
  for (const owner of after) {
    const old = known.get(owner.ordinal);
    known.delete(owner.ordinal);
    if (old !== undefined && isSameOwner(old, owner)) continue;
    addresses.add(owner.address);
    if (old !== undefined) addresses.add(old.address);
  }
  for (const { address } of known.values()) addresses.add(address);
  return addresses;
}

function isSameOwner(a: SliceOwner, b: SliceOwner): boolean {
  return a.address === b.address && a.serves === b.serves && a.node === b.node;
}
