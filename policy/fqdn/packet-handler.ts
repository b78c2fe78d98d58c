/** Lets packets go on, at once or when what they tell is learned. No I/O; the clock is handed in. */
import { addressBytes } from '../../netlink/core/address.ts';
import type { QueuedPacket } from '../../netlink/nfqueue/queue.ts';
import { type Deferral, DeferredVerdicts } from './deferred-verdicts.ts';
import { type DnsObservation, type InspectionResult, Inspector } from './inspector.ts';
import type { CounterName } from './thread-messages.ts';

/** What is to be learned, numbered from `first` on; each came with one packet. */
export interface ObservationBatch {
  readonly first: number;
  readonly batch: readonly (readonly DnsObservation[])[];
}

export class PacketHandler {
  readonly #accept: (packet: number) => void;
  readonly #inspector = new Inspector<Deferral>();
  readonly deferred: DeferredVerdicts;
  #first = 0;
  #batch: (readonly DnsObservation[])[] = [];

  /** @param accept Lets a packet go on, by its number. */
  constructor(accept: (packet: number) => void) {
    this.#accept = accept;
    this.deferred = new DeferredVerdicts(accept);
  }

  counts(): Readonly<Record<CounterName, number>> {
    const { counts, givenUp } = this.#inspector;
    return { ...counts, givenUp, overdue: this.deferred.overdue };
  }

  /**
   * @param patterns None: nothing is looked for, and what is held back goes on.
   * @param resolvers Canonical addresses.
   */
  configure(patterns: readonly string[], resolvers: readonly string[]): void {
    if (patterns.length === 0) this.deferred.acceptAll();
    this.#inspector.setPatterns(patterns);
    const keys = resolvers.map((resolver) => addressBytes(resolver).toString('latin1'));
    this.#inspector.setResolvers(new Set(keys));
  }

  /** @throws what only a mistake of ours would throw; the packet has gone on then. */
  handle({ id, ifindex: link, bytes }: QueuedPacket, now: number): void {
    let finding: InspectionResult<Deferral>;
    try {
      finding = this.#inspector.inspect(bytes, link, now);
    } catch (error) {
      this.#accept(id);
      throw error;
    }
    const { observations, stream } = finding;
    if (observations.length > 0) {
      const deferral = this.deferred.defer(id, now);
      if (deferral === undefined) return;
      // Whatever of the stream comes by until then, the same once more included, comes after it.
      if (stream !== undefined) stream.tag = deferral;
      if (this.#batch.length === 0) this.#first = deferral.number;
      this.#batch.push(observations);
    } else if (stream?.tag !== undefined) this.deferred.join(stream.tag, id);
    else this.#accept(id);
  }

  /** What came since the last call. */
  takeBatch(): ObservationBatch | undefined {
    const batch = this.#batch;
    if (batch.length === 0) return undefined;
    this.#batch = [];
    return { first: this.#first, batch };
  }
}
