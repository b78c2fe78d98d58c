/** Reads facts for `portwide check`. */
import { asError } from '../../api/errors.ts';
import type { Fact } from '../../preflight/result.ts';
import { ProgramError } from '../../process/run-program.ts';

/** Reads a fact. An error is the reason why it is not known, so that all other checks still run. */
export async function fact<T>(read: () => Promise<T>): Promise<Fact<T>> {
  try {
    return { value: await read() };
  } catch (error) {
    return { notSeen: reasonOf(error) };
  }
}

function reasonOf(error: unknown): string {
  if (error instanceof ProgramError) {
    if (error.code === 'ENOENT') return `${error.command.split(' ')[0]} is not installed`;
    const [line = ''] = String(error.stderr ?? '')
      .trim()
      .split('\n');
    return line === '' ? error.shortMessage : line;
  }
  return asError(error).message;
}
