/**
 * Accepts queued packets: at once, or when their DNS observations are stored or a timeout has
 * passed. No I/O; the caller passes the time.
 */
import { addressBytes } from '../../netlink/core/address.ts';
import type { QueuedPacket } from '../../netlink/nfqueue/queue.ts';
import { type Deferral, DeferredVerdicts } from './deferred-verdicts.ts';
import { type DnsObservation, type InspectionResult, Inspector } from './inspector.ts';
import type { CounterName } from './thread-messages.ts';

/** Observations of consecutive deferrals; `first` is the number of the first deferral. */
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

  /** @param accept Accepts a packet by its id. */
  constructor(accept: (packet: number) => void) {
    this.#accept = accept;
    this.deferred = new DeferredVerdicts(accept);
  }

  counts(): Readonly<Record<CounterName, number>> {
    const { counts, givenUp } = this.#inspector;
    return { ...counts, givenUp, overdue: this.deferred.overdue };
  }

  /**
   * @param patterns Domain name patterns of policy rules. Empty: accepts all deferred packets.
   * @param resolvers Canonical addresses.
   */
  configure(patterns: readonly string[], resolvers: readonly string[]): void {
    if (patterns.length === 0) this.deferred.acceptAll();
    this.#inspector.setPatterns(patterns);
    const keys = resolvers.map((resolver) => addressBytes(resolver).toString('latin1'));
    this.#inspector.setResolvers(new Set(keys));
  }

  /** Accepts or defers a packet. @throws on an internal error, after accepting the packet. */
  handle({ id, ifindex, bytes }: QueuedPacket, now: number): void {
    let result: InspectionResult<Deferral>;
    try {
      result = this.#inspector.inspect(bytes, ifindex, now);
    } catch (error) {
      this.#accept(id);
      throw error;
    }
    const { observations, stream } = result;
    if (observations.length > 0) {
      const deferral = this.deferred.defer(id, now);
      if (deferral === undefined) return;
      // Later segments of the stream, including retransmissions, join this deferral.
      if (stream !== undefined) stream.tag = deferral;
      if (this.#batch.length === 0) this.#first = deferral.number;
      this.#batch.push(observations);
    } else if (stream?.tag !== undefined) this.deferred.join(stream.tag, id);
    else this.#accept(id);
  }

  /** Observations since the last call; undefined if there are none. */
  takeBatch(): ObservationBatch | undefined {
    const batch = this.#batch;
    if (batch.length === 0) return undefined;
    this.#batch = [];
    return { first: this.#first, batch };
  }
}
