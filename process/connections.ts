/** Bounds the connections of listening servers. */
import type { Socket } from 'node:net';
import { isLoopback } from '../api/addresses.ts';

export interface ConnectionLimits {
  /** Upper bound on connections of all clients. */
  readonly total: number;
  /**
   * Upper bound on connections of one remote address. Does not hold for loopback addresses, which
   * all processes of the node share.
   */
  readonly perClient: number;
}

interface Connection {
  /** undefined: clients that share an address, or a Unix socket. */
  readonly client: string | undefined;
  /** Requests without a complete response. */
  pending: number;
}

/**
 * Open connections of one or more servers. A new connection beyond a limit closes the connection
 * that has been idle for longest: of the same client beyond `perClient`, otherwise of all. So
 * neither one client nor many can keep others out, and file descriptors and memory stay bounded
 * without a timeout that would close the connections of slow clients. If no connection is idle, the
 * one with the oldest activity is closed.
 */
export class Connections {
  readonly #limits: ConnectionLimits;
  /** Ordered by last activity, oldest first. */
  readonly #open = new Map<Socket, Connection>();
  readonly #counts = new Map<string, number>();

  constructor(limits: ConnectionLimits) {
    this.#limits = limits;
  }

  get size(): number {
    return this.#open.size;
  }

  /** Adds an accepted connection. Its socket removes itself when it closes. */
  add(socket: Socket): void {
    const client = clientOf(socket);
    const { total, perClient } = this.#limits;
    const count = client === undefined ? 0 : (this.#counts.get(client) ?? 0);
    if (count >= perClient) this.#closeOldest((each) => each.client === client);
    else if (this.size >= total) this.#closeOldest(() => true);
    this.#open.set(socket, { client, pending: 0 });
    // Read again: the closed connection may have been of this client.
    if (client !== undefined) this.#counts.set(client, (this.#counts.get(client) ?? 0) + 1);
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
    this.#open.delete(socket);
    this.#open.set(socket, connection);
  }

  #closeOldest(isCandidate: (connection: Connection) => boolean): void {
    let oldest: Socket | undefined;
    for (const [socket, connection] of this.#open) {
      if (!isCandidate(connection)) continue;
      if (connection.pending === 0) {
        oldest = socket;
        break;
      }
      oldest ??= socket;
    }
    if (oldest === undefined) return;
    // The socket emits `close` later.
    this.#remove(oldest);
    oldest.destroy();
  }

  #remove(socket: Socket): void {
    const connection = this.#open.get(socket);
    if (connection === undefined) return;
    this.#open.delete(socket);
    const { client } = connection;
    if (client === undefined) return;
    const count = (this.#counts.get(client) ?? 0) - 1;
    if (count > 0) this.#counts.set(client, count);
    else this.#counts.delete(client);
  }
}

function clientOf({ remoteAddress }: Socket): string | undefined {
  // A socket for both families has IPv4 clients as IPv4-mapped addresses (RFC 4291, 2.5.5.2).
  const address = remoteAddress?.replace(/^::ffff:/, '');
  return address === undefined || isLoopback(address) ? undefined : address;
}
