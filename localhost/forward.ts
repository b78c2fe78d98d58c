/** Forwards one TCP connection to an endpoint. */
import { connect, type Socket } from 'node:net';

/** Address and port of an endpoint. */
export interface EndpointAddress {
  readonly address: string;
  readonly port: number;
}

/**
 * Milliseconds to wait for an endpoint to accept a connection, as in kube-proxy's localhost proxy.
 */
const CONNECT_TIMEOUT = 5000;

/**
 * Idle milliseconds before TCP keep-alive probes start, so that a dead pod does not hold a socket
 * forever.
 */
const KEEP_ALIVE = 15_000;

/** Options of the client's connection and of the connection to the endpoint. */
const OPTIONS = {
  // Each direction closes separately: a client may close its side and still wait for the response.
  allowHalfOpen: true,
  noDelay: true,
  keepAlive: true,
  keepAliveInitialDelay: KEEP_ALIVE,
};

/**
 * Options of a server that passes its connections to `forwardConnection`. Pauses each connection
 * until the endpoint is connected.
 */
export const SERVER_OPTIONS = { ...OPTIONS, pauseOnConnect: true };

/**
 * Resets a socket, or destroys a socket that is still connecting: Node.js would reset it only after
 * it has connected.
 */
function abort(socket: Socket): void {
  if (socket.connecting) socket.destroy();
  else socket.resetAndDestroy();
}

/**
 * Forwards a connection to an endpoint until both sides have closed it. While one side does not
 * read, data from the other waits in the kernel. If one side aborts, the other is reset.
 * @returns whether the endpoint accepted the connection; never rejects.
 */
export function forwardConnection(
  client: Socket,
  { address, port }: EndpointAddress,
): Promise<boolean> {
  const endpoint = connect({ ...OPTIONS, host: address, port });
  return new Promise((resolve) => {
    const timer = setTimeout(() => endpoint.destroy(), CONNECT_TIMEOUT);
    let isConnected = false;
    endpoint.once('connect', () => {
      clearTimeout(timer);
      isConnected = true;
      client.pipe(endpoint);
      endpoint.pipe(client);
      resolve(true);
    });
    for (const [side, other] of [
      [client, endpoint],
      [endpoint, client],
    ] as const) {
      // `close` follows each error. Without this listener an error would terminate the agent.
      side.on('error', () => {});
      side.once('close', (hadError) => {
        clearTimeout(timer);
        if (hadError || !side.readableEnded || !isConnected) abort(other);
        resolve(isConnected);
      });
    }
  });
}
