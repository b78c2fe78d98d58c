/** Bounds the connections of listening servers. */
import { BlockList, type Socket, type SocketAddress } from 'node:net';
import { isLoopback } from '../api/addresses.ts';

export interface ConnectionLimits {
  /** Upper bound on connections of all clients. */
  readonly total: number;
  /**
   * Connections of one remote address above which its idle connections are closed. Does not hold
   * for loopback addresses, which all processes of the node share.
   */
  readonly perClient: number;
}

interface Connection {
  readonly client: string;
  /** Milliseconds of the clock. */
  readonly accepted: number;
  /** Requests without a complete response. */
  pending: number;
  hasAnswered: boolean;
}

/** Clients that share an address, or a Unix socket. */
const SHARED = '';
/**
 * Milliseconds for the first request to arrive. The server accepts a burst of connections before it
 * reads their requests, and the network may lose packets.
 */
const GRACE = 2000;

/**
 * Open connections of one or more servers. A connection is idle when all its requests have been
 * answered, or none came within `GRACE`. A new connection beyond `perClient` closes idle
 * connections of the same client. If they are all busy, they may be more, up to half of `total`: a
 * load balancer probes many ports at once, and many pods may have one address. Others are refused
 * before Node.js makes sockets of them, because each socket leaves more than a kilobyte of garbage
 * that only a major garbage collection removes. A new connection beyond `total` closes
 * another one: of the client with the most connections if they are more than `perClient`, otherwise
 * of all. So neither one client nor many can keep others out, and file descriptors and memory stay
 * bounded without a timeout that would close the connections of slow clients.
 */
export class Connections {
  readonly #limits: ConnectionLimits;
  readonly #now: () => number;
  /** Ordered by last activity, oldest first. */
  readonly #open = new Map<Socket, Connection>();
  readonly #counts = new Map<string, number>();
  /** Belongs to each server: refuses connections beyond the limits of a client. */
  readonly blockList: BlockList = new Refusals((client) => this.#refuses(client));

  constructor(limits: ConnectionLimits, now = () => performance.now()) {
    this.#limits = limits;
    this.#now = now;
  }

  get size(): number {
    return this.#open.size;
  }

  /** Adds an accepted connection. Its socket removes itself when it closes. */
  add(socket: Socket): void {
    const client = clientAt(socket.remoteAddress);
    if (this.size >= this.#limits.total) this.#closeOldest(this.#largestClient());
    this.#open.set(socket, { client, accepted: this.#now(), pending: 0, hasAnswered: false });
    this.#counts.set(client, this.#countOf(client) + 1);
    socket.once('close', () => this.#remove(socket));
  }

  /** A request of the connection has been received. */
  begin(socket: Socket): void {
    const connection = this.#open.get(socket);
    if (connection !== undefined) connection.pending += 1;
  }

  /** The response to a request of the connection is complete. */
  end(socket: Socket): void {
    const connection = this.#open.get(socket);
    if (connection === undefined) return;
    connection.pending -= 1;
    connection.hasAnswered = true;
    this.#open.delete(socket);
    this.#open.set(socket, connection);
  }

  /** Makes room for a connection of a client, if necessary. @returns whether there is none. */
  #refuses(client: string): boolean {
    if (client === SHARED) return false;
    this.#closeIdle(client);
    return this.#countOf(client) >= this.#limits.total / 2;
  }

  #countOf(client: string): number {
    return this.#counts.get(client) ?? 0;
  }

  #isIdle({ pending, hasAnswered, accepted }: Connection): boolean {
    return pending === 0 && (hasAnswered || this.#now() - accepted >= GRACE);
  }

  /** Closes idle connections of a client until it may open another one, oldest first. */
  #closeIdle(client: string): void {
    if (this.#countOf(client) < this.#limits.perClient) return;
    for (const [socket, connection] of this.#open) {
      if (connection.client !== client || !this.#isIdle(connection)) continue;
      this.#close(socket);
      if (this.#countOf(client) < this.#limits.perClient) return;
    }
  }

  /** The client with the most connections, if they are more than `perClient`. */
  #largestClient(): string | undefined {
    let largest: string | undefined;
    let most = this.#limits.perClient;
    for (const [client, count] of this.#counts) {
      if (count <= most) continue;
      largest = client;
      most = count;
    }
    return largest;
  }

  /**
   * Closes the connection with the oldest activity, of one client or of all: an idle one if there
   * is any, otherwise one without a request, otherwise one with a request.
   */
  #closeOldest(client: string | undefined): void {
    let unused: Socket | undefined;
    let oldest: Socket | undefined;
    for (const [socket, connection] of this.#open) {
      if (client !== undefined && connection.client !== client) continue;
      if (this.#isIdle(connection)) {
        this.#close(socket);
        return;
      }
      if (connection.pending === 0) unused ??= socket;
      oldest ??= socket;
    }
    const chosen = unused ?? oldest;
    if (chosen !== undefined) this.#close(chosen);
  }

  #close(socket: Socket): void {
    // The socket emits `close` later.
    this.#remove(socket);
    socket.destroy();
  }

  #remove(socket: Socket): void {
    const connection = this.#open.get(socket);
    if (connection === undefined) return;
    this.#open.delete(socket);
    const { client } = connection;
    const count = this.#countOf(client) - 1;
    if (count > 0) this.#counts.set(client, count);
    else this.#counts.delete(client);
  }
}

/** Node.js asks a block list about each connection, before it makes a socket. */
class Refusals extends BlockList {
  readonly #refuses: (client: string) => boolean;

  constructor(refuses: (client: string) => boolean) {
    super();
    this.#refuses = refuses;
  }

  override check(given: SocketAddress | string): boolean {
    return this.#refuses(clientAt(typeof given === 'string' ? given : given.address));
  }
}

function clientAt(remoteAddress: string | undefined): string {
  // A socket for both families has IPv4 clients as IPv4-mapped addresses (RFC 4291, 2.5.5.2).
  const address = remoteAddress?.replace(/^::ffff:/, '');
  return address === undefined || isLoopback(address) ? SHARED : address;
}
