/** Divides a change of many owners of ports into steps: a slice does not depend on others, so each step is a valid Route. */
import { isDeepStrictEqual } from 'node:util';
import { isSameOwner, ownerPairs } from '../endpoints/slice-owners.ts';
import { ownerEndpoints } from './resolve-route.ts';
import type { Route } from './route.ts';

/** A Service with the most slices has 65,535. Each step also costs a look at all of them, so it has few steps. */
const MAX_STEPS = 16;

/**
 * The next version of a Route on the way to the wanted one.
 * @param before undefined if the Service had no Route.
 * @param owners number of owners that may change, unless that makes more steps than `MAX_STEPS`.
 * @returns `wanted` itself if it differs by no more owners, or by other things.
 */
export function nextStep(before: Route | undefined, wanted: Route, owners: number): Route {
  const { owned } = wanted;
  if (owned === undefined || owned.owners.length + (before?.owned?.owners.length ?? 0) <= owners)
    return wanted;
  if (before !== undefined && !isDeepStrictEqual(withoutOwners(before), withoutOwners(wanted)))
    return wanted;
  const known = before?.owned?.owners ?? [];
  const most = Math.max(known.length, owned.owners.length);
  const limit = Math.max(owners, Math.ceil(most / MAX_STEPS));
  const pairs = [...ownerPairs(known, owned.owners)];
  const changed = pairs.filter((pair) => !isSameOwner(...pair));
  if (changed.length <= limit) return wanted;
  // First the owners that leave the Service: a pod of another one may get their address. Other changes, which a tenant can make
  // without end, must not hold these up.
  const staying = new Set(owned.owners.map(({ address }) => address));
  const isLeaving = ([old]: (typeof pairs)[number]) =>
    old !== undefined && !staying.has(old.address);
  const { leaving = [], others = [] } = Object.groupBy(changed, (pair) =>
    isLeaving(pair) ? 'leaving' : 'others',
  );
  const changing = new Set([...leaving, ...others].slice(0, limit));
  const next = pairs.flatMap((pair) => {
    const [old, now] = pair;
    return (isSameOwner(old, now) || changing.has(pair) ? now : old) ?? [];
  });
  return { ...wanted, ...ownerEndpoints(next), owned: { ...owned, owners: next } };
}

/** Everything but the owners, and the endpoints that they are. */
export function withoutOwners({ owned, ...route }: Route): Omit<Route, 'owned'> {
  return { ...route, ...ownerEndpoints([]), ...(owned && { owned: { ...owned, owners: [] } }) };
}
