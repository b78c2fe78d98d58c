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
const AWS_CNI_MARK_BIT = 0x80;

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
export class MarkAllocator {
  readonly #range: MarkRange;
  readonly #marksByOwner = new Map<string, number>();
  readonly #ownersByMark = new Map<number, string>();
  readonly #foreign: ReadonlySet<number>;
  /** All that ever were given: of services of these marks nobody else is the owner. */
  readonly #everAllocated = new Set<number>();
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
    this.#foreign = new Set(foreign);
    for (const [owner, mark] of known) {
      this.#everAllocated.add(mark);
      if (mark < range.first + RESERVED || mark > range.last) continue;
      if (this.#foreign.has(mark) || this.#ownersByMark.has(mark) || this.#marksByOwner.has(owner))
        continue;
      this.#assign(owner, mark);
      this.#released.add(owner);
    }
  }

  /** The mark of an owner. @returns undefined when the range is exhausted. */
  allocate(owner: string): number | undefined {
    this.#released.delete(owner);
    const known = this.#marksByOwner.get(owner);
    if (known !== undefined) return known;
    const mark = this.#findFree(owner) ?? this.#reuseReleased();
    if (mark !== undefined) this.#assign(owner, mark);
    return mark;
  }

  /** How many owners have a mark now. */
  get inUse(): number {
    return this.#marksByOwner.size - this.#released.size;
  }

  /** Whether a mark is, or once was, given to a Service, out of whatever range. */
  isOwn(mark: number): boolean {
    return this.#everAllocated.has(mark);
  }

  /** The owner went; its mark stays its own until there is no other left. */
  release(owner: string): void {
    if (!this.#marksByOwner.has(owner)) return;
    this.#released.delete(owner);
    this.#released.add(owner);
  }

  #assign(owner: string, mark: number): void {
    this.#marksByOwner.set(owner, mark);
    this.#ownersByMark.set(mark, owner);
    this.#everAllocated.add(mark);
  }

  #findFree(owner: string): number | undefined {
    const first = this.#range.first + RESERVED;
    const size = this.#range.last - first + 1;
    const start = hash('sha256', owner, 'buffer').readUInt32BE(0) % size;
    for (let step = 0; step < size; step++) {
      const mark = first + ((start + step) % size);
      if ((mark & AWS_CNI_MARK_BIT) !== 0) continue;
      if (!this.#ownersByMark.has(mark) && !this.#foreign.has(mark)) return mark;
    }
    return undefined;
  }

  #reuseReleased(): number | undefined {
    const [owner] = this.#released;
    if (owner === undefined) return undefined;
    const mark = this.#marksByOwner.get(owner);
    this.#released.delete(owner);
    this.#marksByOwner.delete(owner);
    return mark;
  }
}
