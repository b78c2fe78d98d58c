/** Asks other resolvers about domains that are not ours. */
import { encode, type Answer as PacketRecord, type RecordType } from 'dns-packet';
import { exchange, NoAnswer, type Resolver } from './exchange.ts';
import { HEADER_LENGTH, type Query, type Rcode, type Transport } from './query.ts';
import { BadAnswer, type Resolution, readResolution } from './resolution.ts';
import { FLAG, isTruncated, MAX_UDP_LENGTH, OPT_LENGTH, rcodeIn } from './response.ts';
import { nameOfType } from './types.ts';

/** Hears of each attempt to have a resolver answer. */
export interface ForwardObserver {
  answered(resolver: Resolver, rcode: number, seconds: number): void;
  failed(resolver: Resolver, error: NoAnswer): void;
  /** There were too many queries under way. */
  rejected(): void;
}

export interface ForwarderOptions {
  /** In the order of preference. */
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
}

/** CoreDNS's timeouts, and the limit that kubeadm gives it. */
const TIMEOUT = 2000;
const DEADLINE = 5000;
const MAX_CONCURRENT = 1000;

class TooManyQueries extends Error {
  override readonly name = 'TooManyQueries';
}

/**
 * Resolvers that are asked one after the other, until one answers. The one that answered last is asked
 * first, so that one that is away costs its timeout once.
 */
export class Forwarder {
  readonly #options: Required<ForwarderOptions>;
  #first = 0;
  #underWay = 0;

  constructor(options: ForwarderOptions) {
    const defaults = { timeout: TIMEOUT, deadline: DEADLINE, maxConcurrent: MAX_CONCURRENT };
    this.#options = { ...defaults, ...options };
  }

  /**
   * The answer to a query as it came. One that was cut for UDP stays so: whoever asked by UDP said how
   * much it takes, and can ask by TCP itself.
   * @param bytes of the query; the id does not matter. That of the answer means nothing.
   * @returns bytes of its own.
   * @throws (a rejection) what `rcodeOf` has an answer for.
   */
  async ask(
    bytes: Buffer,
    { question }: Pick<Query, 'question'>,
    transport: Transport,
  ): Promise<Buffer> {
    const { maxConcurrent, observer } = this.#options;
    if (this.#underWay >= maxConcurrent) {
      observer.rejected();
      throw new TooManyQueries('too many queries are under way');
    }
    this.#underWay += 1;
    try {
      return await this.#askInTurn(bytes, question, transport);
    } finally {
      this.#underWay -= 1;
    }
  }

  /**
   * All that other servers have under a name and type, aliases followed.
   * @param name without the final dot.
   * @throws (a rejection) what `rcodeOf` has an answer for.
   */
  async resolve(name: string, type: number): Promise<Resolution> {
    const bytes = encode({
      type: 'query',
      flags: FLAG.RD,
      // dns-packet's type lacks the names that it has for types it does not know.
      questions: [{ name, type: nameOfType(type) as RecordType }],
      additionals: [OPT],
    });
    const question = bytes.subarray(HEADER_LENGTH, bytes.length - OPT_LENGTH);
    const response = await this.ask(bytes, { question }, 'udp');
    if (!isTruncated(response)) return readResolution(response);
    // What was cut is better than nothing.
    return readResolution(await this.ask(bytes, { question }, 'tcp').catch(() => response));
  }

  async #askInTurn(bytes: Buffer, question: Buffer, transport: Transport): Promise<Buffer> {
    const { resolvers, deadline, isSelf } = this.#options;
    const end = performance.now() + deadline;
    const first = this.#first;
    let failure: unknown = new BadAnswer('there is no resolver but this server itself');
    for (let turn = 0; turn < resolvers.length; turn++) {
      const index = (first + turn) % resolvers.length;
      const resolver = resolvers[index];
      const left = end - performance.now();
      if (resolver === undefined || isSelf(resolver)) continue;
      // A timer may run out a little early, and then there is next to nothing left.
      if (left < 1) break;
      try {
        const response = await this.#askOne(resolver, bytes, question, transport, left);
        this.#first = index;
        return response;
      } catch (error) {
        if (!(error instanceof NoAnswer)) throw error;
        this.#options.observer.failed(resolver, error);
        failure = error;
      }
    }
    throw failure;
  }

  async #askOne(
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
