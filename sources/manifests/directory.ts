/** Reads the files of a manifest directory. */
import { closeSync, constants, fstatSync, openSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { asError } from '../../api/errors.ts';
import type { Kind } from '../../api/objects.ts';
import { printableAscii } from '../../api/read-field.ts';
import { UserError } from '../../process/errors.ts';
import type { DuplicateObject } from './file-precedence.ts';
import { type ParsedManifest, type ParsedObject, parseManifest } from './parse.ts';
import type { ManifestProblem, Problem } from './problem.ts';

/**
 * Maximum file size. A file is parsed in one piece, at about a second per MB of YAML, so larger
 * files are rejected.
 */
export const MAX_FILE_BYTES = 64 * 1024 * 1024;

/** The manifest directory is missing, is not a directory, or is not readable; see `cause`. */
export class ManifestDirectoryError extends UserError {
  override readonly name = 'ManifestDirectoryError';
  /** The message without the directory. */
  readonly reason: string;

  constructor(directory: string, cause: unknown) {
    const reason = `cannot be read: ${asError(cause).message}`;
    super(`manifest directory ${JSON.stringify(directory)} ${reason}`, { cause });
    this.reason = reason;
  }
}

interface LoadedObject extends ParsedObject {
  /** File name within the directory. */
  readonly file: string;
}

/**
 * Reads all manifests of a directory once, with the rules that the agent uses at start. Uses the
 * readable objects of a file with problems. If two files define an object, uses the first file by
 * name. Objects of kinds not in `kinds` are skipped and counted. Objects and problems are in the
 * order of file names.
 * @returns the fields of `ParsedManifest` for all files together.
 * @throws ManifestDirectoryError
 */
export function loadManifestDirectory(directory: string, kinds: readonly Kind[]) {
  const objects = new Map<string, LoadedObject>();
  const problems: ManifestProblem[] = [];
  const warnings: ManifestProblem[] = [];
  const skippedKinds = new Map<string, number>();
  for (const file of listManifests(directory)) {
    const parsed = readManifest(directory, file, kinds);
    const inFile = (problem: Problem) => ({ file: join(directory, file), ...problem });
    problems.push(...parsed.problems.map(inFile));
    warnings.push(...parsed.warnings.map(inFile));
    for (const { object, line } of parsed.objects) {
      const name = `${object.kind} ${object.key}`;
      const first = objects.get(name);
      if (first === undefined) objects.set(name, { object, line, file });
      else
        problems.push(
          duplicateProblem(directory, { file, line, object: name, usedFile: first.file }),
        );
    }
    for (const [kind, count] of parsed.skippedKinds) {
      skippedKinds.set(kind, (skippedKinds.get(kind) ?? 0) + count);
    }
  }
  return { objects: [...objects.values()], problems, warnings, skippedKinds };
}

/** Reports an object that an earlier file defines, too. */
export function duplicateProblem(
  directory: string,
  { file, line, object, usedFile }: DuplicateObject,
): ManifestProblem {
  const reason = `is not used: ${JSON.stringify(usedFile)} defines the same object and takes precedence`;
  return { file: join(directory, file), line, object, reason };
}

/**
 * Names of manifest files, sorted by code unit. Hidden files are excluded: temporary files of
 * editors, and the `..data` directory of a ConfigMap mount, whose visible names are symbolic links
 * into it.
 * @throws ManifestDirectoryError
 */
export function listManifests(directory: string): string[] {
  try {
    return readdirSync(directory)
      .filter((name) => /^[^.].*\.(yaml|yml|json)$/s.test(name))
      .sort();
  } catch (error) {
    throw new ManifestDirectoryError(directory, error);
  }
}

export interface ManifestFile extends ParsedManifest {
  /**
   * Whether the file contains only white space. A file is blank for a moment after a shell's `>` has
   * opened the file and before the command writes.
   */
  readonly blank: boolean;
}

/**
 * Reads and parses one file. Never throws: an unreadable file is a problem. A path that is not a
 * regular file counts as empty.
 */
export function readManifest(
  directory: string,
  file: string,
  kinds: readonly Kind[],
): ManifestFile {
  let descriptor: number | undefined;
  try {
    // Without O_NONBLOCK, opening a pipe would wait for its writer.
    descriptor = openSync(join(directory, file), constants.O_RDONLY | constants.O_NONBLOCK);
    const stats = fstatSync(descriptor);
    if (!stats.isFile()) return emptyFile([]);
    if (stats.size > MAX_FILE_BYTES) {
      const reason = `is too large: ${stats.size} bytes; the limit is ${MAX_FILE_BYTES}`;
      return emptyFile([{ reason }]);
    }
    const text = new TextDecoder('utf-8', { fatal: true }).decode(readFileSync(descriptor));
    return { ...parseManifest(text, file, kinds), blank: text.trim() === '' };
  } catch (error) {
    const message = asError(error).message;
    return emptyFile([{ reason: `cannot be read: ${printableAscii(message)}` }]);
  } finally {
    if (descriptor !== undefined) closeSync(descriptor);
  }
}

function emptyFile(problems: readonly Problem[]): ManifestFile {
  return { objects: [], problems, warnings: [], skippedKinds: new Map(), blank: false };
}
