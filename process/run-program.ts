/** Running other programs, each with a time limit: one that hangs must not stop its caller for good. */
import type { ChildProcess } from 'node:child_process';
import type { Readable } from 'node:stream';
import { execa } from 'execa';
import { UserError } from './errors.ts';

/** A program that failed (`exitCode`, `stderr`), or that is not there (`code` ENOENT). */
export { ExecaError as ProgramError } from 'execa';

/** Milliseconds for what a program answers from itself, such as its version. */
export const VERSION_TIMEOUT = 30_000;

/** A program did not end within its time limit. It was killed. */
export class ProgramTimeoutError extends UserError {
  override readonly name = 'ProgramTimeoutError';
  readonly program: string;
  /** Milliseconds. */
  readonly timeout: number;

  /** @param what the program and its arguments. */
  constructor(program: string, what: string, timeout: number, isStuck = false) {
    const limit = `its time limit of ${timeout / 1000} s`;
    super(
      isStuck
        ? `${program} was killed at the end of a time limit and still has not ended; "${what}" was not started`
        : `"${what}" did not end within ${limit} and was killed`,
    );
    this.program = program;
    this.timeout = timeout;
  }
}

interface ProgramOptions {
  /** Milliseconds. */
  readonly timeout: number;
  /** For its standard input; default: nothing. */
  readonly input?: string | Readable;
  /** Bytes of output; default: execa's, 100 MB. */
  readonly maxBuffer?: number;
  /** The output is of no interest, however long it is, and not returned. */
  readonly discardsOutput?: boolean;
  /** Is told the process id. */
  readonly onStart?: (pid: number) => void;
}

/**
 * Runs a program without a shell.
 * @returns its standard output.
 * @throws ProgramTimeoutError; ProgramError when it fails or does not exist (code ENOENT).
 */
export function runProgram(
  program: string,
  args: readonly string[],
  { timeout, input, maxBuffer, discardsOutput = false, onStart }: ProgramOptions,
): Promise<string> {
  return withTimeLimit(program, args, timeout, () => {
    const process = execa(program, args, {
      ...(input === undefined ? { stdin: 'ignore' } : { input }),
      ...(maxBuffer === undefined ? {} : { maxBuffer }),
      stdout: discardsOutput ? 'ignore' : 'pipe',
    });
    if (process.pid !== undefined) onStart?.(process.pid);
    return { process, result: process.then(({ stdout }) => stdout ?? '') };
  });
}

/**
 * Runs a program without a shell and has its standard output read line by line.
 * @throws as `runProgram`, and what `read` throws.
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
    return { process, result };
  });
}

/**
 * Programs that were killed and have not ended: their work in the kernel cannot be interrupted. To start
 * them again and again would fill the node with processes.
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
    // One that has ended, and left children that hold its output, does not end again.
    if (process.exitCode === null && process.signalCode === null) {
      stuck.add(program);
      process.once('exit', () => stuck.delete(program));
    }
    // It is not asked first (SIGTERM): what hangs may not answer, and nothing that is run here tidies up.
    process.kill('SIGKILL');
    // Children of it may live on and hold these open.
    for (const stream of [process.stdin, process.stdout, process.stderr]) stream?.destroy();
    reject(new ProgramTimeoutError(program, what, timeout));
  }, timeout);
  try {
    return await Promise.race([result, late]);
  } finally {
    clearTimeout(timer);
  }
}
