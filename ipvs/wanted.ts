/** The items that are wanted, and how many Routes want each. */
import type { SetEntry } from '../netlink/ipset/ipset.ts';
import type { IpvsServiceKey } from '../netlink/ipvs/ipvs.ts';
import { type EntryItem, type Item, itemKey, sameItem } from './items.ts';
import { isRanged, RangeIndex } from './port-ranges.ts';
import type { SetName } from './sets.ts';

interface Held {
  item: Item;
  holders: number;
}

/** One difference between what the kernel should hold and what it held before. */
export interface Difference {
  readonly before: Item | undefined;
  readonly after: Item | undefined;
}

/**
 * All that the kernel should hold, with how many Routes ask for each (two may share a VIP, or
 * a pod), and what of it changed since it was last taken.
 */
export class Wanted {
  readonly #held = new Map<string, Held>();
  readonly #ranges = new RangeIndex();
  /** How many entries each set should have. */
  readonly #entries = new Map<SetName, number>();
  /** Items as they were when they last were taken; undefined: there was none. */
  #changed = new Map<string, Item | undefined>();

  /** One more Route asks for it. Where two differ in its value, the later is right. */
  hold(item: Item): void {
    const key = itemKey(item);
    const held = this.#held.get(key);
    if (held === undefined) {
      this.#note(key, undefined);
      this.#held.set(key, { item, holders: 1 });
      this.#index(item, 'add');
      return;
    }
    held.holders += 1;
    if (sameItem(held.item, item)) return;
    this.#note(key, held.item);
    this.#index(held.item, 'delete');
    this.#index(item, 'add');
    held.item = item;
  }

  /** One Route less asks for it. */
  release(item: Item): void {
    const key = itemKey(item);
    const held = this.#held.get(key);
    if (held === undefined) throw new TypeError(`nobody asked for ${key}`);
    held.holders -= 1;
    if (held.holders > 0) return;
    this.#note(key, held.item);
    this.#held.delete(key);
    this.#index(held.item, 'delete');
  }

  /**
   * As `release`, for a caller that removes the item from the kernel itself.
   * @returns whether it is to: nobody asks for it any more.
   */
  releaseUnnoted(item: Item): boolean {
    this.release(item);
    const key = itemKey(item);
    if (this.#held.has(key)) return false;
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
  unwanted(item: EntryItem): EntryItem[] {
    if (!isRanged(item.set)) return [item];
    return this.#ranges.uncovered(item).map((entry) => ({ ...item, entry }));
  }

  #note(key: string, before: Item | undefined): void {
    if (!this.#changed.has(key)) this.#changed.set(key, before);
  }

  has(key: string): boolean {
    return this.#held.has(key);
  }

  get(key: string): Item | undefined {
    return this.#held.get(key)?.item;
  }

  *items(): Iterable<Item> {
    for (const { item } of this.#held.values()) yield item;
  }

  /** How many entries a set should have; one of a range of ports counts once. */
  countOf(set: SetName): number {
    return this.#entries.get(set) ?? 0;
  }

  /** Some service that should have a destination whose key passes. */
  serviceOfSome(passes: (key: string) => boolean): IpvsServiceKey | undefined {
    for (const [key, { item }] of this.#held) {
      if (item.kind === 'destination' && passes(key)) return item.service;
    }
    return undefined;
  }

  /** Whether there is something that `takeChanges` would give. */
  get hasChanges(): boolean {
    return this.#changed.size > 0;
  }

  /** The entries of one set. */
  *entriesOf(set: SetName): Iterable<SetEntry> {
    for (const item of this.items()) {
      if (item.kind === 'entry' && item.set === set) yield item.entry;
    }
  }

  /** Whoever calls compares everything. */
  dropChanges(): void {
    this.#changed = new Map();
  }

  /** What changed since the last call; whoever calls sees to it. */
  takeChanges(): Difference[] {
    const changed = this.#changed;
    this.#changed = new Map();
    const differences: Difference[] = [];
    for (const [key, before] of changed) {
      const after = this.get(key);
      if (before === undefined && after === undefined) continue;
      if (before !== undefined && after !== undefined && sameItem(before, after)) continue;
      differences.push({ before, after });
    }
    return differences;
  }
}
