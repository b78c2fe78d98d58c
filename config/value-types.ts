/** Value types of settings: parsing from flags and files, and writing to files. */
import { describeValue, isRecord } from '../api/read-field.ts';
import { formatDuration, parseDuration } from './duration.ts';
import { InvalidValueError, type ValueProblem } from './errors.ts';

export interface ValueType<T> {
  /** Placeholder after the flag in `--help`, in square brackets if the value is optional. */
  readonly argument: string;
  /** @throws InvalidValueError */
  fromFlag(text: string): T;
  /**
   * @param value parsed YAML or JSON, never null.
   * @param onUnknown called with the path of each unknown field, relative to the setting.
   * @throws InvalidValueError
   */
  fromFile(value: unknown, onUnknown: (at: string) => void): T;
  /** Encodes the value for a file; null for an empty list. `fromFile` decodes any other result to the same value. */
  toFile(value: T): unknown;
  /** Whether the value in a file is Go's zero value, which most fields treat as unset. */
  isZero(value: unknown): boolean;
}

/** @throws InvalidValueError always. */
export function invalid(reason: string): never {
  throw new InvalidValueError([{ at: '', reason }]);
}

export function isEmptyList(value: unknown): boolean {
  return Array.isArray(value) && value.length === 0;
}

/** A type whose values have the same text form in files and in flags. */
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

/** A type whose values are strings. */
export function parsedText<T extends string>(
  argument: string,
  parse: (text: string) => T,
): ValueType<T> {
  return encodedAsText(argument, parse, String);
}

/** Makes a type optional: empty text means unset. */
export function optional<T>(type: ValueType<T>): ValueType<T | undefined> {
  return {
    argument: type.argument,
    fromFlag: (text) => (text === '' ? undefined : type.fromFlag(text)),
    fromFile: (value, onUnknown) => (value === '' ? undefined : type.fromFile(value, onUnknown)),
    toFile: (value) => (value === undefined ? '' : type.toFile(value)),
    isZero: (value) => value === '',
  };
}

/** Adds the word `none`, which means undefined. In a file, empty text means the default. */
export function orNone<T>(type: ValueType<T | undefined>): ValueType<T | undefined> {
  return {
    ...type,
    fromFlag: (text) => (text === 'none' ? undefined : type.fromFlag(text)),
    fromFile: (value, onUnknown) =>
      value === 'none' ? undefined : type.fromFile(value, onUnknown),
    toFile: (value) => (value === undefined ? 'none' : type.toFile(value)),
  };
}

/**
 * A list of strings: a list in files, comma-separated in flags.
 * @param parse gets the items as they are; items from a file may be of any type.
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
    // Go writes a nil slice as null.
    toFile: (value) => (value.length === 0 ? null : value),
    isZero: isEmptyList,
  };
}

/** Splits `a, b`, the form of lists in flags and some fields. Empty text is an empty list. */
export function commaSeparated(text: string): string[] {
  return text === '' ? [] : text.split(',').map((item) => item.trim());
}

/** Reads every item. @throws InvalidValueError with the problems of all items and their indexes. */
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

/** @throws InvalidValueError unless the value is a string. */
export function requireText(value: unknown): string {
  if (typeof value === 'string') return value;
  return invalid(`must be a string (quoted if necessary), not ${describeValue(value)}`);
}

export const anyText = parsedText<string>('<text>', String);
export const filePath: ValueType<string> = { ...anyText, argument: '<file>' };

/** A string that matches a pattern. @param expected completes the error "must be …". */
export function textMatching(
  argument: string,
  pattern: RegExp,
  expected: string,
): ValueType<string> {
  const parse = (value: string) =>
    pattern.test(value) ? value : invalid(`must be ${expected}, not ${describeValue(value)}`);
  return parsedText(argument, parse);
}

/** One of several strings. */
export function oneOf<T extends string>(argument: string, words: readonly T[]): ValueType<T> {
  const parse = (value: string) =>
    words.find((word) => word === value) ??
    invalid(`must be one of ${words.join(', ')}, not ${describeValue(value)}`);
  return parsedText(argument, parse);
}

/** Makes an empty flag mean the default value, as in kube-proxy. */
export function oneOfOrDefault<T extends string>(
  defaultValue: T,
  type: ValueType<T>,
): ValueType<T> {
  return { ...type, fromFlag: (text) => (text === '' ? defaultValue : type.fromFlag(text)) };
}

/** The spellings that Go's strconv.ParseBool accepts. */
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

/** A whole number; both bounds are inclusive. */
export function wholeNumber(from: number, to: number, argument = '<number>'): ValueType<number> {
  const check = (value: number, given: unknown) =>
    Number.isInteger(value) && value >= from && value <= to
      ? value + 0 // turns -0 into 0, because deep equality distinguishes them
      : invalid(`must be a number from ${from} to ${to}, not ${describeValue(given)}`);
  return {
    argument,
    fromFlag: (value) => check(/^[-+]?\d+$/.test(value) ? Number(value) : Number.NaN, value),
    fromFile: (value) => check(typeof value === 'number' ? value : Number.NaN, value),
    toFile: (value) => value,
    isZero: (value) => value === 0,
  };
}

/** A non-negative Go int32. */
export const nonNegativeInt32 = wholeNumber(0, 2 ** 31 - 1);

/** A finite number; in a flag, without an exponent. */
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

/** A Go duration, as milliseconds. @param zero whether 0 is allowed. */
export function duration({ zero }: { zero: boolean }): ValueType<number> {
  const parse = (given: string) => {
    const value = parseDuration(given);
    if (value === undefined) {
      return invalid(`must be a duration such as 30s, 1m30s or 500ms, not ${describeValue(given)}`);
    }
    if (value < 0) return invalid(`must be at least 0, not ${describeValue(given)}`);
    if (value === 0 && !zero) return invalid('must be greater than 0');
    return value;
  };
  return {
    ...encodedAsText('<duration>', parse, formatDuration),
    isZero: (value) => typeof value === 'string' && parseDuration(value) === 0,
  };
}

const nanoseconds = wholeNumber(0, Number.MAX_SAFE_INTEGER);

/** A duration that older files give as a number of nanoseconds (TimeOrMetaDuration). */
export const durationOrNanoseconds: ValueType<number> = {
  ...duration({ zero: true }),
  fromFile: (value, onUnknown) =>
    typeof value === 'number'
      ? nanoseconds.fromFile(value, onUnknown) / 1e6
      : duration({ zero: true }).fromFile(value, onUnknown),
  isZero: (value) => value === 0 || duration({ zero: true }).isZero(value),
};

/** Parses `name=value,...`, the flag form of a map, in order. @throws InvalidValueError */
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

/** The entries of an object in a file. @throws InvalidValueError unless it is an object. */
export function requireObject(value: unknown): [key: string, value: unknown][] {
  if (!isRecord(value)) invalid(`must be an object, not ${describeValue(value)}`);
  return Object.entries(value);
}

/** A map key as a path segment, quoted if it is not a plain name. */
export function pathSegment(key: string): string {
  return /^[A-Za-z_][\w-]*$/.test(key) ? key : `[${describeValue(key)}]`;
}

/** Joins path segments: `iptables` and `syncPeriod` to `iptables.syncPeriod`, `a` and `[0]` to `a[0]`. */
export function joinPath(parent: string, child: string): string {
  if (parent === '' || child === '' || child.startsWith('[')) return parent + child;
  return `${parent}.${child}`;
}
