/**
 * Renders the part of Go's text/template that the chart uses. Everything else is an error, because
 * Helm might render it differently.
 */

import {
  type Functions,
  fail,
  isTrue,
  type Operand,
  parseExpression,
  Scope,
} from './go-expression.ts';

interface Branch {
  readonly kind: 'if';
  readonly value: Operand;
  readonly body: Node[];
  readonly otherwise: Node[];
}

type Node =
  | Branch
  | { readonly kind: 'text'; readonly text: string }
  | { readonly kind: 'print'; readonly value: Operand }
  | { readonly kind: 'assign'; readonly declares: boolean; name: string; readonly value: Operand }
  | { readonly kind: 'range'; names: readonly string[]; value: Operand; readonly body: Node[] };

/** A block without its end, and the list that its nodes go to. */
interface Block {
  readonly nodes: Node[];
  /** Set until its `else`. */
  readonly branch?: Branch;
}

/** A set of templates, each with the name of its file, that can include each other. */
export class Templates {
  readonly #functions: Functions;
  readonly #defined = new Map<string, Node[]>();

  constructor(functions: Functions) {
    this.#functions = {
      ...functions,
      include: (name: string, dot: unknown) => this.run(name, dot),
    };
  }

  /** @throws Error for syntax outside the supported part. */
  add(name: string, source: string): void {
    const pieces = source.split(/(\{\{-? ?\/\*.*?\*\/ ?-?\}\}|\{\{.*?\}\})/s);
    const root: Node[] = [];
    const open: Block[] = [{ nodes: root }];
    for (const [index, piece] of pieces.entries()) {
      const { nodes } = open.at(-1) ?? fail(`${name}: end without a block`);
      if (index % 2 === 0) {
        let text = piece;
        if (pieces[index - 1]?.endsWith('-}}')) text = text.trimStart();
        if (pieces[index + 1]?.startsWith('{{-')) text = text.trimEnd();
        if (text !== '') nodes.push({ kind: 'text', text });
      } else if (!/^\{\{-? ?\/\*/.test(piece)) {
        const action = piece.replace(/^\{\{(- )?/, '').replace(/( -)?\}\}$/, '');
        this.#addAction(action.trim(), nodes, open);
      }
    }
    if (open.length !== 1) throw new Error(`${name}: a block has no end`);
    this.#defined.set(name, root);
  }

  /** @param open the open blocks, the innermost last. */
  #addAction(action: string, nodes: Node[], open: Block[]): void {
    const [, keyword, rest = ''] =
      /^(define|if|else if|else|range|end)\b ?(.*)$/s.exec(action) ?? [];
    switch (keyword) {
      case 'define': {
        const body: Node[] = [];
        this.#defined.set(JSON.parse(rest), body);
        open.push({ nodes: body });
        break;
      }
      case 'else':
        open.push({ nodes: (open.pop()?.branch ?? fail('else outside if')).otherwise });
        break;
      case 'if':
      case 'else if': {
        const branch: Branch = {
          kind: 'if',
          value: parseExpression(rest, this.#functions),
          body: [],
          otherwise: [],
        };
        const parent = keyword === 'if' ? nodes : open.pop()?.branch?.otherwise;
        (parent ?? fail('else outside if')).push(branch);
        open.push({ nodes: branch.body, branch });
        break;
      }
      case 'range': {
        const [, list, pipeline = ''] = /^(?:(\$\w+(?:, \$\w+)?) := )?(.*)$/s.exec(rest) ?? [];
        const body: Node[] = [];
        const names = list?.split(', ') ?? [];
        nodes.push({
          kind: 'range',
          names,
          value: parseExpression(pipeline, this.#functions),
          body,
        });
        open.push({ nodes: body });
        break;
      }
      case 'end':
        open.pop();
        break;
      default: {
        const [, name, sign, pipeline] = /^(\$\w+) (:?=) (.*)$/s.exec(action) ?? [];
        const value = parseExpression(pipeline ?? action, this.#functions);
        if (name === undefined) nodes.push({ kind: 'print', value });
        else nodes.push({ kind: 'assign', declares: sign === ':=', name, value });
      }
    }
  }

  /** Renders a template. @throws Error if a field of nil is read, or nil or an object is printed. */
  run(name: string, dot: unknown): string {
    const nodes = this.#defined.get(name) ?? fail(`no template ${name}`);
    const scope = new Scope(dot);
    scope.declare('$', dot);
    return this.#render(nodes, scope);
  }

  #render(nodes: readonly Node[], scope: Scope): string {
    return nodes.map((node) => this.#renderNode(node, scope)).join('');
  }

  #renderNode(node: Node, scope: Scope): string {
    if (node.kind === 'text') return node.text;
    const value = node.value(scope);
    switch (node.kind) {
      case 'print':
        if (typeof value !== 'string' && typeof value !== 'number') fail(`printed ${value}`);
        return String(value);
      case 'assign':
        if (node.declares) scope.declare(node.name, value);
        else scope.assign(node.name, value);
        return '';
      case 'if':
        return this.#render(
          isTrue(value) ? node.body : node.otherwise,
          new Scope(scope.dot, scope),
        );
      case 'range':
        return entriesOf(value)
          .map(([key, item]) => {
            const inner = new Scope(item, scope);
            const values = node.names.length === 1 ? [item] : [key, item];
            for (const [index, name] of node.names.entries()) inner.declare(name, values[index]);
            return this.#render(node.body, inner);
          })
          .join('');
    }
  }
}

/** Entries in the order of Go: of objects by key, nil has none. */
function entriesOf(value: unknown): [unknown, unknown][] {
  if (value === undefined || value === null) return [];
  if (Array.isArray(value)) return [...value.entries()];
  if (typeof value !== 'object') fail(`range over ${value}`);
  return Object.entries(value as object).sort(([a], [b]) => (a < b ? -1 : 1));
}
