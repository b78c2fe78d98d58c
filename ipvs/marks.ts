/**
 * Allocates packet marks to owners: the endpoint sets of all-ports Services, and of Services with
 * externalTrafficPolicy Local. IPVS compares the whole 32-bit mark of a packet with the mark of a
 * fwmark service. Each owner therefore needs its own mark, from a range that no other program uses.
 */
import { hash } from 'node:crypto';
import type { MarkRange } from '../config/mode-values.ts';

export type VerdictMarks = ReturnType<typeof verdictMarks>;

/** Number of verdict marks. */
const RESERVED = 2;
/**
 * The AWS VPC CNI restores this bit from the connection mark, for packets of pods, after the rule
 * that sets the packet mark. A mark with this bit set would lose the bit.
 */
const AWS_CNI_MARK_BIT = 0x80;

/**
 * Marks at the start of the range that are reserved for verdicts and never allocated to a Service.
 */
export function verdictMarks({ first }: MarkRange) {
  return {
    /** Drop the packet: endpoints exist, but the traffic policy allows none on this node. */
    drop: first,
    /** Reject the packet: no endpoint exists, or no mark is left for the Service. */
    reject: first + 1,
  };
}

/**
 * Allocates marks to owners. An owner keeps its mark while the process lives and across restarts,
 * because the agent reads the records in the kernel at start. The search for a free mark starts at
 * a hash of the owner's name. Nodes therefore usually agree on marks, and a freed mark is rarely
 * the next mark allocated.
 */
export class MarkAllocator {
  readonly #range: MarkRange;
  readonly #marksByOwner = new Map<string, number>();
  readonly #ownersByMark = new Map<number, string>();
  readonly #foreign: ReadonlySet<number>;
  /** All marks ever allocated. fwmark services with these marks belong to this agent. */
  readonly #everAllocated = new Set<number>();
  /** Released owners, the oldest first. */
  readonly #released = new Set<string>();

  /**
   * @param known owners and marks as recorded in the kernel; if two owners claim one mark, the
   * first keeps it.
   * @param foreign marks of fwmark services of other programs.
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

  /** Returns the owner's mark, allocated if necessary; undefined if the range is exhausted. */
  allocate(owner: string): number | undefined {
    this.#released.delete(owner);
    const known = this.#marksByOwner.get(owner);
    if (known !== undefined) return known;
    const mark = this.#findFree(owner) ?? this.#reuseReleased();
    if (mark !== undefined) this.#assign(owner, mark);
    return mark;
  }

  /** Number of owners with a mark. */
  get inUse(): number {
    return this.#marksByOwner.size - this.#released.size;
  }

  /** Whether a mark was ever allocated to a Service, also from an earlier range. */
  isOwn(mark: number): boolean {
    return this.#everAllocated.has(mark);
  }

  /** Releases an owner. Another owner gets the mark only when no other mark is free. */
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
