/** Services to resolve again: ordinary ones first, then costly ones, mostly the smallest first. */
import { getOrCreate } from '../api/collections.ts';
import type { ObjectKey } from '../api/objects.ts';

/** Limits of one `take`. */
export interface TakeLimits {
  /** Ordinary Services, at most. */
  readonly services: number;
  /**
   * Cost of Services with ranges and of large Services (`NamespaceBudget.costOf`), at most, unless the first of them has more;
   * 0: only ordinary Services.
   */
  readonly cost: number;
  /** Owners of ports that may change in a Service, see `nextStep`; all by default. */
  readonly owners?: number;
}

/** One `take` in so many begins with the Service that has waited longest, or many changes of small ones could hold it up for ever. */
const TAKES_BY_COST = 8;

/** Orders affected Services by what they cost, so that a change of an ordinary Service waits for no large one. */
export class AffectedServices {
  readonly #ordinary = new Set<ObjectKey>();
  /** Costs of costly Services, the longest wait first. */
  readonly #costly = new Map<ObjectKey, number>();
  /** See `add`. */
  readonly #places = new Map<ObjectKey, ReadonlySet<string>>();
  readonly #byPlace = new Map<string, Set<ObjectKey>>();
  #takes = 0;

  get size(): number {
    return this.#ordinary.size + this.#costly.size;
  }

  /** Number of ordinary Services. */
  get ordinary(): number {
    return this.#ordinary.size;
  }

  has(key: ObjectKey): boolean {
    return this.#ordinary.has(key) || this.#costly.has(key);
  }

  /**
   * @param cost what the Service costs or cost before; 0 for an ordinary Service.
   * @param places listed ports and node ports of its Routes until it is taken; called if it does not wait yet.
   */
  add(key: ObjectKey, cost: number, places: () => Iterable<string>): void {
    if (!this.has(key)) {
      const known = new Set(places());
      this.#places.set(key, known);
      for (const place of known) getOrCreate(this.#byPlace, place, () => new Set()).add(key);
    }
    const before = this.#costly.get(key);
    if (cost === 0 && before === undefined) {
      this.#ordinary.add(key);
      return;
    }
    this.#ordinary.delete(key);
    this.#costly.set(key, Math.max(cost, before ?? 0));
  }

  /** Lets a Service that was added wait for no other, whatever it costs. */
  hurry(key: ObjectKey): void {
    if (this.#costly.delete(key)) this.#ordinary.add(key);
  }

  /** Returns the next Services, and removes them. */
  take({ services, cost: limit }: TakeLimits): ObjectKey[] {
    const taken: ObjectKey[] = [];
    for (const key of this.#ordinary) {
      if (taken.length >= services) break;
      this.#remove(key);
      taken.push(key);
    }
    if (limit === 0 || this.#costly.size === 0) return taken;
    let left = limit;
    this.#takes += 1;
    const byAge = [...this.#costly];
    const first = this.#takes % TAKES_BY_COST === 0 ? byAge.splice(0, 1) : [];
    for (const [key, cost] of [...first, ...byAge.sort(([, a], [, b]) => a - b)]) {
      if (cost > left && left < limit) break;
      left -= cost;
      this.#remove(key);
      taken.push(key);
    }
    return taken;
  }

  /**
   * Returns the waiting Services with Routes in a place, and removes them. A Service that gets a port there must be resolved
   * together with the one that loses it: the port of a VIP is one key in the kernel.
   */
  takeAt(place: string): ObjectKey[] {
    const keys = [...(this.#byPlace.get(place) ?? [])];
    for (const key of keys) this.#remove(key);
    return keys;
  }

  #remove(key: ObjectKey): void {
    this.#ordinary.delete(key);
    this.#costly.delete(key);
    for (const place of this.#places.get(key) ?? []) {
      const keys = this.#byPlace.get(place);
      keys?.delete(key);
      if (keys?.size === 0) this.#byPlace.delete(place);
    }
    this.#places.delete(key);
  }
}
