/** YAML and JSON of a configuration file. */
import { isAlias, isMap, isScalar, isSeq, LineCounter, type Node, parseAllDocuments } from 'yaml';
import { printableAscii } from '../api/read-field.ts';
import { joinPath, pathSegment } from './value-types.ts';

/** A configuration file as YAML or JSON has it. */
export interface ConfigDocument {
  /** Null when there is nothing in it. */
  readonly value: unknown;
  /** Paths of fields that an object has twice; the last one counts. */
  readonly duplicates: readonly string[];
  /** Documents behind the first that are not empty. */
  readonly extraDocuments: number;
}

/** The parser recurses, and reports the end of its stack in the engine's words. */
const STACK_END = 'Maximum call stack size exceeded';
/** How often one anchor may be expanded, so that a "billion laughs" costs no time. */
const MAX_ALIASES = 1000;

/** @throws Error with line and reason when it cannot be parsed. */
export function parseConfigDocument(text: string): ConfigDocument {
  const lineCounter = new LineCounter();
  const options = {
    // Told once for each, as warnings, not as errors.
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
        error.message === STACK_END ? error.message : `line ${line}: ${error.message}`,
      );
    }
    const duplicates: string[] = [];
    findDuplicates(document?.contents, '', duplicates);
    return {
      value: document?.toJS({ maxAliasCount: MAX_ALIASES }) ?? null,
      duplicates,
      extraDocuments: others.filter(({ contents }) => !isNothing(contents)).length,
    };
  } catch (error) {
    if (!(error instanceof Error)) throw error;
    const reason =
      error.message === STACK_END ? 'is nested too deeply' : printableAscii(error.message);
    throw new Error(reason, { cause: error });
  }
}

function isNothing(contents: Node | null): boolean {
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
