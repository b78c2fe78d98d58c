/** Splits a change of the maps into transactions, so that a packet never finds a half-changed Service. */
import type { IpFamily } from '../api/objects.ts';
import { finish, type Steps } from '../api/steps.ts';
import { elementId, type MapElement } from './element.ts';
import { overlapSteps } from './intervals.ts';
import { fieldWidth, isRangeSet, isTrackedSliceMap, isUdpSliceMap, type MapName } from './maps.ts';
import type { PlanDiff } from './plan.ts';

/** Element changes of one transaction. */
export interface Phase {
  readonly deletes: readonly MapElement[];
  readonly adds: readonly MapElement[];
}

/** The transactions of a change, in their order. */
export interface Phases {
  /**
   * Additions of ports that no packet finds before the commit. They need not become visible together, so several
   * transactions may write them: a Service may have 65,535 slices.
   */
  readonly fill: readonly MapElement[];
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
  const isUnreachable = unreachable(added, [...deleted, ...cleanup], family);
  const fill: MapElement[] = [];
  const committed: MapElement[] = [];
  for (const element of added) {
    yield undefined;
    (isUnreachable(element) ? fill : committed).push(element);
  }
  const replaced: MapElement[] = [];
  const withdrawn: MapElement[] = [];
  for (const element of deleted) {
    yield undefined;
    const isReplaced = displaced.has(element) || addedKeys.has(elementId(element));
    (isReplaced ? replaced : withdrawn).push(element);
  }
  // A slot that another Route or other ranges have after the commit must not have the old ranges meanwhile.
  const withdrawnSlots = new Set(
    withdrawn.flatMap(({ map, key }) => (map === 'range-services' ? key.toString('latin1') : [])),
  );
  const slotLength = fieldWidth('address', family) + fieldWidth('index', family);
  const isOfUsedSlot = ({ map, key }: MapElement) =>
    isRangeSet(map) && !withdrawnSlots.has(key.toString('latin1', 0, slotLength));
  const kept: MapElement[] = [];
  for (const element of cleanup) {
    yield undefined;
    (isOfUsedSlot(element) ? replaced : kept).push(element);
  }
  return {
    fill,
    prepare: { deletes: deletes.filter(isAllowedSource), adds: adds.filter(isAllowedSource) },
    commit: { deletes: replaced, adds: committed },
    withdraw: { deletes: withdrawn, adds: [] },
    cleanup: { deletes: kept, adds: [] },
  };
}

/** Finds added ports whose VIP, owner or slot no packet finds before the commit. */
function unreachable(
  added: readonly MapElement[],
  deleted: readonly MapElement[],
  family: IpFamily,
): (element: MapElement) => boolean {
  const keysIn = (elements: readonly MapElement[], map: MapName) =>
    elements.flatMap((element) => (element.map === map ? element.key.toString('latin1') : []));
  const width = fieldWidth('address', family);
  const isFresh = (map: MapName, length: number) => {
    const before = new Set(keysIn(deleted, map));
    const keys = new Set(keysIn(added, map).filter((key) => !before.has(key)));
    return ({ key }: MapElement) => keys.has(key.toString('latin1', 0, length));
  };
  const hasFreshSlot = isFresh('range-services', width + fieldWidth('index', family));
  const hasFreshVip = isFresh('range-vips', width);
  const hasFreshAddress = isFresh('owned-addresses', width);
  // What a new owner of a known VIP sends must leave as the VIP as soon as packets reach the owner.
  const hasFreshOwnedVip = keysIn(added, 'owned-vips').length > 0;
  // Another Service may have had an element with this key, or ranges that overlap, until the commit.
  const withDeletions = new Set(deleted.map(({ map }) => map));
  return (element) => {
    const { map } = element;
    if (withDeletions.has(map)) return false;
    if (isRangeSet(map)) return hasFreshSlot(element);
    if (isTrackedSliceMap(map)) return hasFreshVip(element);
    return hasFreshOwnedVip && isUdpSliceMap(map) && hasFreshAddress(element);
  };
}
