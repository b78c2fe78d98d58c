/** A server that retries until it can listen. */
import { type AddressInfo, isIPv6, type ListenOptions, type Server } from 'node:net';
import { backoffMs } from '../sync/backoff.ts';
import type { Timers } from '../sync/timers.ts';

/** The address and port to listen on. */
export interface BindAddress {
  /**
   * An IP address, or ANY_FAMILY. `0.0.0.0` listens on all IPv4 addresses only, `::` on all IPv6
   * addresses only.
   */
  readonly host: string;
  readonly port: number;
}

/** Listens on all addresses of both families. Go does so for every unspecified address. */
export const ANY_FAMILY = '';

/** A Unix socket to listen on. */
export interface SocketPath {
  readonly path: string;
}

export interface RetryingServerOptions {
  readonly listen: BindAddress | SocketPath;
  /** Called before each attempt to listen. An error that it throws counts as a failed attempt. */
  readonly prepare?: () => void;
  /** Called when the server listens. An error that it throws counts as a failed attempt. */
  readonly onListening?: () => void;
  /** Creates the server for one attempt to listen. */
  readonly create: () => Server;
  /** Closes the open connections when the server closes. Default: connections stay open. */
  readonly closeConnections?: () => void;
  /** Called after each failed attempt. */
  readonly onFailure: (error: Error) => void;
  /** Called when the server listens after at least one `onFailure`. */
  readonly onRecovery: () => void;
  readonly timers: Timers;
}

/**
 * Milliseconds between attempts to listen. Usually another process holds the port and is about to
 * exit.
 */
const BACKOFF = { first: 500, max: 10_000 };

/** A server that retries until it listens, from construction until `close`. */
export class RetryingServer {
  readonly #options: RetryingServerOptions;
  #server: Server | undefined;
  #timer: unknown;
  #failures = 0;
  #closed = false;

  constructor(options: RetryingServerOptions) {
    this.#options = options;
    this.#open();
  }

  /** The address of the listening socket; undefined while the server does not listen. */
  get address(): AddressInfo | undefined {
    return (this.#server?.address() as AddressInfo | null | undefined) ?? undefined;
  }

  /**
   * Stops listening and retrying. The port is free on return: Node closes a listening socket before
   * it emits `close`, and abandons a bind in progress.
   */
  close(): void {
    this.#closed = true;
    this.#options.timers.clear(this.#timer);
    this.#drop();
  }

  #open(): void {
    const { listen, create, prepare } = this.#options;
    const server = create();
    this.#server = server;
    server.on('error', (error) => {
      // Accepting a connection failed, for example without a free file descriptor. Keep listening.
      if (!server.listening) this.#failed(server, error);
    });
    server.on('listening', () => this.#listens(server));
    try {
      prepare?.();
    } catch (error) {
      // As an event, like every other failure to listen: the constructor has not returned yet.
      process.nextTick(() => this.#failed(server, error as Error));
      return;
    }
    server.listen(listenOptions(listen));
  }

  #listens(server: Server): void {
    try {
      this.#options.onListening?.();
    } catch (error) {
      this.#failed(server, error as Error);
      return;
    }
    if (this.#failures > 0) this.#options.onRecovery();
    this.#failures = 0;
  }

  #failed(server: Server, error: Error): void {
    if (this.#closed || server !== this.#server) return;
    this.#drop();
    const { timers, onFailure } = this.#options;
    this.#failures += 1;
    this.#timer = timers.set(() => this.#open(), backoffMs(this.#failures, BACKOFF));
    onFailure(error);
  }

  #drop(): void {
    const server = this.#server;
    this.#server = undefined;
    server?.close();
    this.#options.closeConnections?.();
  }
}

function listenOptions(target: BindAddress | SocketPath): ListenOptions {
  if ('path' in target) return { path: target.path };
  const { host, port } = target;
  return { port, ...(host === ANY_FAMILY ? {} : { host, ipv6Only: isIPv6(host) }) };
}
