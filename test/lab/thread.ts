/** The main thread's side of a host's thread. */
import { Worker } from 'node:worker_threads';
import { LabError } from './errors.ts';
import type {
  HostIdentity,
  HostMethods,
  MethodName,
  ThreadReport,
  ThreadRequest,
} from './messages.ts';

/** A host's thread. */
export interface HostThread {
  /**
   * Runs a method in the thread.
   *
   * @throws LabError `DEADLINE`, or `THREAD_FAILED` if the method or the thread itself fails
   */
  call<Name extends MethodName>(
    method: Name,
    takes: HostMethods[Name]['takes'],
    deadlineMs: number,
  ): Promise<HostMethods[Name]['gives']>;
  /** Stops the thread and closes its sockets. */
  stop(): Promise<void>;
}

interface Pending {
  readonly resolve: (gives: unknown) => void;
  readonly reject: (error: LabError) => void;
}

/**
 * Milliseconds from the start of a thread until it accepts calls. Half a minute was measured in
 * user-mode-linux on a busy machine.
 */
const START_MS = 90_000;

/** Starts a host's thread; `onClosed` is called when a held connection closes. */
export function startThread(
  host: HostIdentity,
  onClosed: (connection: number) => void,
): HostThread {
  const worker = new Worker(new URL('./worker.ts', import.meta.url), {
    workerData: host,
    name: host.namespace,
    // Flags meant for the program, such as --input-type, would break the thread.
    execArgv: [],
  });
  // The timer of a pending call keeps the process alive; an idle thread does not.
  worker.unref();
  const pending = new Map<number, Pending>();
  let lastId = 0;
  let isReady = false;
  let failure: LabError | undefined;

  const fail = (error: LabError) => {
    failure ??= error;
    for (const { reject } of pending.values()) reject(error);
    pending.clear();
  };
  worker.on('message', (report: ThreadReport) => {
    if (report.kind === 'closed') return onClosed(report.connection);
    if (report.kind === 'ready') {
      isReady = true;
      return;
    }
    const waiting = pending.get(report.id);
    pending.delete(report.id);
    if (report.kind === 'result') waiting?.resolve(report.gives);
    else waiting?.reject(new LabError('THREAD_FAILED', `${host.name}: ${report.message}`));
  });
  worker.on('error', (error) =>
    fail(new LabError('THREAD_FAILED', `${host.name}'s thread failed`, error)),
  );
  worker.on('exit', () => fail(new LabError('DESTROYED', `${host.name}'s thread has ended`)));

  const call: HostThread['call'] = (method, takes, deadlineMs) =>
    new Promise((resolve, reject) => {
      if (failure) return reject(failure);
      lastId += 1;
      const id = lastId;
      const allowedMs = deadlineMs + (isReady ? 0 : START_MS);
      const timer = setTimeout(() => {
        pending.delete(id);
        reject(new LabError('DEADLINE', `${host.name}: ${method} took over ${allowedMs} ms`));
      }, allowedMs);
      pending.set(id, {
        resolve: (gives) => {
          clearTimeout(timer);
          // The thread's table of methods is typed by the same Methods.
          resolve(gives as HostMethods[typeof method]['gives']);
        },
        reject: (error) => {
          clearTimeout(timer);
          reject(error);
        },
      });
      const request: ThreadRequest = { id, method, takes };
      worker.postMessage(request);
    });

  return {
    call,
    stop: async () => {
      await worker.terminate();
    },
  };
}
