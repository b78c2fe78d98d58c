/** An HTTP server that retries until it can listen. */
import type { RequestListener, Server } from 'node:http';
import { Connections } from './connections.ts';
import { RetryingServer, type RetryingServerOptions } from './retrying-server.ts';

export { ANY_FAMILY } from './retrying-server.ts';

// Do not use an import statement, which would also load undici (see sources/kubernetes/http.ts).
const { createServer } = process.getBuiltinModule('node:http');

export interface ListenerOptions
  extends Omit<RetryingServerOptions, 'create' | 'closeConnections'> {
  readonly onRequest: RequestListener;
  /** Bounds the connections; servers may share it. Default: `CONNECTION_LIMITS`. */
  readonly connections?: Connections | undefined;
}

/** Default limits of a server. */
const CONNECTION_LIMITS = { total: 128, perClient: 10 };

/**
 * An HTTP server. Retries from construction until the server listens. `close` also closes open
 * connections.
 */
export class Listener extends RetryingServer {
  constructor({
    onRequest,
    connections = new Connections(CONNECTION_LIMITS),
    ...options
  }: ListenerOptions) {
    let server: Server | undefined;
    super({
      ...options,
      create: () => {
        server = createServer((request, response) => {
          const { socket } = request;
          connections.begin(socket);
          response.once('close', () => connections.end(socket));
          onRequest(request, response);
        });
        // An option of `net.createServer` that `http.createServer` does not pass on.
        Object.assign(server, { blockList: connections.blockList });
        server.on('connection', (socket) => connections.add(socket));
        return server;
      },
      closeConnections: () => server?.closeAllConnections(),
    });
  }
}
