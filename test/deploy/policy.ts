/**
 * Judges objects by an admission policy as an API server does: conditions, variables in their order,
 * validations. Expressions are evaluated by a CEL library as they stand in the manifest, and checked
 * against the types that Kubernetes asks for (`object` is dyn, a condition exactly bool).
 */
import { Environment } from '@marcbachmann/cel-js';

export interface PolicySpec {
  readonly matchConditions: readonly { readonly name: string; readonly expression: string }[];
  readonly variables?: readonly { readonly name: string; readonly expression: string }[];
  readonly validations?: readonly {
    readonly expression: string;
    readonly messageExpression: string;
    readonly message: string;
  }[];
}

/** What an expression may use; `oldObject` is null when the object is created. */
export interface AdmissionRequest {
  readonly object: object;
  readonly oldObject: object | null;
}

/** API servers take no message that is longer, in bytes, nor one of several lines. */
const MAX_MESSAGE = 5 * 1024;

/**
 * @returns undefined when a condition does not match; otherwise the messages of the validations
 * that fail.
 * @throws Error for an expression that cannot be evaluated.
 */
export function judge(spec: PolicySpec, request: AdmissionRequest): string[] | undefined {
  const bare = environment({});
  for (const { expression } of spec.matchConditions) {
    if (bare.evaluate(expression, { ...request }) !== true) return undefined;
  }
  const { types, variables } = variablesOf(spec, request);
  const all = environment(types);
  const context = { ...request, variables };
  return (spec.validations ?? []).flatMap(({ expression, messageExpression, message }) => {
    if (all.evaluate(expression, context) === true) return [];
    const made = String(all.evaluate(messageExpression, context)).trim();
    const taken = made !== '' && Buffer.byteLength(made) <= MAX_MESSAGE && !made.includes('\n');
    return [taken ? made : message];
  });
}

/** The variables of a policy, for a request that its conditions match. @throws as `judge` */
export function variablesOf(
  spec: PolicySpec,
  request: AdmissionRequest,
): {
  readonly types: Readonly<Record<string, string>>;
  readonly variables: Readonly<Record<string, unknown>>;
} {
  const types: Record<string, string> = {};
  const variables: Record<string, unknown> = {};
  for (const { name, expression } of spec.variables ?? []) {
    const own = environment(types);
    variables[name] = own.evaluate(expression, { ...request, variables });
    types[name] = typeOf(own, expression);
  }
  return { types, variables };
}

/** The type of every expression of a policy, by what it is. @throws Error for one that has none. */
export function expressionTypes(spec: PolicySpec): Map<string, string> {
  const found = new Map<string, string>();
  const types: Record<string, string> = {};
  for (const { name, expression } of spec.matchConditions) {
    found.set(`condition ${name}`, typeOf(environment({}), expression));
  }
  for (const { name, expression } of spec.variables ?? []) {
    types[name] = typeOf(environment(types), expression);
    found.set(`variable ${name}`, types[name]);
  }
  for (const [index, { expression, messageExpression }] of (spec.validations ?? []).entries()) {
    found.set(`validation ${index}`, typeOf(environment(types), expression));
    found.set(`message ${index}`, typeOf(environment(types), messageExpression));
  }
  return found;
}

function environment(variables: Readonly<Record<string, string>>): Environment {
  return (
    new Environment({ enableOptionalTypes: true, homogeneousAggregateLiterals: true })
      .registerVariable('object', 'dyn')
      .registerVariable('oldObject', 'dyn')
      .registerVariable({ name: 'variables', schema: { ...variables } })
      // Of cel-go's strings and Kubernetes' regular expressions, which this library has not.
      .registerFunction(
        'string.replace(string, string): string',
        (text: string, from: string, to: string) => text.replaceAll(from, () => to),
      )
      .registerFunction(
        'string.find(string): string',
        (text: string, pattern: string) => new RegExp(pattern).exec(text)?.[0] ?? '',
      )
      .registerFunction('string.findAll(string): list<string>', (text: string, pattern: string) =>
        Array.from(text.matchAll(new RegExp(pattern, 'g')), ([found]) => found),
      )
  );
}

function typeOf(env: Environment, expression: string): string {
  const { valid, type, error } = env.check(expression);
  if (!valid || type === undefined) throw new Error(`${expression}: ${error?.message}`);
  return type;
}
