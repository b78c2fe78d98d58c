/**
 * Custom resource definitions as an API server takes them: whether a schema is structural, and whether it
 * takes an object. As much of both as the schemas here use.
 */
import { Environment } from '@marcbachmann/cel-js';
import { canonicalCidr } from '../../api/addresses.ts';

export interface Schema {
  readonly type?: string;
  readonly description?: string;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly required?: readonly string[];
  readonly items?: Schema;
  readonly enum?: readonly string[];
  readonly format?: string;
  readonly minItems?: number;
  readonly maxItems?: number;
  readonly maxLength?: number;
  readonly 'x-kubernetes-validations'?: readonly {
    readonly rule: string;
    readonly message: string;
  }[];
  readonly 'x-kubernetes-list-type'?: string;
  readonly 'x-kubernetes-list-map-keys'?: readonly string[];
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

/** Keywords beside these may be good, but nobody has looked. */
const KEYWORDS: Readonly<Record<string, readonly string[]>> = {
  object: ['properties', 'required'],
  array: ['items', 'minItems', 'maxItems', 'x-kubernetes-list-type', 'x-kubernetes-list-map-keys'],
  string: ['enum', 'format', 'maxLength'],
  integer: ['format'],
};
const ANYWHERE = ['type', 'description', 'x-kubernetes-validations'];

/** Why a schema is not structural; nothing when it is. */
export function structuralFaults(schema: Schema, path = ''): string[] {
  const { type = '', properties = {}, items, required = [] } = schema;
  const known = KEYWORDS[type];
  if (known === undefined) return [`${path}: has the type ${JSON.stringify(type)}`];
  const faults = Object.keys(schema)
    .filter((keyword) => !known.includes(keyword) && !ANYWHERE.includes(keyword))
    .map((keyword) => `${path}: ${keyword} is no keyword of ${type}`);
  if (path === '.metadata' && Object.keys(schema).length > 1) faults.push(`${path}: is restricted`);
  if (type === 'array' && items === undefined) faults.push(`${path}: has no items`);
  for (const name of required) {
    if (!Object.hasOwn(properties, name)) faults.push(`${path}: requires ${name}, and has it not`);
  }
  const keys = schema['x-kubernetes-list-map-keys'] ?? [];
  if ((schema['x-kubernetes-list-type'] === 'map') !== keys.length > 0) {
    faults.push(`${path}: is half a map`);
  }
  for (const key of keys) {
    if (!items?.required?.includes(key)) faults.push(`${path}: its key ${key} is not required`);
  }
  for (const [name, each] of Object.entries(properties)) {
    faults.push(...structuralFaults(each, `${path}.${name}`));
  }
  if (items !== undefined) faults.push(...structuralFaults(items, `${path}[]`));
  return faults;
}

/** What an API server says of an object; of fields that it drops, that it does so. */
export function objectFaults(schema: Schema, value: unknown, path = ''): string[] {
  const faults: string[] = [];
  const isObject = typeof value === 'object' && value !== null && !Array.isArray(value);
  if (schema.type === 'object') {
    if (!isObject) return [`${path}: must be an object`];
    for (const name of schema.required ?? []) {
      if (!Object.hasOwn(value, name)) faults.push(`${path}.${name}: is required`);
    }
    for (const [name, each] of Object.entries(value)) {
      const own = schema.properties?.[name];
      if (own !== undefined) faults.push(...objectFaults(own, each, `${path}.${name}`));
      else if (path !== '.metadata') faults.push(`${path}.${name}: is dropped`);
    }
  } else if (schema.type === 'array') {
    if (!Array.isArray(value)) return [`${path}: must be a list`];
    const { minItems = 0, maxItems = Infinity, items = {} } = schema;
    if (value.length < minItems) faults.push(`${path}: must have at least ${minItems} items`);
    if (value.length > maxItems) faults.push(`${path}: must have at most ${maxItems} items`);
    faults.push(...value.flatMap((item, index) => objectFaults(items, item, `${path}[${index}]`)));
  } else if (schema.type === 'string') {
    if (typeof value !== 'string') return [`${path}: must be a string`];
    if (value.length > (schema.maxLength ?? Infinity)) faults.push(`${path}: is too long`);
    if (schema.enum?.includes(value) === false) faults.push(`${path}: is none of these words`);
  } else if (schema.type === 'integer' && !Number.isInteger(value)) {
    faults.push(`${path}: must be a whole number`);
  }
  for (const { rule, message } of schema['x-kubernetes-validations'] ?? []) {
    if (evaluate(rule, value) !== true) faults.push(`${path}: ${message}`);
  }
  return faults;
}

/** isCIDR is of Kubernetes' own library; it takes host bits, but no IPv4 in IPv6 and no leading zeros. */
function evaluate(rule: string, self: unknown): unknown {
  const environment = new Environment()
    .registerVariable('self', 'dyn')
    .registerFunction(
      'isCIDR(string): bool',
      (text: string) => canonicalCidr(text) !== undefined && !/\/0\d/.test(text),
    );
  const { valid, error } = environment.check(rule);
  if (!valid) throw new Error(`${rule}: ${error?.message}`);
  return environment.evaluate(rule, { self });
}
