/**
 * Queries that were seen and not answered yet. An answer counts only when it is the first to a query:
 * to the client and the port that asked, with its number and its question, and from whom it asked.
 *
 * The packets that get here belong to connections to a resolver, as conntrack sees it. So what is left
 * to spoof is the resolver's own address: by guessing port, number and question from elsewhere, or by
 * knowing them, as the client does itself. But what it sends comes from its own link.
 */
import type { DnsQuestion } from './dns-message.ts';
import type { SocketAddress } from './packet.ts';

/** A message that went by, and how. */
export interface ObservedMessage {
  readonly protocol: 'UDP' | 'TCP';
  /** Who asks. */
  readonly client: SocketAddress;
  /** Who is asked: a resolver, or what its address was translated to. */
  readonly server: SocketAddress;
  /** Index of the link by which it came; 0 for what the node itself sends. */
  readonly link: number;
  readonly question: DnsQuestion;
}

interface PendingQuery {
  readonly server: SocketAddress;
  readonly link: number;
  /** In milliseconds of the clock. */
  readonly until: number;
}

export interface QueryLimits {
  /** Milliseconds for which an answer is waited for. */
  readonly lifetime: number;
  /** Of one client; who asks more loses its oldest. */
  readonly perClient: number;
  /** Of all. Those of the client that has been silent the longest go first. */
  readonly total: number;
}

/** No client waits longer. 50,000 are some 10 MB. */
const QUERY_LIMITS: QueryLimits = { lifetime: 10_000, perClient: 1000, total: 50_000 };

export class PendingQueries {
  readonly #limits: QueryLimits;
  /** By client's address; a client's queries, and the clients, in the order of their last coming. */
  readonly #clients = new Map<string, Map<string, PendingQuery>>();
  #resolvers: ReadonlySet<string> = new Set();
  #size = 0;

  constructor(limits: QueryLimits = QUERY_LIMITS) {
    this.#limits = limits;
  }

  /** @param resolvers Addresses, in bytes as a SocketAddress has them. */
  setResolvers(resolvers: ReadonlySet<string>): void {
    this.#resolvers = resolvers;
  }

  get size(): number {
    return this.#size;
  }

  /** That have asked and were not answered. */
  get clients(): number {
    return this.#clients.size;
  }

  addQuery({ protocol, client, server, link, question }: ObservedMessage, now: number): void {
    const address = addressOf(client);
    const queries = this.#clients.get(address) ?? new Map<string, PendingQuery>();
    // To the end of both.
    this.#clients.delete(address);
    this.#clients.set(address, queries);
    const key = keyOf(protocol, client, question);
    this.#forget(queries, key);
    queries.set(key, { server, link, until: now + this.#limits.lifetime });
    this.#size += 1;

    for (const [oldest, { until }] of queries) {
      if (until > now && queries.size <= this.#limits.perClient) break;
      this.#forget(queries, oldest);
    }
    for (const [silent, { size }] of this.#clients) {
      if (this.#size <= this.#limits.total) break;
      this.#clients.delete(silent);
      this.#size -= size;
    }
  }

  /** Whether an answer is one that was asked for. No other answers the same query. */
  matchAnswer({ protocol, client, server, link, question }: ObservedMessage, now: number): boolean {
    const address = addressOf(client);
    const queries = this.#clients.get(address);
    const key = keyOf(protocol, client, question);
    const query = queries?.get(key);
    if (queries === undefined || query === undefined || query.until <= now) return false;
    if (!this.#isAsked(query.server, server)) return false;
    if (link !== 0 && link === query.link) return false;
    this.#forget(queries, key);
    if (queries.size === 0) this.#clients.delete(address);
    return true;
  }

  #forget(queries: Map<string, PendingQuery>, key: string): void {
    if (queries.delete(key)) this.#size -= 1;
  }

  /**
   * Where IPVS or a rule translates behind us, a query is seen with the resolver's own address and the
   * answer with that of the endpoint.
   */
  #isAsked(asked: SocketAddress, answers: SocketAddress): boolean {
    if (asked === answers) return true;
    return this.#resolvers.has(addressOf(asked)) && !this.#resolvers.has(addressOf(answers));
  }
}

function addressOf(endpoint: SocketAddress): string {
  return endpoint.slice(0, -2);
}

function keyOf(
  protocol: 'UDP' | 'TCP',
  client: SocketAddress,
  { id, name, type }: DnsQuestion,
): string {
  return `${protocol}${client.slice(-2)}${id} ${type} ${name}`;
}
