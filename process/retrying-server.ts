/** A server that keeps trying to listen. */
import { type AddressInfo, isIPv6, type Server } from 'node:net';
import { backoffMs } from '../sync/backoff.ts';
import type { Timers } from '../sync/timers.ts';

/** Where to listen. */
export interface BindAddress {
  /** An IP address; the `0.0.0.0` of IPv4 and the `::` of IPv6 alone, each without the other. */
  readonly host: string;
  readonly port: number;
}

/** Both families at once, as what Go makes of any unspecified address. */
export const ANY_FAMILY = '';

export interface RetryingServerOptions extends BindAddress {
  /** Makes the server for one attempt to listen. */
  readonly create: () => Server;
  /** Ends the connections that a server has when it closes; default: they go on. */
  readonly closeConnections?: () => void;
  /** Called for each failed attempt. */
  readonly onFailure: (error: Error) => void;
  /** Called when it listens at last, after `onFailure`. */
  readonly onRecovery: () => void;
  readonly timers: Timers;
}

/** Milliseconds. A port is most often held by a process that is about to end. */
const BACKOFF = { first: 500, max: 10_000 };

/** A server that tries to listen until it can, from when it is made until it is closed. */
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

  /** Where it listens; undefined while it does not. */
  get address(): AddressInfo | undefined {
    return (this.#server?.address() as AddressInfo | null | undefined) ?? undefined;
  }

  /**
   * The port is free when it returns: Node closes a socket that listens at once (and tells later), and
   * gives up one that does not listen yet.
   */
  close(): void {
    this.#closed = true;
    this.#options.timers.clear(this.#timer);
    this.#drop();
  }

  #open(): void {
    const { host, port, create } = this.#options;
    const server = create();
    this.#server = server;
    server.on('error', (error) => this.#failed(server, error));
    server.on('listening', () => this.#listens());
    server.listen({ port, ...(host === ANY_FAMILY ? {} : { host, ipv6Only: isIPv6(host) }) });
  }

  #listens(): void {
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
