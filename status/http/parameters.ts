/** Parameters of a request, parsed into values. Pure. */
import { describeValue, printableAscii } from '../../api/read-field.ts';

/** A parameter that cannot be used. */
export class BadParameter extends Error {
  override readonly name = 'BadParameter';
  readonly parameter: string;

  /** @param predicate completes "parameter NAME …". */
  constructor(parameter: string, predicate: string) {
    super(`parameter ${parameter} ${predicate}`);
    this.parameter = parameter;
  }
}

/** Parses the text of one parameter. */
export interface Parser<T> {
  /** @throws BadParameter */
  (text: string, name: string): T;
  /** JSON Schema of the text, for the OpenAPI document. */
  readonly schema: Readonly<Record<string, unknown>>;
}

export type Parsers = Readonly<Record<string, Parser<unknown>>>;
export type Values<P extends Parsers> = {
  readonly [Name in keyof P]: ReturnType<P[Name]> | undefined;
};

/** Longest value of a parameter, in characters. */
const MAX_LENGTH = 1000;

/**
 * Parses the query of a request.
 * @param parsers the known parameters, by name.
 * @returns undefined for a parameter that is missing.
 * @throws BadParameter also for an unknown and for a repeated parameter.
 */
export function readParameters<P extends Parsers>(query: URLSearchParams, parsers: P): Values<P> {
  const values: Record<string, unknown> = {};
  for (const [name, text] of query) {
    const parser = Object.hasOwn(parsers, name) ? parsers[name] : undefined;
    if (parser === undefined) {
      const known = Object.keys(parsers).join(', ') || 'none';
      const shown = printableAscii(name.slice(0, 60));
      throw new BadParameter(shown, `is unknown; known parameters: ${known}`);
    }
    if (Object.hasOwn(values, name)) throw new BadParameter(name, 'is given more than once');
    if (text.length > MAX_LENGTH) {
      throw new BadParameter(name, `is longer than ${MAX_LENGTH} characters`);
    }
    values[name] = parser(text, name);
  }
  return values as Values<P>;
}

/** One of a few words. */
export function oneOf<T extends string>(...known: readonly T[]): Parser<T> {
  const parse = (text: string, name: string) => {
    const found = known.find((each) => each === text);
    if (found !== undefined) return found;
    throw new BadParameter(name, `must be one of ${known.join(', ')}, not ${describeValue(text)}`);
  };
  return Object.assign(parse, { schema: { type: 'string', enum: known } });
}

/** A decimal number from `min` to `max`. */
export function integer(min: number, max: number): Parser<number> {
  const parse = (text: string, name: string) => {
    const value = /^\d{1,10}$/.test(text) ? Number(text) : Number.NaN;
    if (value >= min && value <= max) return value;
    throw new BadParameter(
      name,
      `must be a number from ${min} to ${max}, not ${describeValue(text)}`,
    );
  };
  return Object.assign(parse, { schema: { type: 'integer', minimum: min, maximum: max } });
}

/** Text that a function accepts. @param what names the values, such as `an IP address`. */
export function parsed<T>(what: string, parse: (text: string) => T | undefined): Parser<T> {
  const parseNamed = (text: string, name: string) => {
    const value = parse(text);
    if (value !== undefined) return value;
    throw new BadParameter(name, `must be ${what}, not ${describeValue(text)}`);
  };
  return Object.assign(parseNamed, { schema: { type: 'string', description: what } });
}
