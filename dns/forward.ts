/** Asks other resolvers about domains that are not ours. */
import { encode, type Answer as PacketRecord, type RecordType } from 'dns-packet';
import { exchange, NoAnswer, type Resolver } from './exchange.ts';
import type { ForwardCache } from './forward-cache.ts';
import { type DnsQuery, type Rcode, readQuery, type Transport } from './query.ts';
import { type HealthOptions, type ProbeObserver, ResolverHealth } from './resolver-health.ts';
import { FLAG, isTruncated, MAX_UDP_LENGTH, rcodeIn } from './response.ts';
import { BadAnswer, readUpstreamAnswer, type UpstreamAnswer } from './upstream-answer.ts';

/** Hears of each attempt to have a resolver answer. */
interface ForwardObserver extends ProbeObserver {
  answered(resolver: Resolver, rcode: number, seconds: number): void;
  failed(resolver: Resolver, error: NoAnswer): void;
  /** There were too many queries under way. */
  rejected(): void;
  /** All resolvers were down, and were asked all the same. */
  allDown(): void;
}

export interface ForwarderOptions {
  /** In the order of preference. `setResolvers` replaces them. */
  readonly resolvers: readonly Resolver[];
  readonly observer: ForwardObserver;
  /** Whether this is the server itself: it would ask itself for ever. */
  readonly isSelf: (resolver: Resolver) => boolean;
  /** Milliseconds that one resolver gets. */
  readonly timeout?: number;
  /** Milliseconds for all of them; clients give up after five seconds (resolv.conf(5)). */
  readonly deadline?: number;
  /** How many queries may be under way. */
  readonly maxConcurrent?: number;
  /** Answers that may be kept; undefined: none are. */
  readonly cache?: ForwardCache | undefined;
  /** Another one in tests. */
  readonly health?: Pick<HealthOptions, 'probe' | 'period'>;
}

/** CoreDNS's timeouts, and the limit that kubeadm gives it. */
const TIMEOUT = 2000;
const DEADLINE = 5000;
const MAX_CONCURRENT = 1000;
/** Milliseconds. A timer may run out a millisecond or two early, and what is left then is no time for an answer. */
const MIN_ATTEMPT = 5;
/** How often all resolvers are asked: three times 2 s is more than the deadline; one that refuses does so at once. */
const MAX_ROUNDS = 3;

class TooManyQueries extends Error {
  override readonly name = 'TooManyQueries';
}

/**
 * Resolvers that are asked one after the other, until one answers. The one that answered last is asked
 * first, so that one that is away costs its timeout once. Those that are down are left out, unless all are: then it
 * may be the probes that fail.
 */
export class Forwarder {
  readonly #options: Required<Omit<ForwarderOptions, 'health' | 'cache'>>;
  readonly #cache: ForwardCache | undefined;
  readonly #health: ResolverHealth;
  #resolvers: readonly Resolver[];
  /** The one that answered last. */
  #preferred: Resolver | undefined;
  #inFlight = 0;
  /** By what is asked, but for the id. */
  readonly #inFlightByQuestion = new Map<string, Promise<Buffer>>();

  constructor({ health, cache, ...options }: ForwarderOptions) {
    const defaults = { timeout: TIMEOUT, deadline: DEADLINE, maxConcurrent: MAX_CONCURRENT };
    this.#options = { ...defaults, ...options };
    this.#cache = cache;
    this.#resolvers = options.resolvers;
    this.#health = new ResolverHealth({ ...health, observer: options.observer });
  }

  /** Resolvers, and whether queries go there. */
  get resolvers(): readonly { readonly resolver: Resolver; readonly isUp: boolean }[] {
    return this.#resolvers.map((resolver) => ({ resolver, isUp: !this.#health.isDown(resolver) }));
  }

  /** Queries under way ask these when all that they have did not answer. */
  setResolvers(resolvers: readonly Resolver[]): void {
    this.#resolvers = resolvers;
    this.#preferred = undefined;
    this.#health.retain(resolvers);
  }

