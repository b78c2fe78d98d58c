/** Kinds of values that a setting may have: how a flag says it, and how a file does. */
import { describeValue, isRecord } from '../api/read-field.ts';
import { formatDuration, parseDuration } from './duration.ts';
import { InvalidValueError, type ValueProblem } from './errors.ts';

export interface ValueType<T> {
  /** What follows the flag in `--help`; in square brackets when it may be left out. */
  readonly argument: string;
  /** @throws InvalidValue */
  fromFlag(text: string): T;
  /**
   * @param value what YAML or JSON has, never null.
   * @param onUnknown is told the path below the setting of each field that nobody knows.
   * @throws InvalidValue
   */
  fromFile(value: unknown, onUnknown: (at: string) => void): T;
  /** What a file has for it; `fromFile` gives the same value back. */
  toFile(value: T): unknown;
  /** Whether a file has Go's zero value there, which most fields take for "not set". */
  isZero(value: unknown): boolean;
}

/** @throws InvalidValue */
export function invalid(reason: string): never {
  throw new InvalidValueError([{ at: '', reason }]);
}

export function isEmptyList(value: unknown): boolean {
  return Array.isArray(value) && value.length === 0;
}

/** A kind whose values are text in files as on the command line. */
export function encodedAsText<T>(
  argument: string,
  parse: (text: string) => T,
  print: (value: T) => string,
): ValueType<T> {
  return {
    argument,
    fromFlag: parse,
    fromFile: (value) => parse(requireText(value)),
    toFile: print,
    isZero: (value) => value === '',
  };
}

/** A kind whose values are text themselves. */
export function parsedText<T extends string>(
  argument: string,
  parse: (text: string) => T,
): ValueType<T> {
  return encodedAsText(argument, parse, String);
}

/** Empty text is no value. */
export function optional<T>(kind: ValueType<T>): ValueType<T | undefined> {
  return {
    argument: kind.argument,
    fromFlag: (text) => (text === '' ? undefined : kind.fromFlag(text)),
    fromFile: (value, onUnknown) => (value === '' ? undefined : kind.fromFile(value, onUnknown)),
    toFile: (value) => (value === undefined ? '' : kind.toFile(value)),
    isZero: (value) => value === '',
  };
}

/**
 * Any number of texts: a list in files, separated by commas in flags.
 * @param parse is handed what a file has, which may be no texts.
 */
export function textList(
  argument: string,
  parse: (items: readonly unknown[]) => readonly string[],
): ValueType<readonly string[]> {
  return {
    argument,
    fromFlag: (text) => parse(commaSeparated(text)),
    fromFile: (value) => {
      if (!Array.isArray(value)) invalid(`must be a list, not ${describeValue(value)}`);
      return parse(value);
    },
    // As Go writes a list that was never made.
    toFile: (value) => (value.length === 0 ? null : value),
    isZero: isEmptyList,
  };
}

/** `a, b`, as flags and some fields have several values; none for empty text. */
export function commaSeparated(text: string): string[] {
  return text === '' ? [] : text.split(',').map((item) => item.trim());
}

/** Reads every item. @throws InvalidValue with the problems of all items. */
export function readItems<From, To>(items: readonly From[], read: (item: From) => To): To[] {
  const problems: ValueProblem[] = [];
  const values = items.flatMap((item, index) => {
    try {
      return [read(item)];
    } catch (error) {
      if (!(error instanceof InvalidValueError)) throw error;
      for (const { at, reason } of error.problems) {
        problems.push({ at: joinPath(`[${index}]`, at), reason });
      }
      return [];
    }
  });
  if (problems.length > 0) throw new InvalidValueError(problems);
  return values;
}

/** @throws InvalidValue */
export function requireText(value: unknown): string {
  if (typeof value === 'string') return value;
  return invalid(`must be a string, in quotes if need be, not ${describeValue(value)}`);
}

export const text = parsedText<string>('<text>', String);
export const filePath: ValueType<string> = { ...text, argument: '<file>' };

/** Text of a certain form. @param expected ends the sentence "must be". */
export function textMatching(argument: string, form: RegExp, expected: string): ValueType<string> {
  const parse = (value: string) =>
    form.test(value) ? value : invalid(`must be ${expected}, not ${describeValue(value)}`);
  return parsedText(argument, parse);
}

/** One of several words. */
export function oneOf<T extends string>(argument: string, words: readonly T[]): ValueType<T> {
  const parse = (value: string) =>
    words.find((word) => word === value) ??
    invalid(`must be one of ${words.join(', ')}, not ${describeValue(value)}`);
  return parsedText(argument, parse);
}

/** A choice whose flag may be empty, which stands for `usual`, as in kube-proxy. */
export function oneOfOrDefault<T extends string>(usual: T, kind: ValueType<T>): ValueType<T> {
  return { ...kind, fromFlag: (text) => (text === '' ? usual : kind.fromFlag(text)) };
}

