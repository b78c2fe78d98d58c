/** Parses and evaluates the expressions of the part of Go's text/template that the chart uses. */

/** Functions by name, as in Helm. */
export type Functions = Readonly<Record<string, (...args: never[]) => unknown>>;

export type Operand = (scope: Scope) => unknown;

/** Variables and the dot of a block. */
export class Scope {
  readonly dot: unknown;
  readonly #variables = new Map<string, unknown>();
  readonly #parent: Scope | undefined;

  constructor(dot: unknown, parent?: Scope) {
    this.dot = dot;
    this.#parent = parent;
  }

  declare(name: string, value: unknown): void {
    this.#variables.set(name, value);
  }

  assign(name: string, value: unknown): void {
    const scope = this.#find(name);
    scope.#variables.set(name, value);
  }

  read(name: string): unknown {
    return this.#find(name).#variables.get(name);
  }

  #find(name: string): Scope {
    if (this.#variables.has(name)) return this;
    if (this.#parent === undefined) throw new Error(`undefined variable ${name}`);
    return this.#parent.#find(name);
  }
}

/** Go's truth: false, zero, empty and nil are false. */
export function isTrue(value: unknown): boolean {
  if (Array.isArray(value)) return value.length > 0;
  if (typeof value === 'object' && value !== null) return Object.keys(value).length > 0;
  return Boolean(value);
}

const TOKEN =
  /\s*(?:(?<text>"(?:[^"\\]|\\.)*")|(?<number>-?\d+)(?!\w)|(?<variable>\$\w*)(?<path>(?:\.\w+)*)|(?<fields>(?:\.\w+)+|\.)|(?<word>\w+)|(?<sign>:=|[=|(),]))/y;

interface Token {
  readonly source: string;
  readonly groups: Readonly<Record<string, string | undefined>>;
}

function tokenize(action: string): Token[] {
  const tokens: Token[] = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < action.length) {
    const match = TOKEN.exec(action);
    const source = match?.[0].trimStart() ?? '';
    // Without a space, Go reads `(a).b` as field b.
    const isApart = match?.[0] !== source || tokens.length === 0 || tokens.at(-1)?.source === '(';
    if (match === null || !(isApart || source === ')')) fail(`unsupported action: ${action}`);
    tokens.push({ source, groups: match.groups ?? {} });
  }
  return tokens;
}

/** Parses a pipeline. @throws Error for syntax outside the supported part. */
export function parseExpression(source: string, functions: Functions): Operand {
  const tokens = tokenize(source.trim());
  const value = pipeline(tokens, functions);
  if (tokens.length > 0) throw new Error(`unsupported action: ${source}`);
  return value;
}

function pipeline(tokens: Token[], functions: Functions): Operand {
  let piped: Operand | undefined;
  do {
    const operands: Operand[] = [];
    const word = tokens[0]?.groups.word;
    const isFunction = word !== undefined && word !== 'true' && word !== 'false';
    if (isFunction) tokens.shift();
    while (tokens.length > 0 && tokens[0]?.source !== '|' && tokens[0]?.source !== ')') {
      operands.push(operand(tokens, functions));
    }
    if (piped !== undefined) operands.push(piped);
    piped = isFunction ? call(word, operands, functions) : callMethod(operands);
  } while (tokens[0]?.source === '|' && tokens.shift());
  return piped;
}

function operand(tokens: Token[], functions: Functions): Operand {
  const { source, groups } = tokens.shift() ?? fail('an operand is missing');
  const { text, number, variable, path, fields, word } = groups;
  if (text !== undefined) return () => JSON.parse(text);
  if (number !== undefined) return () => Number(number);
  if (variable !== undefined) return (scope) => field(scope.read(variable), path ?? '');
  if (fields !== undefined) return (scope) => field(scope.dot, fields === '.' ? '' : fields);
  if (word === 'true' || word === 'false') return () => word === 'true';
  // A function without arguments must be in parentheses; text/template would also call it here.
  if (source !== '(') throw new Error(`unsupported operand: ${source}`);
  const inner = pipeline(tokens, functions);
  if (tokens.shift()?.source !== ')') throw new Error('a parenthesis has no end');
  return inner;
}

function call(name: string, operands: readonly Operand[], functions: Functions): Operand {
  // Like Go, these stop at the operand that decides.
  if (name === 'and' || name === 'or') {
    return (scope) => {
      let value: unknown;
      for (const next of operands) {
        value = next(scope);
        if (isTrue(value) === (name === 'or')) break;
      }
      return value;
    };
  }
  const called = functions[name] ?? fail(`unsupported function ${name}`);
  return (scope) => called(...(operands.map((each) => each(scope)) as never[]));
}

/** A value, or the call of a method such as `.Files.Get`. */
function callMethod([first, ...rest]: readonly Operand[]): Operand {
  if (first === undefined) throw new Error('an operand is missing');
  return (scope) => {
    const value = first(scope);
    if (typeof value === 'function') return value(...rest.map((each) => each(scope)));
    if (rest.length > 0) throw new Error('a value cannot have arguments');
    return value;
  };
}

function field(value: unknown, path: string): unknown {
  return path
    .split('.')
    .slice(1)
    .reduce((object, name) => {
      if (typeof object !== 'object' || object === null) fail(`${path} of ${object}`);
      return (object as Record<string, unknown>)[name];
    }, value);
}

export function fail(message: string): never {
  throw new Error(message);
}
