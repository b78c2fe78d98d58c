/**
 * dns/ answers queries for names of the cluster and forwards other queries. This file has the UDP
 * and TCP sockets of each address.
 */
import { createSocket, type Socket as UdpSocket } from 'node:dgram';
import { once } from 'node:events';
import { createServer, type Server, type Socket as TcpSocket } from 'node:net';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { familyOf } from '../api/addresses.ts';
import type { IpFamily } from '../api/objects.ts';
import type { HandledQuery, HandlerResult, QueryHandler } from './handler.ts';
import type { Transport } from './query.ts';
import { TCP_LIMITS, TcpConnections, type TcpLimits } from './tcp.ts';

/** An answered query. `seconds` is the time to make the response, without sending it. */
export interface ServedQuery extends HandledQuery {
  readonly family: IpFamily;
  readonly seconds: number;
}

interface ServerOptions {
  /** 0 selects an ephemeral port, a different one for each address. */
  readonly port: number;
  readonly handle: QueryHandler;
  readonly onServed: (exchange: ServedQuery) => void;
  /**
   * The addresses being listened on, updated by the server. A caller that needs the set before the
   * server exists can pass a set.
   */
  readonly addresses?: Set<string>;
  readonly limits?: TcpLimits;
}

interface Sockets {
  readonly udp: UdpSocket;
  readonly tcp: Server;
}

/**
 * Bytes of the UDP receive buffer, for queries that arrive while this process answers earlier ones.
 * The kernel grants at most `net.core.rmem_max`.
 */
const RECEIVE_BUFFER = 1 << 20;
/**
 * Bytes of UDP responses of one socket that the kernel has not accepted yet. Further responses are
 * dropped, as if lost in the network.
 */
const MAX_SEND_QUEUE = 1 << 20;

/**
 * Answers queries on individual addresses, never on a wildcard address. A UDP response must be sent
 * from the address that received the query, and Node.js does not report that address.
 */
export class DnsServer {
  readonly #options: ServerOptions;
  readonly #connections: TcpConnections;
  readonly #sockets = new Map<string, Sockets>();
  readonly #addresses: Set<string>;
  /** Responses that wait for an upstream resolver. */
  readonly #inFlight = new Set<Promise<unknown>>();
  #isDraining = false;

  constructor(options: ServerOptions) {
    this.#options = options;
    this.#addresses = options.addresses ?? new Set();
    this.#connections = new TcpConnections(options.limits ?? TCP_LIMITS);
  }

  /** Addresses being listened on. */
  get addresses(): readonly string[] {
    return [...this.#addresses];
  }

  get connections(): number {
    return this.#connections.size;
  }

  /** Port of an address; undefined if the server does not listen on it. */
  portOf(address: string): number | undefined {
    return this.#sockets.get(address)?.udp.address().port;
  }

  /**
   * Listens on an address over UDP and TCP.
   * @throws (as a rejection) the system error; no socket remains open then
   */
  async listen(address: string): Promise<void> {
    const udp = await this.#listenUdp(address);
    try {
      const tcp = await this.#listenTcp(address, udp.address().port);
      this.#sockets.set(address, { udp, tcp });
      this.#addresses.add(address);
    } catch (error) {
      udp.close();
      throw error;
    }
  }

  /** Stops listening. Accepted connections stay open. */
  close(address: string): void {
    const sockets = this.#sockets.get(address);
    this.#sockets.delete(address);
    this.#addresses.delete(address);
    sockets?.udp.close();
    sockets?.tcp.close();
  }

  /**
   * Answers the queries already received, ignores new queries, and closes all sockets.
   * @param limit milliseconds after which the sockets are closed even if queries are pending.
   */
  async drain(limit: number): Promise<void> {
    // Wait one turn of the event loop: it reads the datagrams in the kernel's receive buffer.
    await nextTurn();
    this.#isDraining = true;
    for (const { tcp } of this.#sockets.values()) tcp.close();
    const timer = new AbortController();
    await Promise.race([
      Promise.all([Promise.allSettled(this.#inFlight), this.#connections.finish()]),
      sleep(limit, undefined, { signal: timer.signal }).catch(() => undefined),
    ]);
    timer.abort();
    this.closeAll();
  }

  /** Stops listening and closes all connections. */
  closeAll(): void {
    for (const address of this.addresses) this.close(address);
    this.#connections.close();
  }

  async #listenUdp(address: string): Promise<UdpSocket> {
    const family = familyOf(address);
    const socket = createSocket({
      type: family === 'IPv6' ? 'udp6' : 'udp4',
      ipv6Only: family === 'IPv6',
      recvBufferSize: RECEIVE_BUFFER,
      // Client hosts are IP addresses. Node.js's default lookup would take another turn of the
      // event loop.
      lookup: (host, _, callback) => callback(null, host, family === 'IPv6' ? 6 : 4),
    });
    try {
      // Listen for the event first: because the lookup is synchronous, bind() emits it at once.
      const listening = once(socket, 'listening');
      socket.bind(this.#options.port, address);
      await listening;
    } catch (error) {
      socket.close();
      throw error;
    }
    // A response that cannot be sent is treated as lost.
    socket.on('error', () => undefined);
    socket.on('message', (bytes, client) => {
      // Port 0 is not a valid source port, and Node.js throws when sending to it.
      if (client.port === 0 || this.#isDraining) return;
      const send = (response: Buffer | undefined) => {
        // The socket may have been closed while a resolver was queried.
        if (response === undefined || this.#sockets.get(address)?.udp !== socket) return;
        if (socket.getSendQueueSize() > MAX_SEND_QUEUE) return;
        socket.send(response, client.port, client.address);
      };
      const response = this.#answer(bytes, 'udp', family);
      if (response instanceof Promise) void response.then(send);
      else send(response);
    });
    return socket;
  }

  async #listenTcp(address: string, port: number): Promise<Server> {
    const family = familyOf(address);
    const { blockList } = this.#connections;
    const options = { allowHalfOpen: true, noDelay: true, blockList };
    const server = createServer(options, (socket: TcpSocket) => {
      this.#connections.add(socket, (query) => this.#answer(query, 'tcp', family));
    });
    server.listen({ host: address, port, ipv6Only: family === 'IPv6' });
    await once(server, 'listening');
    // Accepting a connection failed, for example without a free file descriptor. Keep listening.
    server.on('error', () => undefined);
    return server;
  }

  #answer(
    query: Buffer,
    transport: Transport,
    family: IpFamily,
  ): Buffer | undefined | Promise<Buffer | undefined> {
    const { handle, onServed } = this.#options;
    const begun = performance.now();
    const report = ({ response, served }: HandlerResult) => {
      const seconds = (performance.now() - begun) / 1000;
      if (served !== undefined) onServed({ ...served, family, seconds });
      return response;
    };
    const handled = handle(query, transport);
    if (!(handled instanceof Promise)) return report(handled);
    const pending = handled.then(report);
    this.#inFlight.add(pending);
    void pending.finally(() => this.#inFlight.delete(pending)).catch(() => undefined);
    return pending;
  }
}
