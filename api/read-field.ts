/**
 * Typed access to the fields of a raw object, with the path of each field for error messages. The
 * read functions throw InvalidObject.
 */
import { InvalidObject } from './errors.ts';

/**
 * A value inside a raw object, linked to its parent so that an error can name its path. The path is
 * only built on error: the endpoints of a large cluster have hundreds of thousands of fields, and
 * errors are rare.
 */
export interface ObjectField {
  /** `Service default/web`. */
  readonly object: string;
  readonly parent: ObjectField | undefined;
  readonly key: string | number;
  readonly value: unknown;
}

export function rootField(object: string, value: unknown): ObjectField {
  return { object, parent: undefined, key: '', value };
}

/**
 * Rejects the object because of this field.
 * @throws InvalidObject
 */
export function fail(field: ObjectField, reason: string): never {
  throw new InvalidObject(field.object, pathOf(field), reason);
}

/** Path of a field, such as `spec.ports[0].port`, in printable ASCII. */
export function pathOf(field: ObjectField): string {
  if (field.parent === undefined) return '';
  const path = pathOf(field.parent);
  if (typeof field.key === 'number') return `${path}[${field.key}]`;
  if (!/^[\w-]+$/.test(field.key)) return `${path}[${describeValue(field.key)}]`;
  return path === '' ? field.key : `${path}.${field.key}`;
}

/** A plain JSON object: not an array, not null, and not a class instance made by a YAML tag. */
export function isRecord(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

/** All members of a JSON object, known or unknown. */
export function readMap(field: ObjectField): Readonly<Record<string, unknown>> {
  if (isRecord(field.value)) return field.value;
  return fail(field, `must be an object, not ${describeValue(field.value)}`);
}

/** Whether a field is absent or null, which the Kubernetes API treats as missing. */
export function isMissing(field: ObjectField): boolean {
  return field.value === undefined || field.value === null;
}

/** A member of an object. A missing object has only missing members. */
export function child(field: ObjectField, key: string): ObjectField {
  if (isMissing(field)) return { object: field.object, parent: field, key, value: undefined };
  const all = readMap(field);
  const value = Object.hasOwn(all, key) ? all[key] : undefined;
  return { object: field.object, parent: field, key, value };
}

/**
 * Names of the fields that are set in an object.
 * @throws InvalidObject for a field that is not in `known`.
 */
export function knownFields<T extends string>(field: ObjectField, known: readonly T[]): T[] {
  if (isMissing(field)) return [];
  const names = Object.keys(readMap(field)).filter((name) => !isMissing(child(field, name)));
  return names.map(
    (name) =>
      known.find((each) => each === name) ?? fail(child(field, name), 'is an unknown field'),
  );
}

/**
 * Name of the only field that is set in an object, for union types.
 * @throws InvalidObject if none, several, or an unknown field is set.
 */
export function oneOfField<T extends string>(field: ObjectField, known: readonly T[]): T {
  const [name, second] = knownFields(field, known);
  if (name === undefined) fail(field, `must have one of the fields ${known.join(', ')}`);
  if (second !== undefined) fail(field, `must have ${name} or ${second}, not both`);
  return name;
}

/** The items of a list; empty when the list is missing. */
export function readList(field: ObjectField): ObjectField[] {
  if (isMissing(field)) return [];
  if (!Array.isArray(field.value)) fail(field, 'must be a list');
  return field.value.map((value: unknown, key) => ({
    object: field.object,
    parent: field,
    key,
    value,
  }));
}

/** The items of a required list that must have 1 to `maxItems` items. */
export function readNonEmptyList(field: ObjectField, maxItems: number): ObjectField[] {
  const list = readList(field);
  if (isMissing(field)) fail(field, 'is required');
  if (list.length === 0) fail(field, 'must not be empty');
  if (list.length > maxItems)
    fail(field, `must have at most ${maxItems} items, not ${list.length}`);
  return list;
}

export function readString(field: ObjectField): string {
  if (isMissing(field)) fail(field, 'is required');
  if (typeof field.value !== 'string') {
    fail(field, `must be a string (in YAML, quote it), not ${describeValue(field.value)}`);
  }
  return field.value;
}

/** Undefined when missing or empty: the Kubernetes API omits empty strings (`omitempty`). */
export function readOptionalString(field: ObjectField): string | undefined {
  return isMissing(field) || readString(field) === '' ? undefined : readString(field);
}

export function readOptionalBoolean(field: ObjectField): boolean | undefined {
  if (isMissing(field)) return undefined;
  if (typeof field.value !== 'boolean') {
    fail(field, `must be true or false, not ${describeValue(field.value)}`);
  }
  return field.value;
}

/** One of the allowed strings, or the fallback when missing or empty. */
export function readOptionalEnum<T extends string>(
  field: ObjectField,
  allowed: readonly T[],
  fallback: T,
): T {
  return readOptionalString(field) === undefined ? fallback : readEnum(field, allowed);
}

/** One of the known strings; required. */
export function readEnum<T extends string>(field: ObjectField, known: readonly T[]): T {
  const value = readString(field);
  const found = known.find((each) => each === value);
  return found ?? fail(field, `must be one of ${known.join(', ')}, not ${describeValue(value)}`);
}

/** An integer from `from` to `to`; undefined when missing. */
export function readOptionalInteger(
  field: ObjectField,
  from: number,
  to: number,
): number | undefined {
  const { value } = field;
  if (isMissing(field)) return undefined;
  if (typeof value !== 'number' || !Number.isInteger(value) || value < from || value > to) {
    fail(field, `must be an integer from ${from} to ${to}, not ${describeValue(value)}`);
  }
  return value === 0 ? 0 : value; // JSON has -0, which equals 0 but is not deeply equal to 0
}

/** A required integer from `from` to `to`. */
export function readInteger(field: ObjectField, from: number, to: number): number {
  return readOptionalInteger(field, from, to) ?? fail(field, 'is required');
}

/** Formats a value for an error message: short, one line, printable ASCII. */
export function describeValue(value: unknown): string {
  if (typeof value === 'object' && value !== null)
    return Array.isArray(value) ? 'a list' : 'an object';
  const whole = typeof value === 'string' ? value : String(value);
  const short = whole.length > 80 ? `${whole.slice(0, 80)}...` : whole;
  return typeof value === 'string' ? printableAscii(JSON.stringify(short)) : short;
}

const SHORT_ESCAPES: Readonly<Record<string, string>> = {
  '\b': '\\b',
  '\t': '\\t',
  '\n': '\\n',
  '\f': '\\f',
  '\r': '\\r',
};

/**
 * Escapes every character outside printable ASCII, so that untrusted text is safe in logs and
 * terminals. Control characters look as in JSON, in which values are quoted.
 */
export function printableAscii(line: string): string {
  return line.replace(
    /[^\x20-\x7e]/g,
    (character) =>
      SHORT_ESCAPES[character] ?? `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}
