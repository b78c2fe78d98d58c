/**
 * Runs external programs with a time limit, so that a program that hangs cannot block its caller
 * forever.
 */
import type { ChildProcess } from 'node:child_process';
import type { Readable } from 'node:stream';
import { execa } from 'execa';
import { UserError } from './errors.ts';

/** The program failed (`exitCode`, `stderr`) or does not exist (`code` ENOENT). */
export { ExecaError as ProgramError } from 'execa';

/** Timeout in milliseconds of commands that only print information, such as a version. */
export const VERSION_TIMEOUT = 30_000;

/** The program exceeded its time limit and was killed. */
export class ProgramTimeoutError extends UserError {
  override readonly name = 'ProgramTimeoutError';
  readonly program: string;
  /** Milliseconds. */
  readonly timeout: number;

  /** @param what The program and its arguments. */
  constructor(program: string, what: string, timeout: number, isStuck = false) {
    super(
      isStuck
        ? `"${what}" was not started: an earlier ${program} exceeded its time limit, was killed and has not exited`
        : `"${what}" exceeded its time limit of ${timeout / 1000} s and was killed`,
    );
    this.program = program;
    this.timeout = timeout;
  }
}

interface ProgramOptions {
  /** Milliseconds. */
  readonly timeout: number;
  /** Standard input; default: none. */
  readonly input?: string | Readable;
  /** Upper bound on the output in characters; default: 100 million, as in execa. */
  readonly maxBuffer?: number;
  /** What to return; default: standard output. The other is discarded, whatever its length, except in errors. */
  readonly returns?: 'stdout' | 'stderr';
  /** Called with the process ID after the start. */
  readonly onStart?: (pid: number) => void;
}

/**
 * Runs a program without a shell.
 * @throws ProgramTimeoutError; ProgramError if the program fails or does not exist (code ENOENT).
 */
export function runProgram(
  program: string,
  args: readonly string[],
  { timeout, input, maxBuffer, returns = 'stdout', onStart }: ProgramOptions,
): Promise<string> {
  return withTimeLimit(program, args, timeout, () => {
    const process = execa(program, args, {
      ...(input === undefined ? { stdin: 'ignore' } : { input }),
      ...(maxBuffer === undefined ? {} : { maxBuffer }),
      stdout: returns === 'stdout' ? 'pipe' : 'ignore',
    });
    if (process.pid !== undefined) onStart?.(process.pid);
    return {
      process: process.nodeChildProcess,
      result: process.then((output) => output[returns] ?? ''),
    };
  });
}

/**
 * Runs a program without a shell and reads its standard output line by line.
 * @throws errors of `runProgram` and of `read`.
 */
export function readProgram<T>(
  program: string,
  args: readonly string[],
  timeout: number,
  read: (lines: AsyncIterable<string>) => Promise<T>,
): Promise<T> {
  return withTimeLimit(program, args, timeout, () => {
    const process = execa(program, args, { stdin: 'ignore', buffer: { stdout: false } });
    const result = Promise.all([read(process.iterable()), process]).then(([value]) => value);
    return { process: process.nodeChildProcess, result };
  });
}

/**
 * Programs that were killed but have not exited, because a system call cannot be interrupted. They
 * are not started again: repeated starts would fill the node with processes.
 */
const stuck = new Set<string>();

async function withTimeLimit<T>(
  program: string,
  args: readonly string[],
  timeout: number,
  start: () => { readonly process: ChildProcess; readonly result: Promise<T> },
): Promise<T> {
  const what = [program, ...args].join(' ');
  if (stuck.has(program)) throw new ProgramTimeoutError(program, what, timeout, true);
  const { process, result } = start();
  const { promise: late, reject } = Promise.withResolvers<never>();
  const timer = setTimeout(() => {
    // A process that already exited emits no second exit event. Its children may still hold its
    // output open.
    if (process.exitCode === null && process.signalCode === null) {
      stuck.add(program);
      process.once('exit', () => stuck.delete(program));
    }
    // SIGKILL without SIGTERM: a hung process may ignore SIGTERM, and no program run here cleans up
    // on exit.
    process.kill('SIGKILL');
    // Surviving children may hold these pipes open.
    for (const stream of [process.stdin, process.stdout, process.stderr]) stream?.destroy();
    reject(new ProgramTimeoutError(program, what, timeout));
  }, timeout);
  try {
    return await Promise.race([result, late]);
  } finally {
    clearTimeout(timer);
  }
}
