/** Forwards queries for other domains to upstream resolvers. */
import { encode, type Answer as PacketRecord, type RecordType } from 'dns-packet';
import { exchange, NoResponseError, type Resolver } from './exchange.ts';
import type { ForwardCache } from './forward-cache.ts';
import { type DnsQuery, type Rcode, readQuery, type Transport } from './query.ts';
import { type HealthOptions, type ProbeObserver, ResolverHealth } from './resolver-health.ts';
import { FLAG, isTruncated, MAX_UDP_LENGTH, rcodeIn } from './response.ts';
import { BadResponseError, readUpstreamAnswer, type UpstreamAnswer } from './upstream-answer.ts';

/** Receives the result of each attempt to query a resolver. */
interface ForwardObserver extends ProbeObserver {
  answered(resolver: Resolver, rcode: number, seconds: number): void;
  failed(resolver: Resolver, error: NoResponseError): void;
  /** A query was refused because too many were in flight. */
  rejected(): void;
  /** All resolvers were down, and a query was sent to them regardless. */
  allDown(): void;
}

export interface ForwarderOptions {
  /** In order of preference. `setResolvers` replaces them. */
  readonly resolvers: readonly Resolver[];
  readonly observer: ForwardObserver;
  /** Whether the resolver is this server, which would create a forwarding loop. */
  readonly isSelf: (resolver: Resolver) => boolean;
  /** Milliseconds to wait for one resolver. */
  readonly timeout?: number;
  /**
   * Milliseconds to wait for all resolvers together. Clients give up after five seconds
   * (resolv.conf(5)).
   */
  readonly deadline?: number;
  /** Upper bound on queries in flight. */
  readonly maxConcurrent?: number;
  /** Cache of responses; undefined turns caching off. */
  readonly cache?: ForwardCache | undefined;
  /** Replaced in tests. */
  readonly health?: Pick<HealthOptions, 'probe' | 'period'>;
}

/** CoreDNS's timeouts, and the concurrency limit that kubeadm configures. */
const TIMEOUT = 2000;
const DEADLINE = 5000;
const MAX_CONCURRENT = 1000;
/**
 * Shortest useful attempt in milliseconds. An attempt's timer may fire a millisecond or two before
 * the deadline, and no response arrives in the remaining time.
 */
const MIN_ATTEMPT = 5;
/**
 * Upper bound on rounds over all resolvers, for resolvers that fail at once, such as by refusing
 * connections. With timeouts the deadline comes first: three timeouts of 2 s exceed it.
 */
const MAX_ROUNDS = 3;

class TooManyQueries extends Error {
  override readonly name = 'TooManyQueries';
}

/**
 * Queries resolvers one after the other until one answers. The resolver that answered last is tried
 * first, so an unreachable resolver costs its timeout only once. Resolvers that are down are
 * skipped. If all are down, all are tried, because the probes may be at fault.
 */
export class Forwarder {
  readonly #options: Required<Omit<ForwarderOptions, 'health' | 'cache'>>;
  readonly #cache: ForwardCache | undefined;
  readonly #health: ResolverHealth;
  #resolvers: readonly Resolver[];
  /** The resolver that answered last. */
  #preferred: Resolver | undefined;
  #inFlight = 0;
  /** Queries in flight, by transport and query without the id. */
  readonly #inFlightByQuestion = new Map<string, Promise<Buffer>>();

  constructor({ health, cache, ...options }: ForwarderOptions) {
    const defaults = { timeout: TIMEOUT, deadline: DEADLINE, maxConcurrent: MAX_CONCURRENT };
    this.#options = { ...defaults, ...options };
    this.#cache = cache;
    this.#resolvers = options.resolvers;
    this.#health = new ResolverHealth({ ...health, observer: options.observer });
  }

  /** The resolvers, and whether queries are sent to them. */
  get resolvers(): readonly { readonly resolver: Resolver; readonly isUp: boolean }[] {
    return this.#resolvers.map((resolver) => ({ resolver, isUp: !this.#health.isDown(resolver) }));
  }

  /** Replaces the resolvers. Queries in flight try the new resolvers if the old ones fail. */
  setResolvers(resolvers: readonly Resolver[]): void {
    this.#resolvers = resolvers;
    this.#preferred = undefined;
    this.#health.retain(resolvers);
  }

