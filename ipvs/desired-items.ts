/** Desired items with their reference counts. */
import type { IpsetEntry } from '../netlink/ipset/ipset.ts';
import type { IpvsServiceKey } from '../netlink/ipvs/ipvs.ts';
import { type EntryItem, type IpvsItem, itemKey, sameItem } from './items.ts';
import { isRanged, RangeIndex } from './port-ranges.ts';
import type { SetName } from './sets.ts';

interface ReferencedItem {
  item: IpvsItem;
  references: number;
}

/** Change of a desired item since the last `takeChanges`. */
export interface ItemChange {
  readonly before: IpvsItem | undefined;
  readonly after: IpvsItem | undefined;
}

/** The desired items that a comparison with the kernel needs. */
export interface ItemView {
  items(): Iterable<IpvsItem>;
  /** @param key as of `itemKey`. */
  has(key: string): boolean;
  /** Parts of an entry in the kernel that no desired entry covers. */
  undesiredParts(item: EntryItem): EntryItem[];
}

/**
 * All desired items of one family. Counts the Routes that reference each item, because two Routes
 * may share a VIP or a pod. Records changes until `takeChanges`.
 */
export class DesiredItems implements ItemView {
  readonly #referenced = new Map<string, ReferencedItem>();
  readonly #ranges = new RangeIndex();
  /** Number of desired entries by set. */
  readonly #entries = new Map<SetName, number>();
  /**
   * Changed items with their value at the last `takeChanges`; undefined: the item did not exist.
   */
  #changed = new Map<string, IpvsItem | undefined>();

  /**
   * Adds a Route's reference to an item. If two Routes differ in the value of the item, the value
   * of the later Route is used.
   */
  addReference(item: IpvsItem): void {
    const key = itemKey(item);
    const found = this.#referenced.get(key);
    if (found === undefined) {
      this.#recordChange(key, undefined);
      this.#referenced.set(key, { item, references: 1 });
      this.#index(item, 'add');
      return;
    }
    found.references += 1;
    if (sameItem(found.item, item)) return;
    this.#recordChange(key, found.item);
    this.#index(found.item, 'delete');
    this.#index(item, 'add');
    found.item = item;
  }

  /**
   * Removes a Route's reference. An item without references is no longer desired.
   * @throws TypeError if the item has no reference.
   */
  removeReference(item: IpvsItem): void {
    const key = itemKey(item);
    const found = this.#referenced.get(key);
    if (found === undefined) throw new TypeError(`item has no reference: ${key}`);
    found.references -= 1;
    if (found.references > 0) return;
    this.#recordChange(key, found.item);
    this.#referenced.delete(key);
    this.#index(found.item, 'delete');
  }

  /**
   * Like `removeReference`, but records no change, for a caller that removes the item from the
   * kernel.
   * @returns whether the item is no longer desired and must be removed.
   */
  removeReferenceUnrecorded(item: IpvsItem): boolean {
    this.removeReference(item);
    const key = itemKey(item);
    if (this.#referenced.has(key)) return false;
    this.#changed.delete(key);
    return true;
  }

  #index(item: IpvsItem, action: 'add' | 'delete'): void {
    if (item.kind !== 'entry') return;
    const count = this.#entries.get(item.set) ?? 0;
    this.#entries.set(item.set, action === 'add' ? count + 1 : count - 1);
    if (isRanged(item.set)) this.#ranges[action](item);
  }

  /** Parts of an undesired entry that no desired entry covers. */
  undesiredParts(item: EntryItem): EntryItem[] {
    if (!isRanged(item.set)) return [item];
    return this.#ranges.uncovered(item).map((entry) => ({ ...item, entry }));
  }

  #recordChange(key: string, before: IpvsItem | undefined): void {
    if (!this.#changed.has(key)) this.#changed.set(key, before);
  }

  has(key: string): boolean {
    return this.#referenced.has(key);
  }

  /** Whether the item has more than one reference. */
  isShared(key: string): boolean {
    return (this.#referenced.get(key)?.references ?? 0) > 1;
  }

  get(key: string): IpvsItem | undefined {
    return this.#referenced.get(key)?.item;
  }

  /** The items that the kernel should have: without the changes since the last `takeChanges`. */
  applied(): ItemView & { get(key: string): IpvsItem | undefined } {
    const get = (key: string) => (this.#changed.has(key) ? this.#changed.get(key) : this.get(key));
    const current = this;
    return {
      get,
      has: (key) => get(key) !== undefined,
      *items() {
        for (const [key, { item }] of current.#referenced)
          if (!current.#changed.has(key)) yield item;
        for (const before of current.#changed.values()) if (before !== undefined) yield before;
      },
      undesiredParts: (item) => {
        const parts = this.undesiredParts(item);
        if (!isRanged(item.set)) return parts;
        // The index no longer has ranges that are to be removed, and already has ranges to be added.
        const removed = new RangeIndex();
        for (const before of this.#changed.values()) {
          if (before?.kind === 'entry' && isRanged(before.set)) removed.add(before);
        }
        return parts.flatMap((part) =>
          removed.uncovered(part).map((entry) => ({ ...part, entry })),
        );
      },
    };
  }

  *items(): Iterable<IpvsItem> {
    for (const { item } of this.#referenced.values()) yield item;
  }

  /** Number of desired entries of a set; a port range counts as one entry. */
  countOf(set: SetName): number {
    return this.#entries.get(set) ?? 0;
  }

  /** Finds a service with a desired destination whose key passes the test; undefined: none. */
  findServiceWithDestination(passes: (key: string) => boolean): IpvsServiceKey | undefined {
    for (const [key, { item }] of this.#referenced) {
      if (item.kind === 'destination' && passes(key)) return item.service;
    }
    return undefined;
  }

  /** Whether changes were recorded since the last `takeChanges`. */
  get hasChanges(): boolean {
    return this.#changed.size > 0;
  }

  /** Desired entries of one set. */
  *entriesOf(set: SetName): Iterable<IpsetEntry> {
    for (const item of this.items()) {
      if (item.kind === 'entry' && item.set === set) yield item.entry;
    }
  }

  /** Discards recorded changes, before a full sync. */
  discardChanges(): void {
    this.#changed = new Map();
  }

  /** Returns the changes since the last call, for the caller to apply. */
  takeChanges(): ItemChange[] {
    const changed = this.#changed;
    this.#changed = new Map();
    const differences: ItemChange[] = [];
    for (const [key, before] of changed) {
      const after = this.get(key);
      if (before === undefined && after === undefined) continue;
      if (before !== undefined && after !== undefined && sameItem(before, after)) continue;
      differences.push({ before, after });
    }
    return differences;
  }
}
