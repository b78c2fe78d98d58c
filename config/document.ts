/** Parses the YAML or JSON of a configuration file. */
import { isAlias, isMap, isScalar, isSeq, LineCounter, type Node, parseAllDocuments } from 'yaml';
import { printableAscii } from '../api/read-field.ts';
import { joinPath, pathSegment } from './value-types.ts';

/** A parsed configuration file. */
export interface ConfigDocument {
  /** The first document; null if the file is empty. */
  readonly value: unknown;
  /** Paths of duplicate fields; the last one is used. */
  readonly duplicates: readonly string[];
  /** Number of non-empty documents after the first. */
  readonly extraDocuments: number;
}

/** The parser is recursive, and passes on V8's message for a stack overflow. */
const STACK_OVERFLOW = 'Maximum call stack size exceeded';
/** Maximum expansions of an anchor, against a "billion laughs" attack. */
const MAX_ALIASES = 1000;

/** @throws Error with line and reason if the text cannot be parsed. */
export function parseConfigDocument(text: string): ConfigDocument {
  const lineCounter = new LineCounter();
  const options = {
    // Duplicates are warnings, found by findDuplicates, not errors.
    uniqueKeys: false,
    prettyErrors: false,
    merge: true,
    resolveKnownTags: false,
    stringKeys: true,
  };
  try {
    const parsed = parseAllDocuments(text, { ...options, lineCounter });
    const [document, ...others] = 'empty' in parsed ? [] : parsed;
    const [error] = document?.errors ?? [];
    if (error !== undefined) {
      const { line } = lineCounter.linePos(error.pos[0]);
      throw new Error(
        error.message === STACK_OVERFLOW ? error.message : `line ${line}: ${error.message}`,
      );
    }
    const duplicates: string[] = [];
    findDuplicates(document?.contents, '', duplicates);
    return {
      value: document?.toJS({ maxAliasCount: MAX_ALIASES }) ?? null,
      duplicates,
      extraDocuments: others.filter(({ contents }) => !isEmpty(contents)).length,
    };
  } catch (error) {
    if (!(error instanceof Error)) throw error;
    const reason =
      error.message === STACK_OVERFLOW ? 'is nested too deeply' : printableAscii(error.message);
    throw new Error(reason, { cause: error });
  }
}

function isEmpty(contents: Node | null): boolean {
  return contents === null || (isScalar(contents) && contents.value === null);
}

function findDuplicates(node: Node | null | undefined, path: string, found: string[]): void {
  if (isMap<Node, Node>(node)) {
    const known = new Set<unknown>();
    for (const { key, value } of node.items) {
      const name = isScalar(key) ? key.value : undefined;
      const below = joinPath(path, pathSegment(String(name)));
      if (known.has(name)) found.push(below);
      known.add(name);
      findDuplicates(value, below, found);
    }
  } else if (isSeq<Node>(node) && !isAlias(node)) {
    for (const [index, item] of node.items.entries()) {
      findDuplicates(item, `${path}[${index}]`, found);
    }
  }
}
