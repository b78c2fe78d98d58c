/** Splits a change of the maps into transactions, so that a packet never finds a half-changed Service. */
import type { IpFamily } from '../api/objects.ts';
import { elementId, type MapElement } from './element.ts';
import { isInterval, overlapping } from './intervals.ts';
import { isDispatchMap } from './maps.ts';
import type { PlanDiff } from './plan.ts';

/** Element changes of one transaction. */
export interface Phase {
  readonly deletes: readonly MapElement[];
  readonly adds: readonly MapElement[];
}

/** The transactions of a change, in their order. */
export interface Phases {
  /** Ranges of lookup sets, which new dispatch elements depend on. */
  readonly prepare: Phase;
  /** New elements, and old ones that cannot exist beside them. */
  readonly commit: Phase;
  /** Old dispatch elements, which the new ones replace. */
  readonly withdraw: Phase;
  /** Elements that packets in flight may still look up. */
  readonly cleanup: Phase;
}

/**
 * Orders a change: new dispatch elements are added before the old ones are deleted.
 *
 * A packet is looked up in one map after the other, and a transaction can land between two lookups. Changes
 * of interval maps (nft_set_pipapo) even take effect a moment after the rest of their transaction. With
 * additions and deletions in one transaction, such a packet could miss both. While both exist, the
 * precedence on the VIP decides.
 */
export function phasesOf({ deletes, adds, cleanup }: PlanDiff, family: IpFamily): Phases {
  const isRangeLookup = ({ map }: MapElement) => isInterval(map) && !isDispatchMap(map);
  const isOther = (element: MapElement) => !isRangeLookup(element);
  const added = adds.filter(isOther);
  const addedKeys = new Set(added.map(elementId));
  const deleted = deletes.filter(isOther);
  // The kernel refuses these ranges beside the added ones.
  const displaced = new Set(overlapping(deleted, added, family));
  const isReplaced = (element: MapElement) =>
    displaced.has(element) || addedKeys.has(elementId(element));
  return {
    prepare: { deletes: deletes.filter(isRangeLookup), adds: adds.filter(isRangeLookup) },
    commit: { deletes: deleted.filter(isReplaced), adds: added },
    withdraw: { deletes: deleted.filter((element) => !isReplaced(element)), adds: [] },
    cleanup: { deletes: cleanup, adds: [] },
  };
}
