/** dns/ answers queries for names of the cluster and forwards others; here are the sockets, UDP and TCP, on each address. */
import { createSocket, type Socket as UdpSocket } from 'node:dgram';
import { once } from 'node:events';
import { createServer, type Server, type Socket as TcpSocket } from 'node:net';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { familyOf } from '../api/addresses.ts';
import type { IpFamily } from '../api/objects.ts';
import type { HandledQuery, HandlerResult, QueryHandler } from './handler.ts';
import type { Transport } from './query.ts';
import { TCP_LIMITS, TcpConnections, type TcpLimits } from './tcp.ts';

/** A query and its answer, from the first of its bytes that was seen to the last that was written. */
export interface ServedQuery extends HandledQuery {
  readonly family: IpFamily;
  readonly seconds: number;
}

interface ServerOptions {
  /** 0: any, a different one for each address. */
  readonly port: number;
  readonly handle: QueryHandler;
  readonly onServed: (exchange: ServedQuery) => void;
  /** Kept by the server: addresses that are listened on. For parts that are made before it. */
  readonly addresses?: Set<string>;
  readonly limits?: TcpLimits;
}

interface Sockets {
  readonly udp: UdpSocket;
  readonly tcp: Server;
}

/** Bytes; the kernel gives as much as `net.core.rmem_max` allows. Room while others are answered. */
const RECEIVE_BUFFER = 1 << 20;
/** Bytes of answers that the kernel did not take yet; more are lost, as the network loses them. */
const MAX_SEND_QUEUE = 1 << 20;

/**
 * Answers queries on single addresses, never on all at once: an answer by UDP has to leave from the address
 * that was asked, and Node.js cannot tell which that was.
 */
export class DnsServer {
  readonly #options: ServerOptions;
  readonly #connections: TcpConnections;
  readonly #sockets = new Map<string, Sockets>();
  readonly #addresses: Set<string>;
  /** Answers that wait for other servers. */
  readonly #inFlight = new Set<Promise<unknown>>();
  #isDraining = false;

  constructor(options: ServerOptions) {
    this.#options = options;
    this.#addresses = options.addresses ?? new Set();
    this.#connections = new TcpConnections(options.limits ?? TCP_LIMITS);
  }

  /** Addresses that are listened on. */
  get addresses(): readonly string[] {
    return [...this.#addresses];
  }

  get connections(): number {
    return this.#connections.size;
  }

  /** Where an address is listened on; undefined where it is not. */
  portOf(address: string): number | undefined {
    return this.#sockets.get(address)?.udp.address().port;
  }

  /**
   * Listens on an address, by UDP and by TCP.
   * @throws (a rejection) what the system says; nothing is open then.
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

  /** Stops listening; connections that were accepted live on. */
  close(address: string): void {
    const sockets = this.#sockets.get(address);
    this.#sockets.delete(address);
    this.#addresses.delete(address);
    sockets?.udp.close();
    sockets?.tcp.close();
  }

  /**
   * Answers the queries that have been received, takes no more, and closes everything.
   * @param limit milliseconds, after which it closes whatever is left.
   */
  async drain(limit: number): Promise<void> {
    // Datagrams that the kernel holds are read in the event loop's next turn.
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

  /** Stops listening, and closes all connections. */
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
      // Clients are addresses; Node.js would look each up, at another turn of the event loop.
      lookup: (host, _, callback) => callback(null, host, family === 'IPv6' ? 6 : 4),
    });
    try {
      // Before it is told: without a look-up, all happens at once.
      const listening = once(socket, 'listening');
      socket.bind(this.#options.port, address);
      await listening;
    } catch (error) {
      socket.close();
      throw error;
    }
    // One that cannot be sent is one that was lost.
    socket.on('error', () => undefined);
    socket.on('message', (bytes, client) => {
      // Nobody can be there, and Node.js throws when it is to send there.
      if (client.port === 0 || this.#isDraining) return;
      const send = (response: Buffer | undefined) => {
        // It may have been closed while somebody else was asked.
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
    const server = createServer({ allowHalfOpen: true, noDelay: true }, (socket: TcpSocket) => {
      this.#connections.add(socket, (query) => this.#answer(query, 'tcp', family));
    });
    server.listen({ host: address, port, ipv6Only: family === 'IPv6' });
    await once(server, 'listening');
    // Such as no file descriptor left for a connection; the next may find one.
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
    const tell = ({ response, served }: HandlerResult) => {
      const seconds = (performance.now() - begun) / 1000;
      if (served !== undefined) onServed({ ...served, family, seconds });
      return response;
    };
    const handled = handle(query, transport);
    if (!(handled instanceof Promise)) return tell(handled);
    const told = handled.then(tell);
    this.#inFlight.add(told);
    void told.finally(() => this.#inFlight.delete(told)).catch(() => undefined);
    return told;
  }
}
