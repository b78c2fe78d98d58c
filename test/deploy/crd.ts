/**
 * Validates custom resource definitions and objects like an API server: structural schema, CEL
 * rules, and validation of objects. Supports the subset that the schemas here use.
 */
import { celFaults, celViolations } from './crd-cel.ts';

export interface Schema {
  readonly type?: string;
  readonly description?: string;
  readonly default?: unknown;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly additionalProperties?: Schema;
  readonly required?: readonly string[];
  readonly minProperties?: number;
  readonly maxProperties?: number;
  readonly items?: Schema;
  readonly minItems?: number;
  readonly maxItems?: number;
  readonly enum?: readonly string[];
  readonly format?: string;
  readonly pattern?: string;
  readonly minLength?: number;
  readonly maxLength?: number;
  readonly minimum?: number;
  readonly maximum?: number;
  readonly anyOf?: readonly Schema[];
  readonly 'x-kubernetes-preserve-unknown-fields'?: boolean;
  readonly 'x-kubernetes-validations'?: readonly Rule[];
  readonly 'x-kubernetes-list-type'?: string;
  readonly 'x-kubernetes-list-map-keys'?: readonly string[];
  readonly 'x-kubernetes-map-type'?: string;
}

export interface Rule {
  readonly rule: string;
  readonly message: string;
}

export interface CustomResourceDefinition {
  readonly spec: {
    readonly group: string;
    readonly scope: string;
    readonly names: { readonly kind: string; readonly listKind: string; readonly plural: string };
    readonly versions: readonly {
      readonly name: string;
      readonly served: boolean;
      readonly storage: boolean;
      readonly schema: { readonly openAPIV3Schema: Schema };
    }[];
  };
}

/** Supported keywords; others may be valid but are not implemented. */
const KEYWORDS: Readonly<Record<string, readonly (keyof Schema)[]>> = {
  object: [
    'properties',
    'additionalProperties',
    'required',
    'minProperties',
    'maxProperties',
    'x-kubernetes-map-type',
  ],
  array: ['items', 'minItems', 'maxItems', 'x-kubernetes-list-type', 'x-kubernetes-list-map-keys'],
  string: ['enum', 'format', 'pattern', 'minLength', 'maxLength', 'default'],
  integer: ['format', 'minimum', 'maximum'],
};
const ANYWHERE: readonly string[] = ['type', 'description', 'x-kubernetes-validations'];
/** A field without a type: keywords of each type apply to values of that type. */
const UNTYPED: readonly string[] = [
  'x-kubernetes-preserve-unknown-fields',
  'description',
  'anyOf',
  ...Object.values(KEYWORDS).flat(),
];

/** Why a schema is not structural, and rules that do not compile; empty if valid. */
export function structuralFaults(schema: Schema, path = ''): string[] {
  const { type = '', properties = {}, items, required = [] } = schema;
  const isUntyped = type === '' && schema['x-kubernetes-preserve-unknown-fields'] === true;
  const known = isUntyped ? UNTYPED : KEYWORDS[type];
  if (known === undefined) return [`${path}: has type ${JSON.stringify(type)}`];
  const faults = Object.keys(schema)
    .filter((keyword) => !(known as readonly string[]).includes(keyword))
    .filter((keyword) => isUntyped || !ANYWHERE.includes(keyword))
    .map((keyword) => `${path}: ${keyword} is not a keyword of ${isUntyped ? 'no type' : type}`);
  if (path === '.metadata' && Object.keys(schema).length > 1) faults.push(`${path}: is restricted`);
  if (type === 'array' && items === undefined) faults.push(`${path}: has no items`);
  for (const name of required) {
    if (!Object.hasOwn(properties, name))
      faults.push(`${path}: requires the undeclared property ${name}`);
  }
  const keys = schema['x-kubernetes-list-map-keys'] ?? [];
  if ((schema['x-kubernetes-list-type'] === 'map') !== keys.length > 0) {
    faults.push(`${path}: has a list type "map" or map keys without the other`);
  }
  for (const key of keys) {
    if (!items?.required?.includes(key)) faults.push(`${path}: its key ${key} is not required`);
  }
  faults.push(...celFaults(schema, path));
  const below = isUntyped ? untypedFaults : structuralFaults;
  for (const [name, each] of Object.entries(properties)) {
    faults.push(...below(each, `${path}.${name}`));
  }
  if (items !== undefined) faults.push(...below(items, `${path}[]`));
  if (schema.additionalProperties !== undefined) {
    faults.push(...below(schema.additionalProperties, `${path}{}`));
  }
  return faults;
}

