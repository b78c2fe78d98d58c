/** Decides which file of a directory defines an object. */
import { isDeepStrictEqual } from 'node:util';
import { getOrCreate } from '../../api/collections.ts';
import type { ApiObject } from '../../api/objects.ts';
import type { ParsedObject } from './parse.ts';

export interface DuplicateObject {
  /** The file whose object is not used. */
  readonly file: string;
  readonly line: number;
  /** `Service default/web`. */
  readonly object: string;
  /** The file whose object is used. */
  readonly usedFile: string;
}

interface FileDefinition extends ParsedObject {
  /** The file that was last reported to take precedence over this definition. */
  readonly reportedFile: string | undefined;
}

/**
 * Decides which file defines an object. If several files define the object, the first by name (by
 * code unit) takes precedence. When that file no longer defines the object, the next file takes
 * precedence.
 */
export class FilePrecedence {
  readonly #definitions = new Map<string, Map<string, FileDefinition>>();
  readonly #definedBy = new Map<string, readonly string[]>();
  readonly #inForce = new Map<string, ApiObject>();
  readonly #changedNames = new Set<string>();

  /** Replaces the definitions of a file. An empty list removes them. */
  setFile(file: string, objects: readonly ParsedObject[]): void {
    const before = new Map<string, FileDefinition>();
    for (const name of this.#definedBy.get(file) ?? []) {
      const definition = this.#definitions.get(name)?.get(file);
      if (definition !== undefined) before.set(name, definition);
      this.#definitions.get(name)?.delete(file);
      this.#changedNames.add(name);
    }
    const names: string[] = [];
    for (const { object, line } of objects) {
      const name = `${object.kind} ${object.key}`;
      const definitions = getOrCreate(
        this.#definitions,
        name,
        () => new Map<string, FileDefinition>(),
      );
      definitions.set(file, { object, line, reportedFile: before.get(name)?.reportedFile });
      this.#changedNames.add(name);
      names.push(name);
    }
    if (names.length === 0) this.#definedBy.delete(file);
    else this.#definedBy.set(file, names);
  }

  /**
   * Applies the changed definitions.
   * @returns removed and changed objects, each in the order in which they were defined, and
   * duplicates not yet reported.
   */
  apply() {
    const removed: ApiObject[] = [];
    const changed: ApiObject[] = [];
    const duplicates: DuplicateObject[] = [];
    for (const name of this.#changedNames) {
      const definitions = this.#definitions.get(name) ?? new Map<string, FileDefinition>();
      const [first, ...others] = [...definitions.keys()].sort();
      const object = first === undefined ? undefined : definitions.get(first)?.object;
      const old = this.#inForce.get(name);
      if (first === undefined || object === undefined) {
        this.#definitions.delete(name);
        this.#inForce.delete(name);
        if (old !== undefined) removed.push(old);
        continue;
      }
      if (!isDeepStrictEqual(old, object)) {
        this.#inForce.set(name, object);
        changed.push(object);
      }
      for (const file of others) {
        const definition = definitions.get(file);
        if (definition === undefined || definition.reportedFile === first) continue;
        definitions.set(file, { ...definition, reportedFile: first });
        duplicates.push({ file, line: definition.line, object: name, usedFile: first });
      }
    }
    this.#changedNames.clear();
    return { removed, changed, duplicates };
  }
}
