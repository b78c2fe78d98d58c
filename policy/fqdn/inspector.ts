/** Inspects the packets to and from resolvers. No I/O; the caller passes the time. */
import { NamePatterns } from '../model/domain-names.ts';
import { type DnsMessage, type ResolvedAddress, readDnsMessage } from './dns-message.ts';
import { readPacket, type SocketAddress, type TransportPayload } from './packet.ts';
import { type ObservedMessage, PendingQueries } from './pending-queries.ts';
import { type Stream, TcpStreams } from './tcp-streams.ts';

/** The addresses in the answer to an observed query. */
export interface DnsObservation {
  readonly name: string;
  readonly addresses: readonly ResolvedAddress[];
}

/** The result of inspecting a packet. */
export interface InspectionResult<Tag> {
  /** Answers for names that match a pattern. */
  readonly observations: readonly DnsObservation[];
  /** The TCP stream of a segment with data. */
  readonly stream: Stream<Tag> | undefined;
}

export class Inspector<Tag> {
  /** Counters since the start. */
  readonly counts = {
    queries: 0,
    /** Answers to observed queries. */
    answers: 0,
    /** Answers without a matching query. */
    unasked: 0,
    /** Packets and DNS messages that are malformed or unsupported. */
    unreadable: 0,
  };
  readonly #queries = new PendingQueries();
  readonly #streams = new TcpStreams<Tag>();
  #patterns = new NamePatterns<true>();

  /** Number of TCP streams that were given up. */
  get givenUp(): number {
    return this.#streams.stats().givenUp;
  }

  /** @param patterns Domain name patterns of policy rules. */
  setPatterns(patterns: readonly string[]): void {
    this.#patterns = new NamePatterns(patterns.map((pattern) => [pattern, true]));
  }

  /** @param resolvers Addresses in the binary form of `SocketAddress`. */
  setResolvers(resolvers: ReadonlySet<string>): void {
    this.#queries.setResolvers(resolvers);
  }

  /**
   * Inspects a packet and updates the counters.
   * @param packet Begins with the IP header.
   * @param ifindex Index of the input interface; 0 for packets that the node itself sends.
   * @param now Time in milliseconds.
   */
  inspect(packet: Buffer, ifindex: number, now: number): InspectionResult<Tag> {
    const observations: DnsObservation[] = [];
    const segment = readPacket(packet);
    if (segment === undefined) {
      this.counts.unreadable += 1;
      return { observations, stream: undefined };
    }
    const inspectMessage = (bytes: Buffer) => {
      const message = readDnsMessage(bytes);
      const observation = this.#message(segment, message, ifindex, now);
      if (observation !== undefined) observations.push(observation);
    };
    if (segment.protocol === 'UDP') {
      inspectMessage(segment.data);
      return { observations, stream: undefined };
    }
    const stream = this.#streams.addSegment(segment, inspectMessage);
    return { observations, stream: segment.data.length === 0 ? undefined : stream };
  }

  #message(
    { protocol, source, destination }: TransportPayload,
    message: DnsMessage | undefined,
    ifindex: number,
    now: number,
  ): DnsObservation | undefined {
    if (message === undefined) {
      this.counts.unreadable += 1;
      return undefined;
    }
    const { kind, question } = message;
    const observed = (client: SocketAddress, server: SocketAddress): ObservedMessage => {
      return { protocol, client, server, ifindex, question };
    };
    if (kind === 'query') {
      this.counts.queries += 1;
      this.#queries.addQuery(observed(source, destination), now);
      return undefined;
    }
    if (!this.#queries.matchAnswer(observed(destination, source), now)) {
      this.counts.unasked += 1;
      return undefined;
    }
    this.counts.answers += 1;
    if (!this.#patterns.matches(question.name)) return undefined;
    const addresses = message.addresses();
    return addresses.length === 0 ? undefined : { name: question.name, addresses };
  }
}
