/** Services to resolve again: ordinary ones first, then those with port ranges, mostly the smallest first. */
import type { ObjectKey } from '../api/objects.ts';

/** Limits of one `take`. */
export interface TakeLimits {
  /** Ordinary Services, at most. */
  readonly services: number;
  /** Ranges and slices (`rangeCost`), at most, unless the first Service has more; 0: only ordinary Services. */
  readonly ranges: number;
}

/** One `take` in so many begins with the Service that has waited longest, or many changes of small ones could hold it up for ever. */
const TAKES_BY_COST = 8;

/** Orders affected Services by what they cost, so that a change of an ordinary Service waits for no large one. */
export class AffectedServices {
  readonly #ordinary = new Set<ObjectKey>();
  /** Costs of Services with ranges, the longest wait first. */
  readonly #costly = new Map<ObjectKey, number>();
  #takes = 0;

  get size(): number {
    return this.#ordinary.size + this.#costly.size;
  }

  /** Whether a Service without ranges is affected. */
  get hasOrdinary(): boolean {
    return this.#ordinary.size > 0;
  }

  has(key: ObjectKey): boolean {
    return this.#ordinary.has(key) || this.#costly.has(key);
  }

  /** @param cost ranges that the Service has or had; 0 for an ordinary Service. */
  add(key: ObjectKey, cost: number): void {
    const before = this.#costly.get(key) ?? 0;
    if (cost === 0 && before === 0) {
      this.#ordinary.add(key);
      return;
    }
    this.#ordinary.delete(key);
    this.#costly.set(key, Math.max(cost, before));
  }

  /** Returns the next Services, and removes them. */
  take({ services, ranges }: TakeLimits): ObjectKey[] {
    const taken: ObjectKey[] = [];
    for (const key of this.#ordinary) {
      if (taken.length >= services) return taken;
      this.#ordinary.delete(key);
      taken.push(key);
    }
    if (ranges === 0 || this.#costly.size === 0) return taken;
    let left = ranges;
    this.#takes += 1;
    const byAge = [...this.#costly];
    const first = this.#takes % TAKES_BY_COST === 0 ? byAge.splice(0, 1) : [];
    for (const [key, cost] of [...first, ...byAge.sort(([, a], [, b]) => a - b)]) {
      if (cost > left && left < ranges) break;
      left -= cost;
      this.#costly.delete(key);
      taken.push(key);
    }
    return taken;
  }
}
