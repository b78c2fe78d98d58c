/** Reduces a change of owned ports to the owners that change, so that it costs no more than they do. */
import { isDeepStrictEqual } from 'node:util';
import { isSameOwner, ownerPairs, type SliceOwner } from '../endpoints/slice-owners.ts';
import { withoutOwners } from '../services/owner-steps.ts';
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
  if (!isDeepStrictEqual(frameOf(before), frameOf(after))) return [before, after];
  const addresses = changedAddresses(old.owners, now.owners);
  const reduce = (planned: PlannedRoute, owned: OwnedSlices): PlannedRoute => {
    const owners = owned.owners.filter(({ address }) => addresses.has(address));
    return { ...planned, route: { ...planned.route, owned: { ...owned, owners } } };
  };
  return [reduce(before, old), reduce(after, now)];
}

/** Everything but the owners. Source ranges apply only if an owner serves. */
function frameOf({ route, ...state }: PlannedRoute) {
  const { hasEndpointsAnywhere } = route;
  return { ...state, hasEndpointsAnywhere, route: withoutOwners(route) };
}

/** Addresses of owners that differ. */
function changedAddresses(
  before: readonly SliceOwner[],
  after: readonly SliceOwner[],
): Set<string> {
  const addresses = new Set<string>();
  for (const [old, now] of ownerPairs(before, after)) {
    if (isSameOwner(old, now)) continue;
    if (old !== undefined) addresses.add(old.address);
    if (now !== undefined) addresses.add(now.address);
  }
  return addresses;
}
