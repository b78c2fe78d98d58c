/** Element changes as operations of a transaction. */
import type { NftElementChange } from '../netlink/nftables/tables.ts';
import type { MapElement } from './element.ts';
import { isOrderedMap } from './maps.ts';
import type { Phase } from './phases.ts';

/** Element changes collected for one transaction. */
export class PendingChanges {
  #removed: MapElement[] = [];
  #added: MapElement[] = [];

  get size(): number {
    return this.#added.length;
  }

  get added(): readonly MapElement[] {
    return this.#added;
  }

  add(element: MapElement, isReplaced: boolean): void {
    if (isReplaced) this.#removed.push(element);
    this.#added.push(element);
  }

  remove(element: MapElement): void {
    this.#removed.push(element);
  }

  take(): NftElementChange[] {
    const changes = [...changesOf('delete', this.#removed), ...changesOf('add', this.#added)];
    this.#removed = [];
    this.#added = [];
    return changes;
  }
}

/** The operations of one phase. */
export function phaseChanges({ deletes, adds }: Phase): NftElementChange[] {
  return [...changesOf('delete', deletes), ...changesOf('add', adds)];
}

/** The operations that add or delete elements, one for each map. */
export function changesOf(
  action: NftElementChange['action'],
  elements: readonly MapElement[],
): NftElementChange[] {
  return [...Map.groupBy(elements, ({ map }) => map)].map(([set, some]) => ({
    action,
    set,
    isOrdered: isOrderedMap(set),
    elements: action === 'add' ? some : some.map(({ data: _, ...rest }) => rest),
  }));
}