/** Go's words for true and for false (strconv.ParseBool). */
const TRUE = ['true', 'True', 'TRUE', 't', 'T', '1'];
const FALSE = ['false', 'False', 'FALSE', 'f', 'F', '0'];

/** `--flag`, `--flag=true` or `--flag=false`. */
export const boolean: ValueType<boolean> = {
  argument: '[true|false]',
  fromFlag: (value) => {
    if (TRUE.includes(value)) return true;
    if (FALSE.includes(value)) return false;
    return invalid(`must be true or false, not ${describeValue(value)}`);
  },
  fromFile: (value) => {
    if (typeof value === 'boolean') return value;
    return invalid(`must be true or false, not ${describeValue(value)}`);
  },
  toFile: (value) => value,
  isZero: (value) => value === false,
};

/** Whole numbers, both bounds included. */
export function wholeNumber(from: number, to: number, argument = '<number>'): ValueType<number> {
  const check = (value: number, given: unknown) =>
    Number.isInteger(value) && value >= from && value <= to
      ? value + 0 // not -0, which equals 0 and yet is not deeply equal to it
      : invalid(`must be a number from ${from} to ${to}, not ${describeValue(given)}`);
  return {
    argument,
    fromFlag: (value) => check(/^[-+]?\d+$/.test(value) ? Number(value) : Number.NaN, value),
    fromFile: (value) => check(typeof value === 'number' ? value : Number.NaN, value),
    toFile: (value) => value,
    isZero: (value) => value === 0,
  };
}

/** What Go holds in an int32, from 0. */
export const nonNegativeInt32 = wholeNumber(0, 2 ** 31 - 1);

/** Any finite number. */
export const decimalNumber: ValueType<number> = {
  argument: '<number>',
  fromFlag: (value) =>
    /^[-+]?(\d+\.?\d*|\.\d+)$/.test(value)
      ? Number(value) + 0
      : invalid(`must be a number, not ${describeValue(value)}`),
  fromFile: (value) =>
    typeof value === 'number' && Number.isFinite(value)
      ? value + 0
      : invalid(`must be a number, not ${describeValue(value)}`),
  toFile: (value) => value,
  isZero: (value) => value === 0,
};

/** A Go duration, in milliseconds. @param zero whether it may be 0. */
export function duration({ zero }: { zero: boolean }): ValueType<number> {
  const parse = (given: string) => {
    const value = parseDuration(given);
    if (value === undefined) {
      return invalid(`must be a duration such as 30s, 1m30s or 500ms, not ${describeValue(given)}`);
    }
    if (value < 0) return invalid(`must not be less than 0, not ${describeValue(given)}`);
    if (value === 0 && !zero) return invalid('must be greater than 0');
    return value;
  };
  return {
    ...encodedAsText('<duration>', parse, formatDuration),
    isZero: (value) => typeof value === 'string' && parseDuration(value) === 0,
  };
}

const nanoseconds = wholeNumber(0, Number.MAX_SAFE_INTEGER);

/** A duration that old files have as a number of nanoseconds (TimeOrMetaDuration). */
export const durationOrNanoseconds: ValueType<number> = {
  ...duration({ zero: true }),
  fromFile: (value, onUnknown) =>
    typeof value === 'number'
      ? nanoseconds.fromFile(value, onUnknown) / 1e6
      : duration({ zero: true }).fromFile(value, onUnknown),
  isZero: (value) => value === 0 || duration({ zero: true }).isZero(value),
};

/** `name=value,...`; the values of a map in files. Keys come out in their order. */
export function parsePairs(given: string): [name: string, value: string][] {
  return commaSeparated(given)
    .filter((item) => item !== '')
    .map((item) => {
      const [name = '', value, ...rest] = item.split('=');
      if (value === undefined || rest.length > 0) {
        invalid(`must be NAME=VALUE,..., not ${describeValue(item)}`);
      }
      return [name.trim(), value.trim()];
    });
}

/** A map of a file. @throws InvalidValue */
export function requireObject(value: unknown): [key: string, value: unknown][] {
  if (!isRecord(value)) invalid(`must be an object, not ${describeValue(value)}`);
  return Object.entries(value);
}

/** A key of a map, as a path has it: quoted where it could be taken for something else. */
export function pathSegment(key: string): string {
  return /^[A-Za-z_][\w-]*$/.test(key) ? key : `[${describeValue(key)}]`;
}

/** `iptables`, `syncPeriod` to `iptables.syncPeriod`; `a`, `[0]` to `a[0]`. */
export function joinPath(parent: string, child: string): string {
  if (parent === '' || child === '' || child.startsWith('[')) return parent + child;
  return `${parent}.${child}`;
}
