/** Looks into the packets to and from resolvers. No I/O; the clock is handed in. */
import { NamePatterns } from '../model/domain-names.ts';
import { type DnsMessage, type ResolvedAddress, readDnsMessage } from './dns-message.ts';
import { readPacket, type SocketAddress, type TransportPayload } from './packet.ts';
import { type ObservedMessage, PendingQueries } from './pending-queries.ts';
import { type Stream, TcpStreams } from './tcp-streams.ts';

/** What was answered to a query that was seen. */
export interface DnsObservation {
  readonly name: string;
  readonly addresses: readonly ResolvedAddress[];
}

/** What a packet tells. */
export interface InspectionResult<Tag> {
  /** Of names that matter. */
  readonly observations: readonly DnsObservation[];
  /** The TCP stream that it is part of, if it carries a part of it. */
  readonly stream: Stream<Tag> | undefined;
}

export class Inspector<Tag> {
  /** What went by since the start. */
  readonly counts = {
    queries: 0,
    /** Answers to queries that were seen. */
    answers: 0,
    /** Answers that nobody asked for, or not so. */
    unasked: 0,
    /** Packets, or messages in TCP streams, that could not be read. */
    unreadable: 0,
  };
  readonly #queries = new PendingQueries();
  readonly #streams = new TcpStreams<Tag>();
  #patterns = new NamePatterns<true>();

  /** TCP streams that were given up. */
  get givenUp(): number {
    return this.#streams.stats().givenUp;
  }

  /** @param patterns Of names that matter. */
  setPatterns(patterns: readonly string[]): void {
    this.#patterns = new NamePatterns(patterns.map((pattern) => [pattern, true]));
  }

  /** @param resolvers Addresses, in bytes as a SocketAddress has them. */
  setResolvers(resolvers: ReadonlySet<string>): void {
    this.#queries.setResolvers(resolvers);
  }

  /**
   * @param packet From the IP header on.
   * @param link Index of the link by which it came; 0 for what the node itself sends.
   * @param now In milliseconds.
   */
  inspect(packet: Buffer, link: number, now: number): InspectionResult<Tag> {
    const observations: DnsObservation[] = [];
    const segment = readPacket(packet);
    if (segment === undefined) {
      this.counts.unreadable += 1;
      return { observations, stream: undefined };
    }
    const look = (bytes: Buffer) => {
      const message = readDnsMessage(bytes);
      const observation = this.#message(segment, message, link, now);
      if (observation !== undefined) observations.push(observation);
    };
    if (segment.protocol === 'UDP') {
      look(segment.data);
      return { observations, stream: undefined };
    }
    const stream = this.#streams.addSegment(segment, look);
    return { observations, stream: segment.data.length === 0 ? undefined : stream };
  }

  #message(
    { protocol, source, destination }: TransportPayload,
    message: DnsMessage | undefined,
    link: number,
    now: number,
  ): DnsObservation | undefined {
    if (message === undefined) {
      this.counts.unreadable += 1;
      return undefined;
    }
    const { kind, question } = message;
    const passage = (client: SocketAddress, server: SocketAddress): ObservedMessage => {
      return { protocol, client, server, link, question };
    };
    if (kind === 'query') {
      this.counts.queries += 1;
      this.#queries.addQuery(passage(source, destination), now);
      return undefined;
    }
    if (!this.#queries.matchAnswer(passage(destination, source), now)) {
      this.counts.unasked += 1;
      return undefined;
    }
    this.counts.answers += 1;
    if (!this.#patterns.matches(question.name)) return undefined;
    const addresses = message.addresses();
    return addresses.length === 0 ? undefined : { name: question.name, addresses };
  }
}
