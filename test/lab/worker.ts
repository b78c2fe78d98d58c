/** The thread of one host: enters the host's namespace and runs methods for the main thread. */
import { parentPort, workerData } from 'node:worker_threads';
import { burst } from './burst.ts';
import { LabError, messageOf } from './errors.ts';
import { serveEveryPort, stopServingEveryPort } from './everyport.ts';
import { httpGet } from './http.ts';
import { enterNamespace } from './libc.ts';
import type {
  HostIdentity,
  HostMethods,
  MethodName,
  ThreadReport,
  ThreadRequest,
} from './messages.ts';
import { reach } from './reach.ts';
import { resolve } from './resolve.ts';
import { probeSctp } from './sctp.ts';
import { serve, stopServing } from './servers.ts';
import { exchange, hold, probeTcp, release } from './tcp.ts';
import { probeUdp } from './udp.ts';

type Handlers = {
  readonly [Name in MethodName]: (
    takes: HostMethods[Name]['takes'],
  ) => HostMethods[Name]['gives'] | Promise<HostMethods[Name]['gives']>;
};

if (!parentPort) throw new LabError('THREAD_FAILED', 'this module runs only as a worker thread');
const port = parentPort;
const host = workerData as HostIdentity;
const report = (message: ThreadReport) => port.postMessage(message);

const handlers: Handlers = {
  serve: async (request) => {
    await serve(host, request);
    return undefined;
  },
  stopServing: ({ protocol, ports }) => {
    stopServing(protocol, ports);
    return undefined;
  },
  serveEveryPort: () => serveEveryPort(host),
  stopServingEveryPort: () => {
    stopServingEveryPort();
    return undefined;
  },
  tcp: probeTcp,
  udp: probeUdp,
  sctp: probeSctp,
  hold: (request) => hold(request, (connection) => report({ kind: 'closed', connection })),
  exchange: ({ connection, text, timeoutMs }) => exchange(connection, text, timeoutMs),
  release: ({ connection }) => {
    release(connection);
    return undefined;
  },
  burst,
  reach,
  resolve,
  httpGet,
};

async function answer<Name extends MethodName>({ id, method, takes }: ThreadRequest<Name>) {
  try {
    report({ kind: 'result', id, gives: await handlers[method](takes) });
  } catch (error) {
    const cause = error instanceof Error && error.cause ? `: ${messageOf(error.cause)}` : '';
    report({ kind: 'failure', id, message: messageOf(error) + cause });
  }
}

enterNamespace(host.namespace);
port.on('message', (request: ThreadRequest) => {
  void answer(request);
});
report({ kind: 'ready' });
