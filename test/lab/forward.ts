/** Makes a loopback port of a host reachable from the machine. */
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { LabError } from './errors.ts';

/** What the thread gets. */
export interface ForwardRequest {
  readonly namespace: string;
  /** Port on 127.0.0.1 of the namespace. */
  readonly port: number;
  /** Preferred port on 127.0.0.1 of the machine. */
  readonly localPort: number;
}

/** A forwarder. */
export interface Forwarder {
  /** The port on 127.0.0.1 of the machine. */
  readonly localPort: number;
  /** Closes all its sockets. */
  close(): Promise<void>;
}

/**
 * Forwards TCP connections from 127.0.0.1 of the machine to 127.0.0.1 of a namespace. If `localPort` is in use, the
 * kernel chooses a free port.
 *
 * @throws LabError `THREAD_FAILED`
 */
export async function forwardPort(request: ForwardRequest): Promise<Forwarder> {
  const worker = new Worker(new URL('./forward-worker.ts', import.meta.url), {
    workerData: request,
    execArgv: [],
  });
  try {
    // once() rejects if the thread fails.
    const [localPort] = (await once(worker, 'message')) as [number];
    return {
      localPort,
      close: async () => {
        await worker.terminate();
      },
    };
  } catch (error) {
    throw new LabError('THREAD_FAILED', `cannot forward port ${request.port}`, error);
  }
}
