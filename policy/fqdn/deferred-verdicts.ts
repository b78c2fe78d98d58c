/** Packets that wait until the DNS observations of the first packet are stored. */
export interface Deferral {
  readonly number: number;
  /** Time in milliseconds at which the first packet was deferred. */
  readonly since: number;
  /** Ids of the waiting packets; empty after they were accepted. */
  packets: number[];
}

export interface DeferralLimits {
  /** Maximum milliseconds that a packet waits. */
  readonly timeout: number;
  /** Maximum number of pending deferrals; beyond it packets are accepted at once. */
  readonly backlog: number;
}

/**
 * The timeout is shorter than the five seconds after which clients retry. The longest task of the
 * main thread takes a fraction of a second, so a main thread that is silent for two seconds hangs.
 */
export const DEFERRAL_LIMITS: DeferralLimits = { timeout: 2000, backlog: 1000 };

/**
 * Defers verdicts on packets until their DNS observations are stored. After a timeout it accepts
 * packets at once, until an observation is stored again.
 */
export class DeferredVerdicts {
  readonly #accept: (packet: number) => void;
  readonly #limits: DeferralLimits;
  /** Pending deferrals, the oldest first. */
  readonly #deferrals = new Map<number, Deferral>();
  #last = 0;
  #isLate = false;
  #overdue = 0;
  #waiting = 0;

  constructor(accept: (packet: number) => void, limits: DeferralLimits = DEFERRAL_LIMITS) {
    this.#accept = accept;
    this.#limits = limits;
  }

  /** Number of deferrals whose packets were accepted before their observations were stored. */
  get overdue(): number {
    return this.#overdue;
  }

  /** Number of packets that wait for a verdict. */
  get waiting(): number {
    return this.#waiting;
  }

  /** Time at which the oldest waiting packet becomes overdue; undefined if no packet waits. */
  get deadline(): number | undefined {
    for (const { since, packets } of this.#deferrals.values()) {
      if (packets.length > 0) return since + this.#limits.timeout;
    }
    return undefined;
  }

  /**
   * Defers a packet with observations.
   * @returns undefined if the backlog is full; then the packet was accepted and counts as overdue.
   */
  defer(packet: number, now: number): Deferral | undefined {
    if (this.#deferrals.size >= this.#limits.backlog) {
      this.#overdue += 1;
      this.#accept(packet);
      return undefined;
    }
    this.#last += 1;
    const deferral = { number: this.#last, since: now, packets: [packet] };
    this.#deferrals.set(deferral.number, deferral);
    this.#waiting += 1;
    if (this.#isLate) this.#acceptOverdue(deferral);
    return deferral;
  }

  /** Defers another packet of the same stream for as long as the first packet waits. */
  join(deferral: Deferral, packet: number): void {
    if (deferral.packets.length === 0) {
      this.#accept(packet);
      return;
    }
    deferral.packets.push(packet);
    this.#waiting += 1;
  }

  /**
   * Accepts the packets of the deferrals with these numbers. Call it when their observations were
   * stored or could not be stored.
   */
  release(first: number, last: number): void {
    this.#isLate = false;
    for (let number = first; number <= last; number++) {
      const deferral = this.#deferrals.get(number);
      if (deferral === undefined) continue;
      this.#deferrals.delete(number);
      this.#acceptPackets(deferral);
    }
  }

  /** Accepts all packets if a packet is overdue. */
  check(now: number): void {
    const { deadline } = this;
    if (deadline === undefined || deadline > now) return;
    this.releaseAll();
  }

  /** Accepts all packets, and later packets at once until the next `release` or `acceptAll`. */
  releaseAll(): void {
    this.#isLate = true;
    for (const deferral of this.#deferrals.values()) {
      if (deferral.packets.length > 0) this.#acceptOverdue(deferral);
    }
  }

  /**
   * Accepts all packets, because their observations are no longer needed. Later packets are
   * deferred as usual.
   */
  acceptAll(): void {
    for (const deferral of this.#deferrals.values()) this.#acceptPackets(deferral);
    this.#deferrals.clear();
    this.#isLate = false;
  }

  #acceptOverdue(deferral: Deferral): void {
    this.#overdue += 1;
    this.#acceptPackets(deferral);
  }

  #acceptPackets(deferral: Deferral): void {
    const { packets } = deferral;
    deferral.packets = [];
    this.#waiting -= packets.length;
    for (const packet of packets) this.#accept(packet);
  }
}
