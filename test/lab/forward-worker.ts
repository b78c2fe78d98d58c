/**
 * The thread of a forwarder. It listens in the namespace of the process, then enters the other namespace: a socket
 * belongs to the namespace in which its thread was when it was opened.
 */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server } from 'node:net';
import { pipeline } from 'node:stream';
import { parentPort, workerData } from 'node:worker_threads';
import { LabError } from './errors.ts';
import type { ForwardRequest } from './forward.ts';
import { enterNamespace } from './libc.ts';

const LOOPBACK = '127.0.0.1';

if (!parentPort) throw new LabError('THREAD_FAILED', 'this module runs only as a worker thread');
const { namespace, port, localPort } = workerData as ForwardRequest;

const server = createServer({ allowHalfOpen: true }, (incoming) => {
  const outgoing = connect({ host: LOOPBACK, port, allowHalfOpen: true });
  // An error of one side closes the other one; there is nothing else to do about it.
  pipeline(incoming, outgoing, incoming, () => undefined);
});
await listen(server, localPort).catch((error: NodeJS.ErrnoException) => {
  if (error.code !== 'EADDRINUSE') throw error;
  return listen(server, 0);
});
enterNamespace(namespace);
parentPort.postMessage((server.address() as AddressInfo).port);

async function listen(listener: Server, onPort: number): Promise<void> {
  listener.listen(onPort, LOOPBACK);
  await once(listener, 'listening');
}
