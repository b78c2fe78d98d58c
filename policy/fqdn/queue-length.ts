/** Computes the maximum length of the NFQUEUE: as short as the load permits. */
export interface QueueLengthLimits {
  readonly min: number;
  readonly max: number;
  /** Milliseconds after which the length shrinks if a shorter length was sufficient. */
  readonly shrinkDelay: number;
}

/**
 * If the whole process hangs, DNS fails until the queue is full or the resolvers expire, and packets bypass the queue. 128
 * packets are one second of DNS traffic on a busy node, and several seconds on a quiet node.
 * Measured with 2,000 lookups a second on a machine without idle CPU: up to 1,000 packets waited.
 */
export const QUEUE_LENGTH_LIMITS: QueueLengthLimits = { min: 128, max: 4096, shrinkDelay: 5000 };

/** Minimum ratio of the queue length to the number of waiting packets. */
const RESERVE = 4;

export class QueueLength {
  readonly #limits: QueueLengthLimits;
  #length: number;
  #neededAt = -Infinity;

  constructor(limits: QueueLengthLimits = QUEUE_LENGTH_LIMITS) {
    this.#limits = limits;
    this.#length = limits.min;
  }

  /**
   * The maximum length to set now.
   * @param waiting Number of packets in the queue.
   * @param now Time in milliseconds.
   */
  length(waiting: number, now: number): number {
    const { min, max, shrinkDelay } = this.#limits;
    const withReserve = 2 ** Math.ceil(Math.log2(Math.max(waiting, 1) * RESERVE));
    const needed = Math.min(Math.max(withReserve, min), max);
    if (needed >= this.#length || now - this.#neededAt > shrinkDelay) {
      this.#length = needed;
      this.#neededAt = now;
    }
    return this.#length;
  }
}
