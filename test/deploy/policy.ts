/**
 * Evaluates an admission policy like an API server: conditions, variables in order, validations. A
 * CEL library evaluates the manifest's expressions and checks their types as Kubernetes requires
 * (`object` is dyn, a condition is bool).
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

/** Variables of an expression; `oldObject` is null when the object is created. */
export interface AdmissionRequest {
  readonly object: object;
  readonly oldObject: object | null;
}

/** API servers reject messages longer than this, in bytes, and messages of several lines. */
const MAX_MESSAGE = 5 * 1024;

/**
 * @returns undefined if a condition does not match; otherwise the messages of failed validations.
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

/**
 * Values of a policy's variables, for a request that its conditions match.
 * @throws as `judge`
 */
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

/**
 * Type of every expression of a policy, by its place.
 * @throws Error for an expression without a type.
 */
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
      // Functions of cel-go's strings library and Kubernetes' regular expressions, which this
      // library lacks.
      .registerFunction(
        'string.replace(string, string): string',
        (text: string, from: string, to: string) => text.replaceAll(from, () => to),
      )
      .registerFunction(
        'string.find(string): string',
        (text: string, pattern: string) => new RegExp(pattern).exec(text)?.[0] ?? '',
      )
      // Kubernetes' lists library; here for lists of numbers.
      .registerFunction('list.indexOf(list<int>): int', (list: bigint[][], item: bigint[]) =>
        BigInt(list.findIndex((each) => each.join() === item.join())),
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
