/** Parses manifests into objects with line numbers. */
import {
  type Document,
  isAlias,
  isMap,
  isScalar,
  isSeq,
  LineCounter,
  parseAllDocuments,
  visit,
} from 'yaml';
import { asError, InvalidObject } from '../../api/errors.ts';
import type { ApiObject, Kind } from '../../api/objects.ts';
import { unusedSliceReason } from '../../api/read-endpointslice.ts';
import { describeValue, isRecord, printableAscii } from '../../api/read-field.ts';
import { API_VERSIONS, readObject } from '../../api/read-object.ts';
import { jsonPositions } from './json-positions.ts';
import type { Problem } from './problem.ts';

export interface ParsedObject {
  readonly object: ApiObject;
  /** The line on which the object starts, counted from 1. */
  readonly line: number;
}

export interface ParsedManifest {
  /** In the order of the text, without duplicates. */
  readonly objects: readonly ParsedObject[];
  readonly problems: readonly Problem[];
  /** Valid objects that have no effect. */
  readonly warnings: readonly Problem[];
  /** Number of skipped objects by kind, for kinds that were not requested. */
  readonly skippedKinds: ReadonlyMap<string, number>;
}

/** One parsed document of a file. */
interface RawDocument {
  readonly value: unknown;
  readonly line: number;
  /** Lines on which the elements of `items` start; undefined for an unknown line. */
  readonly itemLines: readonly (number | undefined)[];
}

/**
 * Limit on expansions of one YAML anchor. Aliases of an anchor share one value in memory, so a
 * "billion laughs" document takes little memory. The limit bounds the CPU time for such a document.
 */
const MAX_ALIASES = 1000;

/** A value with a kind that `readObject` has not checked yet. */
interface Candidate {
  readonly kind: string;
  readonly value: unknown;
  readonly line: number;
}

/** Supported list kinds: their apiVersions, and the kind of elements without a kind. */
const LISTS = new Map<string, { apiVersions: readonly string[]; kind: Kind | undefined }>([
  ['List', { apiVersions: ['v1'], kind: undefined }],
  ...(Object.keys(API_VERSIONS) as Kind[]).map(
    (kind) => [`${kind}List`, { apiVersions: API_VERSIONS[kind], kind }] as const,
  ),
]);

/**
 * Parses a manifest: one JSON value if the file name ends in `.json`, otherwise any number of YAML
 * documents. Kubernetes lists are expanded; objects of kinds not in `kinds` are skipped. Never
 * throws: an object that cannot be read becomes a problem and does not affect the other objects.
 */
export function parseManifest(
  text: string,
  fileName: string,
  kinds: readonly Kind[],
): ParsedManifest {
  const problems: Problem[] = [];
  const warnings: Problem[] = [];
  const documents = fileName.endsWith('.json')
    ? jsonDocuments(text, problems)
    : yamlDocuments(text, problems);
  const objects = new Map<string, ParsedObject>();
  const skippedKinds = new Map<string, number>();
  for (const { kind, value, line } of documents.flatMap((document) =>
    unpack(document, kinds, problems),
  )) {
    if (!kinds.some((each) => each === kind)) {
      skippedKinds.set(kind, (skippedKinds.get(kind) ?? 0) + 1);
      continue;
    }
    try {
      const object = readObject(value, kinds);
      if (object === undefined) {
        warnings.push({ line, ...unusedSliceReason(value) });
        continue;
      }
      const name = `${object.kind} ${object.key}`;
      const first = objects.get(name);
      if (first === undefined) objects.set(name, { object, line });
      else
        problems.push({ line, object: name, reason: `is already defined on line ${first.line}` });
    } catch (error) {
      if (!(error instanceof InvalidObject)) throw error;
      problems.push({ line, object: error.object, field: error.field, reason: error.reason });
    }
  }
  problems.sort((a, b) => (a.line ?? 0) - (b.line ?? 0));
  return { objects: [...objects.values()], problems, warnings, skippedKinds };
}

function unpack(document: RawDocument, kinds: readonly Kind[], problems: Problem[]): Candidate[] {
  const { value, line, itemLines } = document;
  if (!isRecord(value)) {
    problems.push({ line, reason: `must be a Kubernetes object, not ${describeValue(value)}` });
    return [];
  }
  const { apiVersion, kind, items } = value;
  if (typeof kind !== 'string' || typeof apiVersion !== 'string') {
    const field = typeof kind === 'string' ? 'apiVersion' : 'kind';
    const given = value[field];
    const reason =
      given === undefined ? 'is required' : `must be a string, not ${describeValue(given)}`;
    problems.push({ line, field, reason });
    return [];
  }
  const list = LISTS.get(kind);
  const isRequested = list?.kind === undefined || kinds.includes(list.kind);
  if (list === undefined || !isRequested) return [{ kind, value, line }];
  // Another API group may have a list of the same kind.
  if (!list.apiVersions.includes(apiVersion)) {
    problems.push({
      line,
      object: kind,
      field: 'apiVersion',
      reason: `must be ${list.apiVersions.join(' or ')}`,
    });
    return [];
  }
  if (items !== undefined && items !== null && !Array.isArray(items)) {
    problems.push({ line, object: kind, field: 'items', reason: 'must be a list' });
    return [];
  }
  return (items ?? []).flatMap((item: unknown, index) => {
    const itemLine = itemLines[index] ?? line;
    const implied = list.kind === undefined ? {} : { apiVersion, kind: list.kind };
    const whole = isRecord(item) ? { ...implied, ...item } : item;
    if (isRecord(whole) && typeof whole.kind === 'string' && !LISTS.has(whole.kind)) {
      return [{ kind: whole.kind, value: whole, line: itemLine }];
    }
    const field = `items[${index}]`;
    problems.push({ line: itemLine, object: kind, field, reason: 'must be a Kubernetes object' });
    return [];
  });
}

