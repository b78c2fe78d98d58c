/** How long the queue should be: short, for as long as that does. */
export interface QueueLengthLimits {
  readonly min: number;
  readonly max: number;
  /** Milliseconds after which a length that was not needed any more is given up. */
  readonly shrinkDelay: number;
}

/**
 * A process that hangs as a whole holds up as many packets as its queue is long. How long that takes away
 * DNS depends on how many come: 128 are a second of a busy node's, and seconds of a quiet one's. But with
 * 2,000 lookups a second on a machine without a CPU to spare, 1,000 were waiting at times.
 */
export const QUEUE_LENGTH_LIMITS: QueueLengthLimits = { min: 128, max: 4096, shrinkDelay: 5000 };

/** Times as long as what waits. */
const RESERVE = 4;

export class QueueLength {
  readonly #limits: QueueLengthLimits;
  #length: number;
  #neededAt = -Infinity;

  constructor(limits: QueueLengthLimits = QUEUE_LENGTH_LIMITS) {
    this.#limits = limits;
    this.#length = limits.min;
  }

  /** @param waiting Packets that are in the queue. */
  length(waiting: number, now: number): number {
    const { min: least, max: most, shrinkDelay: calm } = this.#limits;
    const roomy = 2 ** Math.ceil(Math.log2(Math.max(waiting, 1) * RESERVE));
    const needed = Math.min(Math.max(roomy, least), most);
    if (needed >= this.#length || now - this.#neededAt > calm) {
      this.#length = needed;
      this.#neededAt = now;
    }
    return this.#length;
  }
}