/** API servers reject CEL rules below a field without a type. */
function untypedFaults(schema: Schema, path: string): string[] {
  const hasRules = (each: Schema): boolean =>
    each['x-kubernetes-validations'] !== undefined ||
    [...Object.values(each.properties ?? {}), ...(each.items ? [each.items] : [])].some(hasRules);
  return [
    ...(hasRules(schema) ? [`${path}: has rules below a field without a type`] : []),
    ...structuralFaults(schema, path),
  ];
}

/** An API server's messages for an object, including unknown fields, which it drops. */
export function objectFaults(schema: Schema, value: unknown, path = ''): string[] {
  const faults = typeFaults(schema, value, path);
  if (faults.length > 0) return faults;
  if (typeof value === 'string') faults.push(...textFaults(schema, value, path));
  if (typeof value === 'number') faults.push(...numberFaults(schema, value, path));
  if (Array.isArray(value)) faults.push(...listFaults(schema, value, path));
  if (isObject(value)) faults.push(...memberFaults(schema, value, path));
  const { anyOf } = schema;
  if (anyOf?.every((each) => requirementFaults(each, value, path).length > 0)) {
    faults.push(`${path}: matches no allowed form`);
  }
  // An API server evaluates CEL rules only if the schema is satisfied.
  if (faults.length > 0) return faults;
  return celViolations(schema, value).map((message) => `${path}: ${message}`);
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function typeFaults({ type }: Schema, value: unknown, path: string): string[] {
  if (type === 'object' && !isObject(value)) return [`${path}: must be an object`];
  if (type === 'array' && !Array.isArray(value)) return [`${path}: must be a list`];
  if (type === 'string' && typeof value !== 'string') return [`${path}: must be a string`];
  if (type === 'integer' && !Number.isInteger(value)) return [`${path}: must be a whole number`];
  return [];
}

function textFaults(schema: Schema, value: string, path: string): string[] {
  const { minLength = 0, maxLength = Infinity, pattern = '' } = schema;
  return [
    ...(value.length < minLength ? [`${path}: is too short`] : []),
    ...(value.length > maxLength ? [`${path}: is too long`] : []),
    ...(new RegExp(pattern).test(value) ? [] : [`${path}: does not match ${pattern}`]),
    ...(schema.enum?.includes(value) === false ? [`${path}: is not an allowed value`] : []),
  ];
}

function numberFaults(schema: Schema, value: number, path: string): string[] {
  const { minimum = -Infinity, maximum = Infinity } = schema;
  if (value >= minimum && value <= maximum) return [];
  return [`${path}: must be from ${minimum} to ${maximum}`];
}

function listFaults(schema: Schema, value: readonly unknown[], path: string): string[] {
  const { minItems = 0, maxItems = Infinity, items = {} } = schema;
  const faults: string[] = [];
  if (value.length < minItems) faults.push(`${path}: must have at least ${minItems} items`);
  if (value.length > maxItems) faults.push(`${path}: must have at most ${maxItems} items`);
  if (schema['x-kubernetes-list-type'] === 'set' && new Set(value).size < value.length) {
    faults.push(`${path}: has a duplicate item`);
  }
  faults.push(...value.flatMap((item, index) => objectFaults(items, item, `${path}[${index}]`)));
  return faults;
}

function memberFaults(
  schema: Schema,
  value: Readonly<Record<string, unknown>>,
  path: string,
): string[] {
  const { minProperties = 0, maxProperties = Infinity, properties, additionalProperties } = schema;
  const faults = requirementFaults(schema, value, path);
  const { length } = Object.keys(value);
  if (length < minProperties) faults.push(`${path}: must have at least ${minProperties} members`);
  if (length > maxProperties) faults.push(`${path}: must have at most ${maxProperties} members`);
  const keepsUnknown = schema['x-kubernetes-preserve-unknown-fields'] || path === '.metadata';
  for (const [name, each] of Object.entries(value)) {
    const own = properties?.[name] ?? additionalProperties;
    if (own !== undefined) faults.push(...objectFaults(own, each, `${path}.${name}`));
    else if (!keepsUnknown) faults.push(`${path}.${name}: is an unknown field`);
  }
  return faults;
}

/** Properties that are required and have no default. */
function requirementFaults(schema: Schema, value: unknown, path: string): string[] {
  if (!isObject(value)) return [];
  return (schema.required ?? [])
    .filter((name) => !Object.hasOwn(value, name))
    .filter((name) => schema.properties?.[name]?.default === undefined)
    .map((name) => `${path}.${name}: is required`);
}
