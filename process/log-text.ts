/**
 * `--logging-format=text`: time, level, message and `key=value` fields on one line of printable
 * ASCII. Pure.
 */
import { printableAscii } from '../api/read-field.ts';

const LEVELS: Readonly<Record<number, string>> = {
  10: 'TRACE',
  20: 'DEBUG',
  30: 'INFO',
  40: 'WARN',
  50: 'ERROR',
  60: 'FATAL',
};

/**
 * Converts a JSON line of pino, for example to `2026-01-01T00:00:00.000Z WARN sync failed
 * family=IPv4 err="no such chain"`. Escapes control characters, so that a name cannot start a new
 * line or move the cursor of a terminal.
 */
export function textLine(json: string): string {
  const { level, time, msg, ...fields } = JSON.parse(json) as Record<string, unknown>;
  const words = [
    new Date(Number(time)).toISOString(),
    LEVELS[Number(level)] ?? String(level),
    printableAscii(String(msg ?? '')),
  ];
  for (const [key, value] of Object.entries(fields))
    words.push(...pairsOf(printableAscii(key), value));
  return `${words.join(' ')}\n`;
}

function pairsOf(key: string, value: unknown): string[] {
  if (!isError(value)) return [`${key}=${quoted(plain(value))}`];
  const { message, stack } = value;
  return [`${key}=${quoted(message)}`, ...(stack === undefined ? [] : [`stack=${quoted(stack)}`])];
}

/** Whether a value is an error as the serializers of process/log.ts write it. */
function isError(value: unknown): value is { message: string; stack?: string } {
  return typeof value === 'object' && value !== null && 'type' in value && 'message' in value;
}

function plain(value: unknown): string {
  if (typeof value === 'string') return value;
  const isFlat = Array.isArray(value) && value.every((item) => typeof item !== 'object');
  return isFlat ? value.join(',') : JSON.stringify(value);
}

/**
 * Quotes as logfmt does: empty values, and values with a space, quote, backslash, equals sign or
 * character outside printable ASCII.
 */
function quoted(text: string): string {
  return /^[^\s"=\\]+$/.test(text) && printableAscii(text) === text
    ? text
    : printableAscii(JSON.stringify(text));
}
