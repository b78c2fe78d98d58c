/** A child process in a network namespace, with calls of its functions. */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { basename } from 'node:path';
import { fileURLToPath } from 'node:url';

/** Functions that the child process serves. */
export type Functions = Readonly<Record<string, (...args: never[]) => unknown>>;

export interface Child<F extends Functions> {
  readonly pid: number;
  call<K extends keyof F>(method: K, ...args: Parameters<F[K]>): Promise<Awaited<ReturnType<F[K]>>>;
  signal(signal: NodeJS.Signals): void;
  /** Kills the child and waits for its exit. */
  stop(): Promise<void>;
}

interface ChildCall {
  readonly call: number;
  readonly method: string;
  readonly args: readonly unknown[];
}

interface ChildReply {
  readonly call: number;
  readonly result?: unknown;
  readonly error?: string;
}

/**
 * Starts a child process; resolves when its script has called `serveCalls`.
 * @param script module that calls `serveCalls`
 */
export async function startChild<F extends Functions>(
  namespace: string,
  script: URL,
): Promise<Child<F>> {
  const path = fileURLToPath(script);
  const command = ['netns', 'exec', namespace, process.execPath, path];
  const child = spawn('ip', command, {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    serialization: 'advanced',
  });
  const exited = once(child, 'exit');
  const waiting = new Map<number, PromiseWithResolvers<unknown>>();
  let calls = 0;
  const started = Promise.withResolvers<void>();
  child.on('message', (message: ChildReply) => {
    if (message.call === 0) started.resolve();
    const call = waiting.get(message.call);
    waiting.delete(message.call);
    if (message.error === undefined) call?.resolve(message.result);
    else call?.reject(new Error(`${basename(path)}: ${message.error}`));
  });
  child.on('exit', (code, signal) => {
    const error = new Error(`${basename(path)} exited: ${code ?? signal}`);
    started.reject(error);
    for (const call of waiting.values()) call.reject(error);
  });
  await started.promise;
  return {
    pid: child.pid ?? 0,
    call(method, ...values) {
      const result = Promise.withResolvers<unknown>();
      calls += 1;
      waiting.set(calls, result);
      child.send({ call: calls, method, args: values });
      return result.promise as never;
    },
    signal: (signal) => child.kill(signal),
    async stop() {
      if (isRunning(child)) child.kill('SIGKILL');
      await exited;
    },
  };
}

/** For the child: serves its functions until the parent exits. */
export function serveCalls(functions: Functions): void {
  process.on('disconnect', () => process.exit());
  process.on('message', ({ call, method, args }: ChildCall) => {
    void (async () => {
      try {
        const work = functions[method] as (...values: readonly unknown[]) => unknown;
        reply({ call, result: await work(...args) });
      } catch (error) {
        reply({ call, error: error instanceof Error ? (error.stack ?? '') : String(error) });
      }
    })();
  });
  reply({ call: 0 });
}

function reply(answer: ChildReply): void {
  process.send?.(answer);
}

function isRunning(child: ChildProcess): boolean {
  return child.exitCode === null && child.signalCode === null;
}
