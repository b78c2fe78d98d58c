/** The items that are wanted, and how many Routes want each. */
import type { IpsetEntry } from '../netlink/ipset/ipset.ts';
import type { IpvsServiceKey } from '../netlink/ipvs/ipvs.ts';
import { type EntryItem, type Item, itemKey, sameItem } from './items.ts';
import { isRanged, RangeIndex } from './port-ranges.ts';
import type { SetName } from './sets.ts';

interface ReferencedItem {
  item: Item;
  references: number;
}

/** One difference between what the kernel should hold and what it held before. */
export interface ItemChange {
  readonly before: Item | undefined;
  readonly after: Item | undefined;
}

/**
 * All that the kernel should hold, with how many Routes ask for each (two may share a VIP, or
 * a pod), and what of it changed since it was last taken.
 */
export class DesiredItems {
  readonly #referenced = new Map<string, ReferencedItem>();
  readonly #ranges = new RangeIndex();
  /** How many entries each set should have. */
  readonly #entries = new Map<SetName, number>();
  /** Items as they were when they last were taken; undefined: there was none. */
  #changed = new Map<string, Item | undefined>();

  /** One more Route asks for it. Where two differ in its value, the later is right. */
  addReference(item: Item): void {
    const key = itemKey(item);
    const held = this.#referenced.get(key);
    if (held === undefined) {
      this.#recordChange(key, undefined);
      this.#referenced.set(key, { item, references: 1 });
      this.#index(item, 'add');
      return;
    }
    held.references += 1;
    if (sameItem(held.item, item)) return;
    this.#recordChange(key, held.item);
    this.#index(held.item, 'delete');
    this.#index(item, 'add');
    held.item = item;
  }

  /** One Route less asks for it. */
  removeReference(item: Item): void {
    const key = itemKey(item);
    const held = this.#referenced.get(key);
    if (held === undefined) throw new TypeError(`nobody asked for ${key}`);
    held.references -= 1;
    if (held.references > 0) return;
    this.#recordChange(key, held.item);
    this.#referenced.delete(key);
    this.#index(held.item, 'delete');
  }

  /**
   * As `release`, for a caller that removes the item from the kernel itself.
   * @returns whether it is to: nobody asks for it any more.
   */
  removeReferenceUnrecorded(item: Item): boolean {
    this.removeReference(item);
    const key = itemKey(item);
    if (this.#referenced.has(key)) return false;
    this.#changed.delete(key);
    return true;
  }

  #index(item: Item, action: 'add' | 'delete'): void {
    if (item.kind !== 'entry') return;
    const count = this.#entries.get(item.set) ?? 0;
    this.#entries.set(item.set, action === 'add' ? count + 1 : count - 1);
    if (isRanged(item.set)) this.#ranges[action](item);
  }

  /** What of an entry that is no longer wanted is not wanted as part of another either. */
  undesiredParts(item: EntryItem): EntryItem[] {
    if (!isRanged(item.set)) return [item];
    return this.#ranges.uncovered(item).map((entry) => ({ ...item, entry }));
  }

  #recordChange(key: string, before: Item | undefined): void {
    if (!this.#changed.has(key)) this.#changed.set(key, before);
  }

  has(key: string): boolean {
    return this.#referenced.has(key);
  }

  get(key: string): Item | undefined {
    return this.#referenced.get(key)?.item;
  }

  *items(): Iterable<Item> {
    for (const { item } of this.#referenced.values()) yield item;
  }

  /** How many entries a set should have; one of a range of ports counts once. */
  countOf(set: SetName): number {
    return this.#entries.get(set) ?? 0;
  }

  /** Some service that should have a destination whose key passes. */
  findServiceWithDestination(passes: (key: string) => boolean): IpvsServiceKey | undefined {
    for (const [key, { item }] of this.#referenced) {
      if (item.kind === 'destination' && passes(key)) return item.service;
    }
    return undefined;
  }

  /** Whether there is something that `takeChanges` would give. */
  get hasChanges(): boolean {
    return this.#changed.size > 0;
  }

  /** The entries of one set. */
  *entriesOf(set: SetName): Iterable<IpsetEntry> {
    for (const item of this.items()) {
      if (item.kind === 'entry' && item.set === set) yield item.entry;
    }
  }

  /** Whoever calls compares everything. */
  discardChanges(): void {
    this.#changed = new Map();
  }

  /** What changed since the last call; whoever calls sees to it. */
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
