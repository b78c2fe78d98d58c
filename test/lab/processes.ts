/** Processes in a host's namespace. */
import { execa, type ResultPromise } from 'execa';
import { LabError } from './errors.ts';
import { PATIENCE } from './wait.ts';

export interface ExecOptions {
  readonly input?: string;
  /** Milliseconds on a fast machine; default 30,000. */
  readonly timeoutMs?: number;
  /** Default true: a failing command rejects. */
  readonly reject?: boolean;
}

/** Result of a command; `exitCode` is undefined if a signal or the deadline ended it. */
export interface ExecResult {
  readonly stdout: string;
  readonly stderr: string;
  readonly exitCode: number | undefined;
}

export interface SpawnOptions {
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
  /** Default: empty. */
  readonly stdin?: 'pipe';
}

const EXEC_TIMEOUT_MS = 30_000;
const STOP_TIMEOUT_MS = 3000;

/** Runs processes in a namespace and kills spawned ones; see Host for exec and spawn. */
export function runIn(name: string, namespace: string) {
  const running = new Set<ResultPromise>();

  const exec = async (
    command: string,
    args: readonly string[] = [],
    options: ExecOptions = {},
  ): Promise<ExecResult> => {
    const { input, timeoutMs = EXEC_TIMEOUT_MS, reject = true } = options;
    const result = await execa('ip', ['netns', 'exec', namespace, command, ...args], {
      ...(input === undefined ? { stdin: 'ignore' } : { input }),
      timeout: timeoutMs * PATIENCE,
      reject: false,
    });
    if (result.failed && reject) {
      const output = result.stderr || result.stdout || result.shortMessage;
      throw new LabError(
        'COMMAND_FAILED',
        `${name}: ${command} ${args.join(' ')}: ${output}`,
        result,
      );
    }
    return { stdout: result.stdout, stderr: result.stderr, exitCode: result.exitCode };
  };

  const spawn = (
    command: string,
    args: readonly string[] = [],
    options: SpawnOptions = {},
  ): ResultPromise => {
    // `ip netns exec` replaces itself by the command, so the process id is that of the command.
    const child = execa('ip', ['netns', 'exec', namespace, command, ...args], {
      stdin: 'ignore',
      ...options,
    }) as ResultPromise;
    running.add(child);
    child.nodeChildProcess.once('exit', () => running.delete(child));
    // The caller may await the process as well. If it does not, there is no unhandled rejection.
    child.catch(() => undefined);
    return child;
  };

  return {
    exec,
    spawn,
    /** Kills spawned processes at once. */
    kill: () => {
      for (const child of running) child.kill('SIGKILL');
    },
    /** Kills spawned processes and waits for their exit. */
    stop: async () => {
      await Promise.all([...running].map(endProcess));
    },
  };
}

async function endProcess(child: ResultPromise): Promise<void> {
  child.kill('SIGTERM');
  const timer = setTimeout(() => child.kill('SIGKILL'), STOP_TIMEOUT_MS);
  // The exit status does not matter.
  await child.catch(() => undefined);
  clearTimeout(timer);
}
