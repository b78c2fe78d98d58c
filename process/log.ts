/** The log. */
import { type DestinationStream, type Logger, pino, stdSerializers } from 'pino';
import { textLine } from './log-text.ts';

/** As much of a logger as small parts need; pino's is one. */
export interface Log {
  info(details: object, message: string): void;
  warn(details: object, message: string): void;
  error(details: object, message: string): void;
}

/** A log with level debug, which only `-v 3` shows. */
export interface DebugLog extends Log {
  debug(details: object, message: string): void;
}

export type LogFormat = 'text' | 'json';

interface LogOptions {
  /** Verbosity (`-v`). From 3 on, errors include their stacks and level debug is logged. */
  readonly v: number;
  /** Undefined: text on a terminal, JSON elsewhere. */
  readonly loggingFormat: LogFormat | undefined;
}

/** Destination of log lines. */
interface LogOutput {
  readonly stream: DestinationStream;
  readonly isTerminal: boolean;
}

/** Synchronous, so that no line is lost when the process exits. */
const standardOutput = (): LogOutput => ({
  stream: pino.destination({ dest: 1, sync: true }),
  isTerminal: process.stdout.isTTY === true,
});

/** The log of `run` and `dns`: one line per entry on standard output. */
export function createLog(
  { v, loggingFormat }: LogOptions,
  { stream, isTerminal }: LogOutput = standardOutput(),
): Logger {
  const isVerbose = v >= 3;
  const options = {
    base: null,
    level: isVerbose ? 'debug' : 'info',
    serializers: { err: isVerbose ? stdSerializers.err : serializeError },
  };
  const format = loggingFormat ?? (isTerminal ? 'text' : 'json');
  if (format === 'json') return pino(options, stream);
  return pino(options, { write: (line) => stream.write(textLine(line)) });
}

/** Of the code's own mistakes, the stack is what tells most. */
const BUG_TYPES = ['TypeError', 'RangeError', 'ReferenceError', 'AssertionError'];

/**
 * An error as a log line has it. The stack is left out of those that say what happened: typed errors,
 * and those of the system. It would be most of the line, again each time that something is tried.
 */
export function serializeError(error: unknown): unknown {
  if (!(error instanceof Error) || !isDescriptive(error)) return stdSerializers.err(error as Error);
  const { name: type, message } = error;
  return 'code' in error ? { type, message, code: error.code } : { type, message };
}

function isDescriptive(error: Error): boolean {
  if (error.name === 'Error' && !('syscall' in error)) return false;
  for (let each: unknown = error; each instanceof Error; each = each.cause) {
    if (BUG_TYPES.includes(each.name)) return false;
  }
  return true;
}
