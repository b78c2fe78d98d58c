/** Forwards one TCP connection to an endpoint. */
import { connect, type Socket } from 'node:net';

/** An endpoint that a connection is forwarded to. */
export interface EndpointAddress {
  readonly address: string;
  readonly port: number;
}

/** Milliseconds in which an endpoint has to answer, as in kube-proxy's localhost proxy. */
const CONNECT_TIMEOUT = 5000;

/** Probes of an idle connection begin after so many milliseconds, so that a pod that died holds no socket for ever. */
const KEEP_ALIVE = 15_000;

/** Options of both connections. */
const OPTIONS = {
  // Each direction ends by itself: a client may close its side and still wait for the answer.
  allowHalfOpen: true,
  noDelay: true,
  keepAlive: true,
  keepAliveInitialDelay: KEEP_ALIVE,
};

/** Options of a server whose connections `forward` is given. Nothing is read before there is somewhere to write it to. */
export const SERVER_OPTIONS = { ...OPTIONS, pauseOnConnect: true };

/** Node resets a socket that connects only once it has. */
function abort(socket: Socket): void {
  if (socket.connecting) socket.destroy();
  else socket.resetAndDestroy();
}

/**
 * Forwards a connection to an endpoint until both sides have closed it. What one side sends waits where it is while
 * the other does not read. When one side breaks off, the other is reset.
 * @returns whether the endpoint took the connection; never rejects.
 */
export function forward(client: Socket, { address, port }: EndpointAddress): Promise<boolean> {
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
      // What broke off says so by `close`, too; an error that nobody hears would end the agent.
      side.on('error', () => {});
      side.once('close', (hadError) => {
        clearTimeout(timer);
        if (hadError || !side.readableEnded || !isConnected) abort(other);
        resolve(isConnected);
      });
    }
  });
}
