/** The transactions that bring a difference into the kernel, in their order. */
import type { IpFamily } from '../api/objects.ts';
import { elementId, type MapElement } from './element.ts';
import { isInterval, overlapping } from './intervals.ts';
import { isDispatchMap } from './maps.ts';
import type { PlanDiff } from './plan.ts';

/** What is done in one transaction. */
export interface Phase {
  readonly deletes: readonly MapElement[];
  readonly adds: readonly MapElement[];
}

/** The transactions that make a difference, in their order. */
export interface Phases {
  /** What new ways lead to, and has to be there first. */
  readonly prepare: Phase;
  readonly commit: Phase;
  /** Ways that nobody has to take any more, once the new ones are there. */
  readonly withdraw: Phase;
  /** What packets that are under way may still be looking for. */
  readonly cleanup: Phase;
}

/**
 * A packet is looked up in one map after the other, and a transaction may come in between; and what
 * changes in maps of ranges (nft_set_pipapo) the kernel puts in force a moment after the rest of the
 * transaction. Such a packet would find neither the old way nor the new one. So new ways come before
 * old ones go; the precedence on a VIP holds between them meanwhile.
 */
export function phasesOf({ deletes, adds, cleanup }: PlanDiff, family: IpFamily): Phases {
  const isAhead = ({ map }: MapElement) => isInterval(map) && !isDispatchMap(map);
  const isNotAhead = (element: MapElement) => !isAhead(element);
  const ahead = { deletes: deletes.filter(isAhead), adds: adds.filter(isAhead) };
  const added = adds.filter(isNotAhead);
  const addedKeys = new Set(added.map(elementId));
  const ways = deletes.filter(isNotAhead);
  // The kernel cannot have these beside what is added.
  const displaced = new Set(overlapping(ways, added, family));
  const goesAtOnce = (way: MapElement) => displaced.has(way) || addedKeys.has(elementId(way));
  return {
    prepare: ahead,
    commit: { deletes: ways.filter(goesAtOnce), adds: added },
    withdraw: { deletes: ways.filter((way) => !goesAtOnce(way)), adds: [] },
    cleanup: { deletes: cleanup, adds: [] },
  };
}
