/** Splits a change of the maps into transactions, so that a packet never finds a half-changed Service. */
import type { IpFamily } from '../api/objects.ts';
import { elementId, type MapElement } from './element.ts';
import { isIntervalMap, overlappingElements } from './intervals.ts';
import { isDispatchMap } from './maps.ts';
import type { PlanDiff } from './plan.ts';

/** Element changes of one transaction. */
export interface Phase {
  readonly deletes: readonly MapElement[];
  readonly adds: readonly MapElement[];
}

/** The transactions of a change, in their order. */
export interface Phases {
  /**
   * Changes of the sets of allowed sources (`allowed-*`, from loadBalancerSourceRanges), which the
   * chains of new dispatch elements look up.
   */
  readonly prepare: Phase;
  /** Additions, and deletions of elements with the same key or an overlapping range. */
  readonly commit: Phase;
  /** Deletions of the other old dispatch elements, once the new ones exist. */
  readonly withdraw: Phase;
  /** Deletions of elements that packets in flight may still look up. */
  readonly cleanup: Phase;
}

/**
 * Orders a change: new dispatch elements are added before the old ones are deleted.
 *
 * A packet is looked up in one map after the other, and a transaction can land between two lookups. Changes of interval
 * maps (nft_set_pipapo) even take effect a moment after the rest of their transaction. With additions and deletions in
 * one transaction, such a packet could miss both. While the old and the new element exist, the precedence on the VIP
 * decides.
 */
export function phasesOf({ deletes, adds, cleanup }: PlanDiff, family: IpFamily): Phases {
  const isRangeLookup = ({ map }: MapElement) => isIntervalMap(map) && !isDispatchMap(map);
  const isOther = (element: MapElement) => !isRangeLookup(element);
  const added = adds.filter(isOther);
  const addedKeys = new Set(added.map(elementId));
  const deleted = deletes.filter(isOther);
  // The kernel refuses overlapping ranges, so these must be deleted in the transaction that adds the new ranges.
  const displaced = new Set(overlappingElements(deleted, added, family));
  const isReplaced = (element: MapElement) =>
    displaced.has(element) || addedKeys.has(elementId(element));
  return {
    prepare: { deletes: deletes.filter(isRangeLookup), adds: adds.filter(isRangeLookup) },
    commit: { deletes: deleted.filter(isReplaced), adds: added },
    withdraw: { deletes: deleted.filter((element) => !isReplaced(element)), adds: [] },
    cleanup: { deletes: cleanup, adds: [] },
  };
}
