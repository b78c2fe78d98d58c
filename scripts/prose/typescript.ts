/**
 * textlint plugin that extracts prose from TypeScript: comments and user-visible texts (log messages, errors,
 * help, HELP of metrics). In tests: comments and titles.
 */
import { ASTNodeTypes, type TxtDocumentNode, type TxtNode } from '@textlint/ast-node-types';
import type { TextlintPluginCreator } from '@textlint/types';
import ts from 'typescript';

/** A range of the source, in characters. */
interface Range {
  readonly start: number;
  readonly end: number;
}

interface Part extends Range {
  readonly type: 'Str' | 'Code';
}

/** A paragraph of a comment, or one text. */
type Passage = readonly Part[];

export const typescriptPlugin: TextlintPluginCreator = {
  Processor: class {
    availableExtensions() {
      return ['.ts'];
    }
    processor() {
      return {
        preProcess: (source: string, path = '') => documentOf(source, path),
        postProcess: (messages: [], path = '') => ({ messages, filePath: path }),
      };
    }
  },
};

function documentOf(source: string, path: string): TxtDocumentNode {
  const file = ts.createSourceFile(path, source, ts.ScriptTarget.Latest, true);
  const passages = [
    ...comments(file).flatMap((comment) => commentPassages(source, comment)),
    ...texts(file, /(^|\/)test\//.test(path)),
  ];
  const node = (type: string, { start, end }: Range) => ({
    type,
    range: [start, end] as const,
    raw: source.slice(start, end),
    loc: { start: place(file, start), end: place(file, end) },
  });
  const paragraph = (passage: Passage) => ({
    ...node(ASTNodeTypes.Paragraph, {
      start: Math.min(...passage.map(({ start }) => start)),
      end: Math.max(...passage.map(({ end }) => end)),
    }),
    children: passage.map((part) => ({
      ...node(part.type, part),
      value: source.slice(part.start, part.end),
    })),
  });
  return {
    ...node(ASTNodeTypes.Document, { start: 0, end: source.length }),
    children: passages.filter((passage) => passage.length > 0).map(paragraph) as TxtNode[],
  } as TxtDocumentNode;
}

function place(file: ts.SourceFile, position: number) {
  const { line, character } = file.getLineAndCharacterOfPosition(position);
  return { line: line + 1, column: character };
}

/** All comments in order of position. Consecutive // comments are joined. */
function comments(file: ts.SourceFile): Range[] {
  const found = new Map<number, Range>();
  const add = (ranges: readonly ts.CommentRange[] = []) => {
    for (const { pos, end } of ranges) found.set(pos, { start: pos, end });
  };
  const visit = (node: ts.Node): void => {
    add(ts.getLeadingCommentRanges(file.text, node.getFullStart()));
    add(ts.getTrailingCommentRanges(file.text, node.getEnd()));
    for (const child of node.getChildren(file))
      if (child.kind !== ts.SyntaxKind.JSDoc) visit(child);
  };
  visit(file);
  const joined: Range[] = [];
  for (const range of [...found.values()].sort((one, other) => one.start - other.start)) {
    const last = joined.at(-1);
    const isLine = ({ start }: Range) => file.text.startsWith('//', start);
    const isNext = last && /^\n[ \t]*$/.test(file.text.slice(last.end, range.start));
    if (last && isNext && isLine(last) && isLine(range)) {
      joined[joined.length - 1] = { start: last.start, end: range.end };
    } else joined.push(range);
  }
  return joined;
}

const DECORATION = /^[ \t]*(?:\/\*\*?|\*\/|\*(?!\/)|\/\/)?/;
/** A JSDoc tag with its parameter name or error type. */
const TAG = /^\s*@(?:(?:param|throws|template|property) +\S+|\w+)/;
const DIAGRAM = /[─│└┌►▶]|--+>|^ {3,}\S|^ ?\|/;
const LIST_ITEM = /^\s*(?:[-*]|\d+\.) /;

/** Splits a comment into paragraphs at blank lines, tags and list items. Skips diagrams and tables. */
function commentPassages(source: string, { start, end }: Range): Passage[] {
  const passages: Part[][] = [[]];
  let at = start;
  for (const line of source.slice(start, end).split('\n')) {
    const decoration = DECORATION.exec(line)?.[0].length ?? 0;
    const content = line.slice(decoration).replace(/\*\/\s*$/, '');
    const tag = (TAG.exec(content) ?? LIST_ITEM.exec(content))?.[0].length ?? 0;
    if (content.trim() === '' || tag > 0 || DIAGRAM.test(content)) passages.push([]);
    if (!DIAGRAM.test(content)) {
      passages.at(-1)?.push(...partsOf(content.slice(tag), at + decoration + tag));
    }
    at += line.length + 1;
  }
  return passages;
}

/** Splits text into prose and code, which is between backquotes or a {@link}. */
function partsOf(text: string, offset: number): Part[] {
  const parts: Part[] = [];
  let at = 0;
  for (const { 0: code, index } of text.matchAll(/`[^`]*`|\{@link [^}]*\}/g)) {
    parts.push({ type: 'Str', start: offset + at, end: offset + index });
    at = index + code.length;
    parts.push({ type: 'Code', start: offset + index, end: offset + at });
  }
  parts.push({ type: 'Str', start: offset + at, end: offset + text.length });
  return parts.filter((part) => part.end > part.start);
}

const TITLES = new Set(['describe', 'it']);

function texts(file: ts.SourceFile, isTest: boolean): Passage[] {
  const found: Passage[] = [];
  const visit = (node: ts.Node): void => {
    const isRead = !isTest || isTitle(node);
    const passage = isRead ? textPassage(node, file) : undefined;
    if (passage === undefined) node.forEachChild(visit);
    else if (isTest || isProse(passage, file.text)) found.push(passage);
  };
  visit(file);
  return found;
}

function isTitle(node: ts.Node): boolean {
  const { parent } = node;
  return (
    parent !== undefined &&
    ts.isCallExpression(parent) &&
    ts.isIdentifier(parent.expression) &&
    TITLES.has(parent.expression.text) &&
    parent.arguments[0] === node
  );
}

/** The text of a string, a template or a concatenation; undefined for other expressions. */
function textPassage(node: ts.Node, file: ts.SourceFile): Passage | undefined {
  const inside = (child: ts.Node, head: number, tail: number) =>
    partsOf(
      file.text.slice(child.getStart(file) + head, child.getEnd() - tail),
      child.getStart(file) + head,
    );
  if (ts.isStringLiteral(node) || ts.isNoSubstitutionTemplateLiteral(node)) {
    return inside(node, 1, 1);
  }
  if (ts.isTemplateExpression(node)) {
    const spans = node.templateSpans.flatMap(({ expression, literal }): Part[] => [
      { type: 'Code', start: expression.getStart(file), end: expression.getEnd() },
      ...inside(literal, 1, ts.isTemplateTail(literal) ? 1 : 2),
    ]);
    return [...inside(node.head, 1, 2), ...spans];
  }
  if (ts.isBinaryExpression(node) && node.operatorToken.kind === ts.SyntaxKind.PlusToken) {
    const left = textPassage(node.left, file);
    const right = textPassage(node.right, file);
    return left && right && [...left, ...right];
  }
  return undefined;
}

/** Whether a text is prose: at least four words on one line, without braces. Excludes commands and rules. */
function isProse(passage: Passage, source: string): boolean {
  const text = passage
    .filter(({ type }) => type === 'Str')
    .map(({ start, end }) => source.slice(start, end))
    .join(' ');
  return /[a-z]+(?:[ ,;:]+[a-z']+){3}/i.test(text) && !/[{}]|\n/.test(text);
}
