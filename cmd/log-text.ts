/** A log line for people: time, level, message, then `key=value`, all in one line of printable ASCII. Pure. */
import { printable } from '../api/read-field.ts';

const LEVELS: Readonly<Record<number, string>> = {
  10: 'TRACE',
  20: 'DEBUG',
  30: 'INFO',
  40: 'WARN',
  50: 'ERROR',
  60: 'FATAL',
};

/**
 * @param json the same line as JSON, as pino writes it.
 * @returns such as `2026-01-01T00:00:00.000Z WARN sync failed family=IPv4 err="no such chain"`. Names and
 * messages of others cannot start a new line or move the cursor: control characters are escaped.
 */
export function textLine(json: string): string {
  const { level, time, msg, ...fields } = JSON.parse(json) as Record<string, unknown>;
  const words = [
    new Date(Number(time)).toISOString(),
    LEVELS[Number(level)] ?? String(level),
    printable(String(msg ?? '')),
  ];
  for (const [key, value] of Object.entries(fields)) words.push(...pairsOf(printable(key), value));
  return `${words.join(' ')}\n`;
}

function pairsOf(key: string, value: unknown): string[] {
  if (!isError(value)) return [`${key}=${quoted(plain(value))}`];
  // The stack starts with the message.
  const { message, stack } = value;
  return [`${key}=${quoted(message)}`, ...(stack === undefined ? [] : [`stack=${quoted(stack)}`])];
}

/** An error as the log's serializers leave it. */
function isError(value: unknown): value is { message: string; stack?: string } {
  return typeof value === 'object' && value !== null && 'type' in value && 'message' in value;
}

function plain(value: unknown): string {
  if (typeof value === 'string') return value;
  const isFlat = Array.isArray(value) && value.every((item) => typeof item !== 'object');
  return isFlat ? value.join(',') : JSON.stringify(value);
}

/** As logfmt has it: in quotes what a space, a quote, an equals sign or nothing at all would make unclear. */
function quoted(text: string): string {
  return /^[^\s"=\\]+$/.test(text) && printable(text) === text
    ? text
    : printable(JSON.stringify(text));
}