function jsonDocuments(text: string, problems: Problem[]): RawDocument[] {
  if (text.trim() === '') return [];
  try {
    const value: unknown = JSON.parse(text);
    const { line, itemLines, duplicate } = jsonPositions(text);
    if (duplicate === undefined) return [{ value, line, itemLines }];
    problems.push({
      line: duplicate.line,
      reason: `has the key ${describeValue(duplicate.key)} twice`,
    });
  } catch (error) {
    const message = asError(error).message;
    const [, line] = /\(line (\d+) column \d+\)$/.exec(message) ?? [];
    // An error without a position means that the text ended too early.
    const lines = text.split('\n').length;
    problems.push({ line: Number(line ?? lines), reason: printableAscii(message) });
  }
  return [];
}

function yamlDocuments(text: string, problems: Problem[]): RawDocument[] {
  const lineCounter = new LineCounter();
  const lineAt = (offset: number | undefined) => lineCounter.linePos(offset ?? 0).line || 1;
  const documents: RawDocument[] = [];
  // Kubernetes manifests use merge keys. Tags that create Maps or Dates are not needed.
  const options = { prettyErrors: false, merge: true, resolveKnownTags: false, stringKeys: true };
  let line = 1;
  try {
    const parsed = parseAllDocuments(text, { ...options, lineCounter });
    for (const document of 'empty' in parsed ? [] : parsed) {
      const { contents } = document;
      line = lineAt(contents?.range?.[0] ?? document.range?.[0]);
      const [error] = document.errors;
      if (error !== undefined) {
        const reason = `invalid YAML: ${yamlReason(error)}`;
        problems.push({ line: lineAt(error.pos[0]), reason });
        continue;
      }
      let value: unknown;
      try {
        value = document.toJS({ maxAliasCount: MAX_ALIASES });
      } catch (error) {
        if (!(error instanceof Error)) throw error;
        const at = lineOf(unresolvedNode(document), lineAt) ?? line;
        problems.push({ line: at, reason: `invalid YAML: ${yamlReason(error)}` });
        continue;
      }
      if (value === null || value === undefined) continue; // only comments
      const items = isMap(contents) ? contents.get('items', true) : undefined;
      const itemLines = isSeq(items) ? items.items.map((item) => lineOf(item, lineAt)) : [];
      documents.push({ value, line, itemLines });
    }
  } catch (error) {
    if (!(error instanceof Error)) throw error;
    problems.push({ line, reason: `invalid YAML: ${yamlReason(error)}` });
  }
  return documents;
}

/** The first alias without an anchor, or value of a merge key that is no map: errors of `toJS` have no position. */
function unresolvedNode(document: Document): unknown {
  // `alias.resolve` would search the document for each alias.
  const anchors = new Map<string, unknown>();
  const isMergeable = (node: unknown) => isMap(isAlias(node) ? anchors.get(node.source) : node);
  let found: unknown;
  visit(document, {
    Alias: (_, alias) => {
      if (anchors.has(alias.source)) return undefined;
      found = alias;
      return visit.BREAK;
    },
    Value: (_, node) => {
      if (node.anchor !== undefined) anchors.set(node.anchor, node);
    },
    Pair: (_, { key, value }) => {
      if (!isScalar(key) || key.value !== '<<') return undefined;
      const sources: readonly unknown[] = isSeq(value) ? value.items : [value];
      found = sources.find((source) => !isMergeable(source));
      return found === undefined ? undefined : visit.BREAK;
    },
  });
  return found;
}

/** The parser recurses; replace the engine's stack overflow message. */
function yamlReason(error: Error): string {
  const isStackOverflow = error.message === 'Maximum call stack size exceeded';
  return isStackOverflow ? 'nested too deeply' : printableAscii(error.message);
}

function lineOf(node: unknown, lineAt: (offset: number) => number): number | undefined {
  if (typeof node !== 'object' || node === null || !('range' in node)) return undefined;
  const start: unknown = Array.isArray(node.range) ? node.range[0] : undefined;
  return typeof start === 'number' ? lineAt(start) : undefined;
}
