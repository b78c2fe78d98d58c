/** Splits a change of the maps into transactions, so that a packet never finds a half-changed Service. */
import type { IpFamily } from '../api/objects.ts';
import { finish, type Steps } from '../api/steps.ts';
import { elementId, type MapElement } from './element.ts';
import { overlapSteps } from './intervals.ts';
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
  /** Deletions of the old dispatch elements that the commit did not delete, once the new elements exist. */
  readonly withdraw: Phase;
  /** Deletions of elements that packets in flight may still look up. */
  readonly cleanup: Phase;
}

/**
 * Orders a change: new dispatch elements are added before the old ones are deleted.
 *
 * A packet is looked up in one map after the other, and a transaction can land between two lookups. Changes of interval
 * maps (nft_set_pipapo) even take effect a moment after the rest of their transaction. With additions and deletions in
 * one transaction, such a packet could miss both the old and the new element. While both elements exist, the lookup
 * order of the dispatch maps decides.
 */
export function phasesOf(diff: PlanDiff, family: IpFamily): Phases {
  return finish(phaseSteps(diff, family));
}

/** As `phasesOf`, in steps. */
export function* phaseSteps({ deletes, adds, cleanup }: PlanDiff, family: IpFamily): Steps<Phases> {
  const isAllowedSource = ({ map }: MapElement) => map.startsWith('allowed-');
  const isNotAllowedSource = (element: MapElement) => !isAllowedSource(element);
  const added = adds.filter(isNotAllowedSource);
  const addedKeys = new Set<string>();
  for (const element of added) {
    yield undefined;
    addedKeys.add(elementId(element));
  }
  const deleted = deletes.filter(isNotAllowedSource);
  // The kernel refuses overlapping ranges, so the transaction that adds ranges must delete the ranges they overlap.
  const displaced = new Set(yield* overlapSteps(deleted, added, family));
  const replaced: MapElement[] = [];
  const withdrawn: MapElement[] = [];
  for (const element of deleted) {
    yield undefined;
    const isReplaced = displaced.has(element) || addedKeys.has(elementId(element));
    (isReplaced ? replaced : withdrawn).push(element);
  }
  return {
    prepare: { deletes: deletes.filter(isAllowedSource), adds: adds.filter(isAllowedSource) },
    commit: { deletes: replaced, adds: added },
    withdraw: { deletes: withdrawn, adds: [] },
    cleanup: { deletes: cleanup, adds: [] },
  };
}
