/** Fields of a raw object, each with its path; what reads one throws InvalidObject. */
import { InvalidObject } from './errors.ts';

/**
 * A value inside a raw object together with the way to it, so that what cannot be read is named by
 * its path. Paths are put together only for errors: there are hundreds of thousands of fields in
 * the endpoints of a large cluster, and hardly ever an error.
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

/** Refuses the object because of this field. */
export function fail(field: ObjectField, reason: string): never {
  throw new InvalidObject(field.object, pathOf(field), reason);
}

/** Where a field is: `spec.ports[0].port`; safe to print. */
export function pathOf(field: ObjectField): string {
  if (field.parent === undefined) return '';
  const path = pathOf(field.parent);
  if (typeof field.key === 'number') return `${path}[${field.key}]`;
  if (!/^[\w-]+$/.test(field.key)) return `${path}[${describeValue(field.key)}]`;
  return path === '' ? field.key : `${path}.${field.key}`;
}

/** A JSON object: no array, no null, nothing that a YAML tag may have made. */
export function isRecord(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

/** The members of a JSON object, known or not. */
export function readMap(field: ObjectField): Readonly<Record<string, unknown>> {
  if (isRecord(field.value)) return field.value;
  return fail(field, `must be an object, not ${describeValue(field.value)}`);
}

/** Null and missing are one to the Kubernetes API. */
export function isMissing(field: ObjectField): boolean {
  return field.value === undefined || field.value === null;
}

/** A member of an object; a missing object has only missing members. */
export function child(field: ObjectField, key: string): ObjectField {
  if (isMissing(field)) return { object: field.object, parent: field, key, value: undefined };
  const all = readMap(field);
  const value = Object.hasOwn(all, key) ? all[key] : undefined;
  return { object: field.object, parent: field, key, value };
}

/** The members of an object that are set. @throws InvalidObject for one that is not among those known. */
export function knownFields<T extends string>(field: ObjectField, known: readonly T[]): T[] {
  if (isMissing(field)) return [];
  const names = Object.keys(readMap(field)).filter((name) => !isMissing(child(field, name)));
  return names.map(
    (name) => known.find((each) => each === name) ?? fail(child(field, name), 'is not known'),
  );
}

/** The one member of an object that is set, of those known. */
export function oneOfField<T extends string>(field: ObjectField, known: readonly T[]): T {
  const [name, second] = knownFields(field, known);
  if (name === undefined) fail(field, `must have one of ${known.join(', ')}`);
  if (second !== undefined) fail(field, `must have ${name} or ${second}, not both`);
  return name;
}

/** The members of a list; none when it is missing. */
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

/** The members of a list that has to have some, but not too many. */
export function readNonEmptyList(field: ObjectField, most: number): ObjectField[] {
  const list = readList(field);
  if (isMissing(field)) fail(field, 'is required');
  if (list.length === 0) fail(field, 'must not be empty');
  if (list.length > most) fail(field, `must have at most ${most} members, not ${list.length}`);
  return list;
}

export function readString(field: ObjectField): string {
  if (isMissing(field)) fail(field, 'is required');
  if (typeof field.value !== 'string') {
    fail(field, `must be a string, in quotes if need be, not ${describeValue(field.value)}`);
  }
  return field.value;
}

/** Empty is missing, as it is to the Kubernetes API (`omitempty`). */
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

/** One of the allowed words; the fallback when it is missing or empty. */
export function readOptionalEnum<T extends string>(
  field: ObjectField,
  allowed: readonly T[],
  fallback: T,
): T {
  return readOptionalString(field) === undefined ? fallback : readEnum(field, allowed);
}

/** One of these words, which has to be there. */
export function readEnum<T extends string>(field: ObjectField, known: readonly T[]): T {
  const value = readString(field);
  const found = known.find((each) => each === value);
  return found ?? fail(field, `must be one of ${known.join(', ')}, not ${describeValue(value)}`);
}

/** A whole number from `from` to `to`; undefined when it is missing. */
export function readOptionalInteger(
  field: ObjectField,
  from: number,
  to: number,
): number | undefined {
  const { value } = field;
  if (isMissing(field)) return undefined;
  if (typeof value !== 'number' || !Number.isInteger(value) || value < from || value > to) {
    fail(field, `must be a number from ${from} to ${to}, not ${describeValue(value)}`);
  }
  return value === 0 ? 0 : value; // JSON knows -0, which equals 0 and yet is not deeply equal to it
}

/** A whole number from `from` to `to`. */
export function readInteger(field: ObjectField, from: number, to: number): number {
  return readOptionalInteger(field, from, to) ?? fail(field, 'is required');
}

/** A value as an error message shows it: short, on one line, in printable ASCII. */
export function describeValue(value: unknown): string {
  if (typeof value === 'object' && value !== null)
    return Array.isArray(value) ? 'a list' : 'an object';
  const whole = typeof value === 'string' ? value : String(value);
  const short = whole.length > 80 ? `${whole.slice(0, 80)}...` : whole;
  return typeof value === 'string' ? printableAscii(JSON.stringify(short)) : short;
}

/** Text of others made safe for a log line or a terminal: nothing but printable ASCII. */
export function printableAscii(line: string): string {
  return line.replace(
    /[^\x20-\x7e]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`,
  );
}
