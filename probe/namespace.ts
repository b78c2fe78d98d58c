/**
 * Runs `portwide probe` again in another network namespace. Sockets belong to the namespace of the thread that opens
 * them, and Node.js opens sockets in several threads. So the whole process starts in the namespace, by nsenter(1).
 */
import { existsSync } from 'node:fs';
import { UserError } from '../process/errors.ts';
import { ProgramError, runProgram } from '../process/run-program.ts';

/** Path of a network namespace. @param given a path (`/proc/PID/ns/net`), or a name as in `ip netns`. */
function namespacePath(given: string): string {
  return given.includes('/') ? given : `/run/netns/${given}`;
}

/** The arguments without `--netns`, so that the process in the namespace does not enter it again. */
export function withoutNetns(args: readonly string[]): string[] {
  return args.filter(
    (arg, index) =>
      arg !== '--netns' && !arg.startsWith('--netns=') && args[index - 1] !== '--netns',
  );
}

/**
 * Runs this program with `args` in a namespace.
 * @param timeout milliseconds.
 * @returns its standard output and exit status (0 or 1).
 * @throws UserError if the namespace cannot be entered, or the program fails there; ProgramTimeoutError
 */
export async function runInNamespace(
  given: string,
  args: readonly string[],
  timeout: number,
): Promise<{ readonly output: string; readonly status: number }> {
  const path = namespacePath(given);
  if (!existsSync(path)) throw new UserError(`--netns: there is no network namespace ${path}`);
  const self = [process.execPath, ...process.execArgv, process.argv[1] ?? ''];
  try {
    const output = await runProgram('nsenter', [`--net=${path}`, '--', ...self, ...args], {
      timeout,
    });
    return { output, status: 0 };
  } catch (error) {
    if (!(error instanceof ProgramError)) throw error;
    const output = String(error.stdout ?? '');
    if (error.exitCode === 1 && output !== '') return { output, status: 1 };
    throw new UserError(`--netns: ${failureText(error)}`, { cause: error });
  }
}

function failureText(error: ProgramError): string {
  if (error.code === 'ENOENT') return 'nsenter is not installed (package "util-linux")';
  const text = String(error.stderr ?? '').trim() || error.message;
  return /not permitted|permission denied/i.test(text)
    ? `${text}; entering a network namespace needs root on the node (CAP_SYS_ADMIN)`
    : text.replace(/^portwide: /, '');
}
