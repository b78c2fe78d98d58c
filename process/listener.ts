/** An HTTP server that retries until it can listen. */
import type { RequestListener, Server } from 'node:http';
import { RetryingServer, type RetryingServerOptions } from './retrying-server.ts';

export { ANY_FAMILY } from './retrying-server.ts';

// Do not use an import statement, which would also load undici (see sources/kubernetes/http.ts).
const { createServer } = process.getBuiltinModule('node:http');

/** A client that opens more connections must not use up the file descriptors of the agent. */
const MAX_CONNECTIONS = 256;

export interface ListenerOptions
  extends Omit<RetryingServerOptions, 'create' | 'closeConnections'> {
  readonly onRequest: RequestListener;
}

/**
 * An HTTP server. Retries from construction until the server listens. `close` also closes open
 * connections. Connections beyond 256 are closed at once.
 */
export class Listener extends RetryingServer {
  constructor({ onRequest, ...options }: ListenerOptions) {
    let server: Server | undefined;
    super({
      ...options,
      create: () => {
        server = createServer(onRequest);
        server.maxConnections = MAX_CONNECTIONS;
        return server;
      },
      closeConnections: () => server?.closeAllConnections(),
    });
  }
}
