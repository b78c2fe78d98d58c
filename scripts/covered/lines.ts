/**
 * Lines of code and executed lines of a TypeScript file. Node.js replaces types by spaces, so
 * positions in V8's reports are positions in the source, without a source map.
 */
import { stripTypeScriptTypes } from 'node:module';
import ts from 'typescript';

/** Coverage of one script, as V8 reports it: the format of the inspector's `Profiler` domain. */
export interface ScriptCoverage {
  readonly url: string;
  readonly functions: readonly {
    readonly ranges: readonly {
      readonly startOffset: number;
      readonly endOffset: number;
      readonly count: number;
    }[];
  }[];
}

/** A token that is code: its line, from 1, and its position. */
interface Token {
  readonly line: number;
  readonly position: number;
}

const PUNCTUATION: ReadonlySet<ts.SyntaxKind> = new Set([
  ts.SyntaxKind.OpenBraceToken,
  ts.SyntaxKind.CloseBraceToken,
  ts.SyntaxKind.CloseParenToken,
  ts.SyntaxKind.CloseBracketToken,
  ts.SyntaxKind.SemicolonToken,
  ts.SyntaxKind.CommaToken,
  ts.SyntaxKind.EndOfFileToken,
]);

const cache = new Map<string, readonly Token[]>();

/**
 * Tokens that run, without types, comments, imports and punctuation. V8 counts both brackets of a
 * block as part of the block. The first one is on the line of a condition, which ran.
 */
function tokensOf(source: string): readonly Token[] {
  const known = cache.get(source);
  if (known !== undefined) return known;
  const file = ts.createSourceFile(
    'a.js',
    stripTypeScriptTypes(source),
    ts.ScriptTarget.Latest,
    false,
  );
  const tokens: Token[] = [];
  const visit = (node: ts.Node): void => {
    if (ts.isImportDeclaration(node) || ts.isExportDeclaration(node) || ts.isJSDoc(node)) return;
    const position = node.getStart(file);
    const children = node.getChildren(file);
    if (children.length > 0) for (const child of children) visit(child);
    else if (node.getEnd() > position && !PUNCTUATION.has(node.kind)) {
      tokens.push({ line: file.getLineAndCharacterOfPosition(position).line + 1, position });
    }
  };
  visit(file);
  cache.set(source, tokens);
  return tokens;
}

/** Numbers of the lines that have code, from 1. */
export function codeLines(source: string): Set<number> {
  return new Set(tokensOf(source).map(({ line }) => line));
}

/** Numbers of the lines whose code this process executed completely. */
export function executedLines(source: string, { functions }: ScriptCoverage): Set<number> {
  // Inner ranges begin later, or end earlier: the last range that contains a position is innermost.
  const ranges = functions
    .flatMap((each) => each.ranges)
    .sort((a, b) => a.startOffset - b.startOffset || b.endOffset - a.endOffset);
  const lines = codeLines(source);
  const open: (typeof ranges)[number][] = [];
  let next = 0;
  for (const { line, position } of tokensOf(source)) {
    for (; (ranges[next]?.startOffset ?? Infinity) <= position; next++) {
      const range = ranges[next];
      if (range !== undefined) open.push(range);
    }
    while ((open.at(-1)?.endOffset ?? Infinity) <= position) open.pop();
    if (open.at(-1)?.count === 0) lines.delete(line);
  }
  return lines;
}
