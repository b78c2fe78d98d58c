/** The changes of map elements from one state to another. */
import type { IpFamily } from '../api/objects.ts';
import type { Steps } from '../api/steps.ts';
import { hasSameData } from '../nft/element.ts';
import type { MapElement } from './element.ts';
import { overlapSteps } from './intervals.ts';
import { isDispatchMap, isNoEndpointMap } from './maps.ts';

/** See `PlanDiff`. */
interface ElementDiff {
  readonly deletes: MapElement[];
  readonly adds: MapElement[];
  readonly cleanup: MapElement[];
}

/**
 * Compares elements, which are known by `elementId`.
 * @param after loses the elements that do not change.
 */
export function* elementDiffSteps(
  before: ReadonlyMap<string, MapElement>,
  after: Map<string, MapElement>,
  family: IpFamily,
): Steps<ElementDiff> {
  const deletes: MapElement[] = [];
  const removed: MapElement[] = [];
  for (const [key, element] of before) {
    yield undefined;
    const now = after.get(key);
    if (now !== undefined && hasSameData(element, now)) after.delete(key);
    else if (now !== undefined || isRemovedFirst(element)) deletes.push(element);
    else removed.push(element);
  }
  const adds = [...after.values()];
  const displaced = new Set(yield* overlapSteps(removed, adds, family));
  for (const element of displaced) deletes.push(element);
  return { deletes, adds, cleanup: removed.filter((element) => !displaced.has(element)) };
}

/** Whether the element must be deleted before the lookup elements of its dispatch chain. */
export function isRemovedFirst({ map }: MapElement): boolean {
  return isDispatchMap(map) && !isNoEndpointMap(map);
}
