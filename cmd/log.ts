import { type Logger, pino, stdSerializers } from 'pino';

/** As much of a logger as small parts need; pino's is one. */
export interface Log {
  info(details: object, message: string): void;
  warn(details: object, message: string): void;
  error(details: object, message: string): void;
}

/** JSON lines on standard output. @param verbosity `-v`; from 3 on, errors bear their stacks. */
export function createLog(verbosity: number): Logger {
  const isVerbose = verbosity >= 3;
  return pino({
    base: null,
    level: isVerbose ? 'debug' : 'info',
    serializers: { err: isVerbose ? stdSerializers.err : shownError },
  });
}

/** Of the code's own mistakes, the stack is what tells most. */
const MISTAKES = ['TypeError', 'RangeError', 'ReferenceError', 'AssertionError'];

/**
 * An error as a log line has it. The stack is left out of those that say what happened: typed errors,
 * and those of the system. It would be most of the line, again each time that something is tried.
 */
export function shownError(error: unknown): unknown {
  if (!(error instanceof Error) || !isTelling(error)) return stdSerializers.err(error as Error);
  const { name: type, message } = error;
  return 'code' in error ? { type, message, code: error.code } : { type, message };
}

function isTelling(error: Error): boolean {
  if (error.name === 'Error' && !('syscall' in error)) return false;
  for (let each: unknown = error; each instanceof Error; each = each.cause) {
    if (MISTAKES.includes(each.name)) return false;
  }
  return true;
}
