/** Processes in a host's namespace. */
import { execa, type ResultPromise } from 'execa';
import { LabError } from './errors.ts';

export interface ExecOptions {
  readonly input?: string;
  /** Default 30 000. */
  readonly timeoutMs?: number;
  /** Default true: a failing command rejects. */
  readonly reject?: boolean;
}

/** How a command ended; `exitCode` is undefined when a signal or the deadline ended it. */
export interface ExecResult {
  readonly stdout: string;
  readonly stderr: string;
  readonly exitCode: number | undefined;
}

export interface SpawnOptions {
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
  /** Default: nothing to read. */
  readonly stdin?: 'pipe';
}

const EXEC_TIMEOUT_MS = 30_000;
const STOP_TIMEOUT_MS = 3000;

/** Runs processes in a namespace, and ends what was spawned there; see Host for exec and spawn. */
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
      timeout: timeoutMs,
      reject: false,
    });
    if (result.failed && reject) {
      const said = result.stderr || result.stdout || result.shortMessage;
      throw new LabError(
        'COMMAND_FAILED',
        `${name}: ${command} ${args.join(' ')}: ${said}`,
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
    // `ip netns exec` becomes the command: the process's own id is the one known here.
    const child = execa('ip', ['netns', 'exec', namespace, command, ...args], {
      stdin: 'ignore',
      ...options,
    });
    running.add(child);
    child.once('exit', () => running.delete(child));
    // Who spawned it may await it too; that nobody does is no unhandled rejection.
    child.catch(() => undefined);
    return child;
  };

  return {
    exec,
    spawn,
    /** Kills what was spawned at once. */
    kill: () => {
      for (const child of running) child.kill('SIGKILL');
    },
    /** Ends what was spawned, and waits for it. */
    stop: async () => {
      await Promise.all([...running].map(endProcess));
    },
  };
}

async function endProcess(child: ResultPromise): Promise<void> {
  child.kill('SIGTERM');
  const timer = setTimeout(() => child.kill('SIGKILL'), STOP_TIMEOUT_MS);
  // How it ended is no longer of interest.
  await child.catch(() => undefined);
  clearTimeout(timer);
}
