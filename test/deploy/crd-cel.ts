/**
 * CEL rules of custom resource definitions, type-checked like in an API server: fields without a
 * type do not exist for them.
 */
import { Environment } from '@marcbachmann/cel-js';
import { canonicalCidr } from '../../api/addresses.ts';
import type { Schema } from './crd.ts';

/** Rules that do not compile. */
export function celFaults(schema: Schema, path: string): string[] {
  const rules = schema['x-kubernetes-validations'] ?? [];
  if (rules.length === 0) return [];
  const environment = typedEnvironment(schema, path === '');
  return rules.flatMap(({ rule }) => {
    // The library does not check that the field of `has` exists. API servers do.
    const accesses = rule.replaceAll(/has\(([^()]*)\)/g, '([$1] == [$1])');
    for (const expression of [rule, accesses]) {
      const { valid, type, error } = environment.check(expression);
      if (!valid) return [`${path}: ${rule}: ${error?.message.split('\n')[0]}`];
      if (type !== 'bool') return [`${path}: ${rule}: is of type ${type}`];
    }
    return [];
  });
}

/**
 * Messages of the rules that a value violates.
 * @throws Error for a rule that cannot be evaluated.
 */
export function celViolations(schema: Schema, value: unknown): string[] {
  const rules = schema['x-kubernetes-validations'] ?? [];
  if (rules.length === 0) return [];
  const environment = typedEnvironment(schema, Object.hasOwn(Object(value), 'apiVersion'));
  const self = celValue(schema, value);
  return rules
    .filter(({ rule }) => environment.evaluate(rule, { self }) !== true)
    .map(({ message }) => message);
}

/**
 * isCIDR belongs to Kubernetes' CEL library. It accepts host bits, but no IPv4-mapped IPv6 and no
 * leading zeros.
 */
function typedEnvironment(schema: Schema, isRoot: boolean): Environment {
  const environment = new Environment();
  let count = 0;
  const declared = (fields: Readonly<Record<string, string>>): string => {
    count += 1;
    const name = `Type${count}`;
    environment.registerType(name, { fields });
    return name;
  };
  const typeOf = (each: Schema, depth: number): string | undefined => {
    const { type, items, properties, additionalProperties } = each;
    if (type === 'string') return 'string';
    if (type === 'integer') return 'int';
    if (type === 'array') {
      const item = items && typeOf(items, depth + 1);
      return item && `list<${item}>`;
    }
    if (type !== 'object') return undefined;
    if (additionalProperties !== undefined) {
      const member = typeOf(additionalProperties, depth + 1);
      return member && `map<string, ${member}>`;
    }
    const fields: Record<string, string> = {};
    for (const [name, property] of Object.entries(properties ?? {})) {
      const field = typeOf(property, depth + 1);
      if (field !== undefined) fields[name] = field;
    }
    if (isRoot && depth === 0) fields.metadata = declared({ name: 'string' });
    return declared(fields);
  };
  return environment
    .registerFunction(
      'isCIDR(string): bool',
      (text: string) => canonicalCidr(text) !== undefined && !/\/0\d/.test(text),
    )
    .registerVariable('self', typeOf(schema, 0) ?? 'dyn');
}

/** Converts integers to the library's type, by the schema. */
function celValue(schema: Schema, value: unknown): unknown {
  if (schema.type === 'integer') return BigInt(Number(value));
  if (Array.isArray(value)) return value.map((item) => celValue(schema.items ?? {}, item));
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, each]) => [
      name,
      celValue(schema.properties?.[name] ?? schema.additionalProperties ?? {}, each),
    ]),
  );
}
