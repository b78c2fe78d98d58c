/** Packets that wait until what the first of them tells has been learned. */
export interface Deferral {
  readonly number: number;
  /** Milliseconds of the clock. */
  readonly since: number;
  /** Empty when they have gone on. */
  packets: number[];
}

export interface DeferralLimits {
  /** Milliseconds that a packet waits. */
  readonly patience: number;
  /** Of what is to be learned and is not, how much may add up while nobody waits for it. */
  readonly backlog: number;
}

/**
 * Clients ask again after five seconds, and what keeps the main thread longest is over in a fraction of
 * one: when it has not learned by then it hangs.
 */
export const DEFERRAL_LIMITS: DeferralLimits = { patience: 2000, backlog: 1000 };

/**
 * Defers verdicts on packets until what they tell is learned, but not for ever: once one has waited in vain none
 * does, until something has been learned again.
 */
export class DeferredVerdicts {
  readonly #accept: (packet: number) => void;
  readonly #limits: DeferralLimits;
  /** What is not learned yet, in the order in which it came. */
  readonly #deferrals = new Map<number, Deferral>();
  #last = 0;
  #isLate = false;
  #overdue = 0;
  #waiting = 0;

  constructor(accept: (packet: number) => void, limits: DeferralLimits = DEFERRAL_LIMITS) {
    this.#accept = accept;
    this.#limits = limits;
  }

  /** How often a packet went on before what it tells was learned. */
  get overdue(): number {
    return this.#overdue;
  }

  /** Packets that are held back. */
  get waiting(): number {
    return this.#waiting;
  }

  /** When a packet will have waited for long enough; undefined while none does. */
  get deadline(): number | undefined {
    for (const { since, packets } of this.#deferrals.values()) {
      if (packets.length > 0) return since + this.#limits.patience;
    }
    return undefined;
  }

  /** @returns undefined when there is too much to be learned already: the packet went on. */
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

  /** DeferredVerdicts a packet back for as long as others wait. */
  join(deferral: Deferral, packet: number): void {
    if (deferral.packets.length === 0) {
      this.#accept(packet);
      return;
    }
    deferral.packets.push(packet);
    this.#waiting += 1;
  }

  /** What came under these numbers, one after the other, is learned, or cannot be. */
  release(first: number, last: number): void {
    this.#isLate = false;
    for (let number = first; number <= last; number++) {
      const deferral = this.#deferrals.get(number);
      if (deferral === undefined) continue;
      this.#deferrals.delete(number);
      this.#acceptPackets(deferral);
    }
  }

  /** Lets all go on if one has waited for too long. */
  check(now: number): void {
    const { deadline } = this;
    if (deadline === undefined || deadline > now) return;
    this.releaseAll();
  }

  /** Lets all go on. Nothing is held back again before something is learned. */
  releaseAll(): void {
    this.#isLate = true;
    for (const deferral of this.#deferrals.values()) {
      if (deferral.packets.length > 0) this.#acceptOverdue(deferral);
    }
  }

  /** Lets all go on, for nobody wants to know any more what they tell. What comes later is held back as ever. */
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
