/** An HTTP server that retries until it can listen. */
import type { RequestListener, Server } from 'node:http';
import { RetryingServer, type RetryingServerOptions } from './retrying-server.ts';

export { ANY_FAMILY } from './retrying-server.ts';

// Do not use an import statement, which would also load undici (see sources/kubernetes/http.ts).
const { createServer } = process.getBuiltinModule('node:http');

export interface ListenerOptions
  extends Omit<RetryingServerOptions, 'create' | 'closeConnections'> {
  readonly onRequest: RequestListener;
  /** Connections beyond are closed at once; undefined: no limit. */
  readonly maxConnections?: number | undefined;
}

/**
 * An HTTP server. Retries from construction until the server listens. `close` also closes open
 * connections.
 */
export class Listener extends RetryingServer {
  constructor({ onRequest, maxConnections, ...options }: ListenerOptions) {
    let server: Server | undefined;
    super({
      ...options,
      create: () => {
        server = createServer(onRequest);
        if (maxConnections !== undefined) server.maxConnections = maxConnections;
        return server;
      },
      closeConnections: () => server?.closeAllConnections(),
    });
  }
}
