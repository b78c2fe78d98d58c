import type { RequestListener, Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { RetryingServer, type RetryingServerOptions } from './retrying-server.ts';

export { ANY_FAMILY, type BindAddress } from './retrying-server.ts';

// As in sources/kubernetes/http.ts: an import would load undici.
const { createServer } = process.getBuiltinModule('node:http');

export interface ListenerOptions extends Omit<RetryingServerOptions, 'create' | 'endConnections'> {
  readonly onRequest: RequestListener;
}

/** An HTTP server that tries to listen until it can, from when it is made until it is closed. */
export class Listener {
  readonly #server: RetryingServer;
  #http: Server | undefined;

  constructor({ onRequest, ...options }: ListenerOptions) {
    this.#server = new RetryingServer({
      ...options,
      create: () => {
        this.#http = createServer(onRequest);
        return this.#http;
      },
      endConnections: () => this.#http?.closeAllConnections(),
    });
  }

  /** Where it listens; undefined while it does not. */
  get address(): AddressInfo | undefined {
    return this.#server.address;
  }

  /** Ends open connections too. The port is free when it returns. */
  close(): void {
    this.#server.close();
  }
}
