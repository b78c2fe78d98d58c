/** Divides a change of many owners of ports into steps: a slice does not depend on others, so each step is a valid Route. */
import { isDeepStrictEqual } from 'node:util';
import { isSameOwner, ownerPairs, type SliceOwner } from '../endpoints/slice-owners.ts';
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
  if (before !== undefined && !isDeepStrictEqual(withoutAnyOwner(before), withoutAnyOwner(wanted)))
    return wanted;
  const known = before?.owned?.owners ?? [];
  const most = Math.max(known.length, owned.owners.length);
  const limit = Math.max(owners, Math.ceil(most / MAX_STEPS));
  const next: SliceOwner[] = [];
  let changes = 0;
  for (const [old, now] of ownerPairs(known, owned.owners)) {
    if (!isSameOwner(old, now)) changes += 1;
    const owner = changes > limit ? old : now;
    if (owner !== undefined) next.push(owner);
  }
  if (changes <= limit) return wanted;
  return { ...wanted, ...ownerEndpoints(next), owned: { ...owned, owners: next } };
}

/** The Route without any owner, on the way to its removal. */
export function withoutAnyOwner(route: Route): Route {
  const { owned } = route;
  return owned === undefined
    ? route
    : { ...route, ...ownerEndpoints([]), owned: { ...owned, owners: [] } };
}