  /**
   * The answer to a query as it came, or as it was kept. One that was cut for UDP stays so: whoever asked by UDP said how
   * much it takes, and can ask by TCP itself.
   * @param bytes of the query; the id does not matter. That of the answer means nothing.
   * @returns bytes of its own.
   * @throws (a rejection) what `rcodeOf` has an answer for.
   */
  async ask(bytes: Buffer, query: DnsQuery, transport: Transport): Promise<Buffer> {
    const { maxConcurrent, observer } = this.#options;
    const kept = this.#cache?.get(query, bytes);
    if (kept !== undefined) return kept;
    if (this.#inFlight >= maxConcurrent) {
      observer.rejected();
      throw new TooManyQueries('too many queries are under way');
    }
    this.#inFlight += 1;
    try {
      return Buffer.from(await this.#askDeduplicated(bytes, query, transport));
    } finally {
      this.#inFlight -= 1;
    }
  }

  /**
   * All that other servers have under a name and type, aliases followed.
   * @param name without the final dot.
   * @throws (a rejection) what `rcodeOf` has an answer for.
   */
  async resolve(name: string, type: number): Promise<UpstreamAnswer> {
    const bytes = encode({
      type: 'query',
      flags: FLAG.RD,
      // dns-packet takes a type by number in this form, which its type lacks.
      questions: [{ name, type: `UNKNOWN_${type}` as RecordType }],
      additionals: [OPT],
    });
    const query = readQuery(bytes);
    if (query === undefined || !('name' in query)) throw new BadAnswer(`cannot ask for ${name}`);
    const response = await this.ask(bytes, query, 'udp');
    if (!isTruncated(response)) return readUpstreamAnswer(response);
    // What was cut is better than nothing.
    return readUpstreamAnswer(await this.ask(bytes, query, 'tcp').catch(() => response));
  }

  /**
   * The same query is under way once. Where a resolver asks this server in turn, as by a resolv.conf that names the
   * cluster's own DNS, it would otherwise go round until there is no room for more, and each time it is sent again.
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
    const asked = ask();
    this.#inFlightByQuestion.set(key, asked);
    return asked;
  }

  async #tryResolvers(bytes: Buffer, question: Buffer, transport: Transport): Promise<Buffer> {
    const end = performance.now() + this.#options.deadline;
    let failure: unknown = new BadAnswer('there is no resolver but this server itself');
    for (let round = 0; round < MAX_ROUNDS; round++) {
      for (const resolver of this.#candidates()) {
        const left = end - performance.now();
        if (left < MIN_ATTEMPT) throw failure;
        try {
          const response = await this.#askResolver(resolver, bytes, question, transport, left);
          this.#preferred = resolver;
          return response;
        } catch (error) {
          if (!(error instanceof NoAnswer)) throw error;
          this.#options.observer.failed(resolver, error);
          // Nobody would end the probes of one that was replaced meanwhile.
          if (this.#resolvers.includes(resolver)) this.#health.startProbing(resolver);
          failure = error;
        }
      }
    }
    throw failure;
  }

  /** Resolvers to ask, in this order. */
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
    left: number,
  ): Promise<Buffer> {
    const { timeout, observer } = this.#options;
    const begun = performance.now();
    const within = Math.min(timeout, left);
    const response = await exchange(resolver, bytes, question, transport, within);
    const seconds = (performance.now() - begun) / 1000;
    observer.answered(resolver, rcodeIn(response), seconds);
    return response;
  }
}

/** What a client is to be told of a failure of a Forwarder. @throws what is none. */
export function rcodeOf(error: unknown): Rcode {
  if (error instanceof TooManyQueries) return 'REFUSED'; // as CoreDNS
  if (error instanceof NoAnswer || error instanceof BadAnswer) return 'SERVFAIL';
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
