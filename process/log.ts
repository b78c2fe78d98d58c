/** The structured log of the agent and of the DNS server. */
import { type DestinationStream, type Logger, pino, stdSerializers } from 'pino';
import { textLine } from './log-text.ts';

/** The part of pino's logger that most modules need. */
export interface Log {
  info(details: object, message: string): void;
  warn(details: object, message: string): void;
  error(details: object, message: string): void;
}

/** A log that also has level debug, which `-v 3` enables. */
export interface DebugLog extends Log {
  debug(details: object, message: string): void;
}

export type LogFormat = 'text' | 'json';

interface LogOptions {
  /** Verbosity (`-v`). At 3 and above, level debug is logged and every error includes its stack. */
  readonly v: number;
  /** undefined: text on a terminal, otherwise JSON. */
  readonly loggingFormat: LogFormat | undefined;
}

/** Where log lines are written. */
interface LogOutput {
  readonly stream: DestinationStream;
  readonly isTerminal: boolean;
}

/** Writes are synchronous, so that no line is lost when the process exits. */
const standardOutput = (): LogOutput => ({
  stream: pino.destination({ dest: 1, sync: true }),
  isTerminal: process.stdout.isTTY === true,
});

/** Creates the log of `portwide run` and `portwide dns`: one line per entry on standard output. */
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

/** Errors that indicate a bug in this program. Their stack is the most useful part. */
const BUG_TYPES = ['TypeError', 'RangeError', 'ReferenceError', 'AssertionError'];

/**
 * Serializes the `err` field of a log line. Omits the stack of typed errors and system errors,
 * whose message is sufficient. The stack would be most of the line, repeated with each retry.
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
