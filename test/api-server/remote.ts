import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import type { ResultPromise } from 'execa';
import type { SpawnOptions } from '../lab/lab.ts';
import { type ApiServerDouble, type DoubleOptions, LOOPBACK } from './double.ts';

/** Methods of a double in another process. */
export type Control = Pick<
  ApiServerDouble,
  | 'put'
  | 'delete'
  | 'list'
  | 'fail'
  | 'recover'
  | 'release'
  | 'uninstall'
  | 'install'
  | 'serve'
  | 'breakWatches'
  | 'bookmark'
  | 'compact'
  | 'takeSnapshot'
  | 'restore'
  | 'dropChanges'
  | 'setTokens'
  | 'watching'
  | 'requests'
  | 'events'
  | 'listen'
  | 'close'
>;

/** A line of input of the process: a method and its arguments. */
export type Call = readonly [keyof Control, ...unknown[]];

interface CallResult {
  readonly result?: unknown;
  readonly error?: string;
}

type Spawn = (command: string, args: readonly string[], options: SpawnOptions) => ResultPromise;

const PROCESS = fileURLToPath(new URL('process.ts', import.meta.url));

/** A double in another process. */
export class RemoteDouble {
  readonly #process: ResultPromise;
  /** Pending results, in the order of the calls. */
  readonly #waiting: PromiseWithResolvers<unknown>[];
  readonly port: number;
  readonly #address: string;

  private constructor(
    process: ResultPromise,
    waiting: PromiseWithResolvers<unknown>[],
    port: number,
    address: string,
  ) {
    this.#process = process;
    this.#waiting = waiting;
    this.port = port;
    this.#address = address;
  }

  /**
   * @param spawn for example of a lab host, which starts the process in the namespace of that host.
   */
  static async start(spawn: Spawn, options: DoubleOptions = {}, port = 0): Promise<RemoteDouble> {
    const args = [PROCESS, String(port), JSON.stringify(options)];
    const child = spawn(process.execPath, args, { stdin: 'pipe' });
    const { stdout } = child;
    if (stdout === null) throw new Error('the double has no output');
    const ready = Promise.withResolvers<unknown>();
    const waiting: PromiseWithResolvers<unknown>[] = [ready];
    createInterface({ input: stdout }).on('line', (line) => {
      const { result, error } = JSON.parse(line) as CallResult;
      const first = waiting.shift();
      if (error === undefined) first?.resolve(result);
      else first?.reject(new Error(error));
    });
    let errors = '';
    child.stderr?.on('data', (chunk) => {
      errors += String(chunk);
    });
    child.nodeChildProcess.once('exit', () => {
      const error = new Error(`the API-server double has ended: ${errors}`);
      for (const { reject } of waiting.splice(0)) reject(error);
    });
    return new RemoteDouble(
      child,
      waiting,
      Number(await ready.promise),
      options.address ?? LOOPBACK,
    );
  }

  get url(): string {
    return `http://${this.#address}:${this.port}`;
  }

  /** Calls run in the order in which they are made. */
  call<Method extends keyof Control>(
    method: Method,
    ...args: Parameters<Control[Method]>
  ): Promise<Awaited<ReturnType<Control[Method]>>> {
    const result = Promise.withResolvers<unknown>();
    this.#waiting.push(result);
    this.#process.stdin?.write(`${JSON.stringify([method, ...args])}\n`);
    return result.promise as Promise<Awaited<ReturnType<Control[Method]>>>;
  }

  /** Sends SIGKILL, like a machine failure. */
  async kill(): Promise<void> {
    const exited = new Promise((resolve) => this.#process.nodeChildProcess.once('exit', resolve));
    this.#process.kill('SIGKILL');
    await exited;
  }
}