  /**
   * Returns a resolver's response or a cached response. A truncated UDP response stays truncated:
   * the client stated its buffer size and can retry over TCP.
   * @param bytes the query, with any id. Ignore the id of the response.
   * @returns a new buffer.
   * @throws (as a rejection) errors that `rcodeOf` accepts
   */
  async ask(bytes: Buffer, query: DnsQuery, transport: Transport): Promise<Buffer> {
    const { maxConcurrent, observer } = this.#options;
    const cached = this.#cache?.get(query, bytes);
    if (cached !== undefined) return cached;
    if (this.#inFlight >= maxConcurrent) {
      observer.rejected();
      throw new TooManyQueries('too many queries in flight');
    }
    this.#inFlight += 1;
    try {
      return Buffer.from(await this.#askDeduplicated(bytes, query, transport));
    } finally {
      this.#inFlight -= 1;
    }
  }

  /**
   * Resolves a name and type at upstream resolvers, which follow aliases.
   * @param name without the final dot.
   * @throws (as a rejection) errors that `rcodeOf` accepts
   */
  async resolve(name: string, type: number): Promise<UpstreamAnswer> {
    const bytes = encode({
      type: 'query',
      flags: FLAG.RD,
      // dns-packet accepts this form for any type number, but its TypeScript type lacks it.
      questions: [{ name, type: `UNKNOWN_${type}` as RecordType }],
      additionals: [OPT],
    });
    const query = readQuery(bytes);
    if (query === undefined || !('name' in query))
      throw new BadResponseError(`cannot encode a query for ${name}`);
    const response = await this.ask(bytes, query, 'udp');
    if (!isTruncated(response)) return readUpstreamAnswer(response);
    // A truncated response is better than none.
    return readUpstreamAnswer(await this.ask(bytes, query, 'tcp').catch(() => response));
  }

  /**
   * Sends each distinct query once at a time. If a resolver forwards to this server, for example
   * because resolv.conf names the cluster DNS, a query would otherwise loop. It would be repeated
   * until the limit of in-flight queries is reached.
   */
  #askDeduplicated(bytes: Buffer, query: DnsQuery, transport: Transport): Promise<Buffer> {
    const key = `${transport} ${bytes.toString('latin1', 2)}`;
    const same = this.#inFlightByQuestion.get(key);
    if (same !== undefined) return same;
    const ask = async () => {
      try {
        const response = await this.#tryResolvers(bytes, query.question, transport);
        this.#cache?.set(query, bytes, response);
        return response;
      } finally {
        this.#inFlightByQuestion.delete(key);
      }
    };
    const pending = ask();
    this.#inFlightByQuestion.set(key, pending);
    return pending;
  }

  async #tryResolvers(bytes: Buffer, question: Buffer, transport: Transport): Promise<Buffer> {
    const end = performance.now() + this.#options.deadline;
    let failure: unknown = new BadResponseError(
      'no upstream resolver other than this server; add another resolver to --forward',
    );
    for (let round = 0; round < MAX_ROUNDS; round++) {
      for (const resolver of this.#candidates()) {
        const remaining = end - performance.now();
        if (remaining < MIN_ATTEMPT) throw failure;
        try {
          const response = await this.#askResolver(resolver, bytes, question, transport, remaining);
          this.#preferred = resolver;
          return response;
        } catch (error) {
          if (!(error instanceof NoResponseError)) throw error;
          this.#options.observer.failed(resolver, error);
          // Probe current resolvers only: nothing would end the probes of a replaced resolver.
          if (this.#resolvers.includes(resolver)) this.#health.startProbing(resolver);
          failure = error;
        }
      }
    }
    throw failure;
  }

  /** Resolvers in the order to try them. */
  #candidates(): readonly Resolver[] {
    const { isSelf, observer } = this.#options;
    const others = this.#resolvers.filter((resolver) => !isSelf(resolver));
    const up = others.filter((resolver) => !this.#health.isDown(resolver));
    if (up.length === 0 && others.length > 0) observer.allDown();
    const candidates = up.length > 0 ? up : others;
    const preferred = this.#preferred;
    const first = preferred === undefined ? 0 : Math.max(0, candidates.indexOf(preferred));
    return [...candidates.slice(first), ...candidates.slice(0, first)];
  }

  async #askResolver(
    resolver: Resolver,
    bytes: Buffer,
    question: Buffer,
    transport: Transport,
    remaining: number,
  ): Promise<Buffer> {
    const { timeout, observer } = this.#options;
    const begun = performance.now();
    const within = Math.min(timeout, remaining);
    const response = await exchange(resolver, bytes, question, transport, within);
    const seconds = (performance.now() - begun) / 1000;
    observer.answered(resolver, rcodeIn(response), seconds);
    return response;
  }
}

/**
 * RCODE to send to the client when a Forwarder fails.
 * @throws the given error unless it is a TooManyQueries, NoResponseError or BadResponseError
 */
export function rcodeOf(error: unknown): Rcode {
  if (error instanceof TooManyQueries) return 'REFUSED'; // as CoreDNS does
  if (error instanceof NoResponseError || error instanceof BadResponseError) return 'SERVFAIL';
  throw error;
}

const OPT: PacketRecord = {
  name: '.',
  type: 'OPT',
  udpPayloadSize: MAX_UDP_LENGTH,
  extendedRcode: 0,
  ednsVersion: 0,
  flags: 0,
  flag_do: false,
  options: [],
};
