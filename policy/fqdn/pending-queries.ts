/**
 * Observed queries without an answer. Only the first answer to a query counts, and only if
 * protocol, client address, client port, id, question and server match.
 *
 * The kernel queues only packets of connections to a resolver, and answers only if they arrive on the
 * interface of the route back (`compile/dns-chains.ts`). There an attacker would have to spoof the
 * resolver's address, and guess port, id and question. The client itself knows port, id and question,
 * and ports of a bridge count as one interface. Its packets arrive on the port of the query, so an
 * answer from that port does not count.
 */
import type { DnsQuestion } from './dns-message.ts';
import type { SocketAddress } from './packet.ts';

/** A DNS message with its addresses and interface. */
export interface ObservedMessage {
  readonly protocol: 'UDP' | 'TCP';
  /** Address and port that send the query. */
  readonly client: SocketAddress;
  /** The server: a resolver, or the endpoint after DNAT. */
  readonly server: SocketAddress;
  /** Index of the input interface; 0 for packets that the node itself sends. */
  readonly ifindex: number;
  readonly question: DnsQuestion;
}

interface PendingQuery {
  readonly server: SocketAddress;
  readonly ifindex: number;
  /** Time of expiry in milliseconds. */
  readonly until: number;
}

export interface QueryLimits {
  /** Milliseconds until a query expires. */
  readonly lifetime: number;
  /**
   * Maximum number of queries of one client address; beyond it the client's oldest query is
   * dropped.
   */
  readonly perClient: number;
  /**
   * Maximum number of queries of all clients; beyond it the queries of the least recently active
   * client are dropped.
   */
  readonly total: number;
}

/** Clients wait at most 10 s for an answer. 50,000 queries take about 10 MB. */
const QUERY_LIMITS: QueryLimits = { lifetime: 10_000, perClient: 1000, total: 50_000 };

export class PendingQueries {
  readonly #limits: QueryLimits;
  /** Queries by client address. Clients and their queries are in order of last activity. */
  readonly #clients = new Map<string, Map<string, PendingQuery>>();
  #resolvers: ReadonlySet<string> = new Set();
  #size = 0;

  constructor(limits: QueryLimits = QUERY_LIMITS) {
    this.#limits = limits;
  }

  /** @param resolvers Addresses in the binary form of `SocketAddress`. */
  setResolvers(resolvers: ReadonlySet<string>): void {
    this.#resolvers = resolvers;
  }

  get size(): number {
    return this.#size;
  }

  /** Number of clients with pending queries. */
  get clients(): number {
    return this.#clients.size;
  }

  addQuery({ protocol, client, server, ifindex, question }: ObservedMessage, now: number): void {
    const address = addressOf(client);
    const queries = this.#clients.get(address) ?? new Map<string, PendingQuery>();
    // Move to the end: most recently active.
    this.#clients.delete(address);
    this.#clients.set(address, queries);
    const key = keyOf(protocol, client, question);
    this.#drop(queries, key);
    queries.set(key, { server, ifindex, until: now + this.#limits.lifetime });
    this.#size += 1;

    for (const [oldest, { until }] of queries) {
      if (until > now && queries.size <= this.#limits.perClient) break;
      this.#drop(queries, oldest);
    }
    for (const [oldestClient, { size }] of this.#clients) {
      if (this.#size <= this.#limits.total) break;
      this.#clients.delete(oldestClient);
      this.#size -= size;
    }
  }

  /**
   * Whether an answer matches a pending query. Removes the query, so that no second answer matches.
   */
  matchAnswer(
    { protocol, client, server, ifindex, question }: ObservedMessage,
    now: number,
  ): boolean {
    const address = addressOf(client);
    const queries = this.#clients.get(address);
    const key = keyOf(protocol, client, question);
    const query = queries?.get(key);
    if (queries === undefined || query === undefined || query.until <= now) return false;
    if (!this.#isQueriedServer(query.server, server)) return false;
    if (ifindex !== 0 && ifindex === query.ifindex) return false;
    this.#drop(queries, key);
    if (queries.size === 0) this.#clients.delete(address);
    return true;
  }

  #drop(queries: Map<string, PendingQuery>, key: string): void {
    if (queries.delete(key)) this.#size -= 1;
  }

  /**
   * Whether the server that answers is the queried server. If IPVS or a later NAT rule translates
   * the packets, the query is observed with the resolver's address and the answer with the
   * endpoint's address.
   */
  #isQueriedServer(queried: SocketAddress, answering: SocketAddress): boolean {
    if (queried === answering) return true;
    return this.#resolvers.has(addressOf(queried)) && !this.#resolvers.has(addressOf(answering));
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
