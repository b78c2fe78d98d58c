/**
 * Packet marks of all-ports Services. IPVS compares the whole 32-bit mark of a packet with that of
 * a service, so each Service needs a mark of its own, out of a range that nobody else uses.
 */
import { hash } from 'node:crypto';
import type { MarkRange } from '../config/mode-values.ts';

export type VerdictMarks = ReturnType<typeof verdictMarks>;

const RESERVED = 2;
/**
 * The AWS VPC CNI restores this bit from the mark of the connection, for packets of pods, behind the
 * rule that marks them; a mark that has it would lose it.
 */
const RESTORED_BIT = 0x80;

/** Marks with a meaning of their own, at the start of the range; they are given to nobody. */
export function verdictMarks({ first }: MarkRange) {
  return {
    /** There are endpoints, but none that this node may use: drop. */
    drop: first,
    /** There is no endpoint at all: reject. */
    reject: first + 1,
  };
}

/**
 * Gives owners marks. An owner keeps its mark as long as the process lives, and beyond, for the
 * kernel is asked at the start who had which. Where an owner starts to look follows from its name,
 * so that nodes agree as a rule and a mark that was freed is hardly ever the next one to be given.
 */
export class Marks {
  readonly #range: MarkRange;
  readonly #byOwner = new Map<string, number>();
  readonly #owners = new Map<number, string>();
  readonly #taken: ReadonlySet<number>;
  /** All that ever were given: of services of these marks nobody else is the owner. */
  readonly #ours = new Set<number>();
  /** Owners that went, the longest gone first. */
  readonly #released = new Set<string>();

  /**
   * @param known owner and mark, as the kernel tells; of two that claim one mark the first has it.
   * @param foreign marks of fwmark services that others made.
   */
  constructor(
    range: MarkRange,
    known: Iterable<readonly [owner: string, mark: number]>,
    foreign: Iterable<number>,
  ) {
    this.#range = range;
    this.#taken = new Set(foreign);
    for (const [owner, mark] of known) {
      this.#ours.add(mark);
      if (mark < range.first + RESERVED || mark > range.last) continue;
      if (this.#taken.has(mark) || this.#owners.has(mark) || this.#byOwner.has(owner)) continue;
      this.#give(owner, mark);
      this.#released.add(owner);
    }
  }

  /** The mark of an owner. @returns undefined when the range is exhausted. */
  take(owner: string): number | undefined {
    this.#released.delete(owner);
    const known = this.#byOwner.get(owner);
    if (known !== undefined) return known;
    const mark = this.#free(owner) ?? this.#reclaim();
    if (mark !== undefined) this.#give(owner, mark);
    return mark;
  }

  /** How many owners have a mark now. */
  get inUse(): number {
    return this.#byOwner.size - this.#released.size;
  }

  /** Whether a mark is, or once was, given to a Service, out of whatever range. */
  isOurs(mark: number): boolean {
    return this.#ours.has(mark);
  }

  /** The owner went; its mark stays its own until there is no other left. */
  release(owner: string): void {
    if (!this.#byOwner.has(owner)) return;
    this.#released.delete(owner);
    this.#released.add(owner);
  }

  #give(owner: string, mark: number): void {
    this.#byOwner.set(owner, mark);
    this.#owners.set(mark, owner);
    this.#ours.add(mark);
  }

  #free(owner: string): number | undefined {
    const first = this.#range.first + RESERVED;
    const size = this.#range.last - first + 1;
    const start = hash('sha256', owner, 'buffer').readUInt32BE(0) % size;
    for (let step = 0; step < size; step++) {
      const mark = first + ((start + step) % size);
      if ((mark & RESTORED_BIT) !== 0) continue;
      if (!this.#owners.has(mark) && !this.#taken.has(mark)) return mark;
    }
    return undefined;
  }

  #reclaim(): number | undefined {
    const [owner] = this.#released;
    if (owner === undefined) return undefined;
    const mark = this.#byOwner.get(owner);
    this.#released.delete(owner);
    this.#byOwner.delete(owner);
    return mark;
  }
}
