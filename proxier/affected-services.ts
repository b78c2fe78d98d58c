/** Services to resolve again: ordinary ones first, then those with port ranges, the smallest first. */
import type { ObjectKey } from '../api/objects.ts';

/** Limits of one `take`. */
export interface TakeLimits {
  /** Ordinary Services, at most. */
  readonly services: number;
  /** Ranges and slices (`rangeCost`), at most, unless the first Service has more; 0: only ordinary Services. */
  readonly ranges: number;
}

/** Orders affected Services by what they cost, so that a change of an ordinary Service waits for no large one. */
export class AffectedServices {
  readonly #ordinary = new Set<ObjectKey>();
  /** Costs of Services with ranges. */
  readonly #costly = new Map<ObjectKey, number>();

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
    for (const [key, cost] of [...this.#costly].sort(([, a], [, b]) => a - b)) {
      if (cost > left && left < ranges) break;
      left -= cost;
      this.#costly.delete(key);
      taken.push(key);
    }
    return taken;
  }
}
