/** Which file of a directory has a say about which object. */
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
  /** The file whose object is. */
  readonly usedFile: string;
}

interface FileDefinition extends ParsedObject {
  /** The file that this claim was reported to lose against. */
  readonly reportedFile: string | undefined;
}

/**
 * Which file has a say about which object. Several may claim one; the first in the order of file
 * names (by code unit) has it, and the next takes over when that one lets go.
 */
export class FilePrecedence {
  readonly #definitions = new Map<string, Map<string, FileDefinition>>();
  readonly #definedBy = new Map<string, readonly string[]>();
  readonly #inForce = new Map<string, ApiObject>();
  readonly #changedNames = new Set<string>();

  /** Replaces what a file claims; with no objects it lets go of all. */
  setFile(file: string, objects: readonly ParsedObject[]): void {
    const before = new Map<string, FileDefinition>();
    for (const name of this.#definedBy.get(file) ?? []) {
      const claim = this.#definitions.get(name)?.get(file);
      if (claim !== undefined) before.set(name, claim);
      this.#definitions.get(name)?.delete(file);
      this.#changedNames.add(name);
    }
    const names: string[] = [];
    for (const { object, line } of objects) {
      const name = `${object.kind} ${object.key}`;
      const claims = getOrCreate(this.#definitions, name, () => new Map<string, FileDefinition>());
      claims.set(file, { object, line, reportedFile: before.get(name)?.reportedFile });
      this.#changedNames.add(name);
      names.push(name);
    }
    if (names.length === 0) this.#definedBy.delete(file);
    else this.#definedBy.set(file, names);
  }

  /**
   * Puts the claims in force.
   * @returns what that changed, each in the order in which it was claimed, and duplicates not yet told.
   */
  apply() {
    const removed: ApiObject[] = [];
    const changed: ApiObject[] = [];
    const duplicates: DuplicateObject[] = [];
    for (const name of this.#changedNames) {
      const claims = this.#definitions.get(name) ?? new Map<string, FileDefinition>();
      const [first, ...others] = [...claims.keys()].sort();
      const object = first === undefined ? undefined : claims.get(first)?.object;
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
        const claim = claims.get(file);
        if (claim === undefined || claim.reportedFile === first) continue;
        claims.set(file, { ...claim, reportedFile: first });
        duplicates.push({ file, line: claim.line, object: name, usedFile: first });
      }
    }
    this.#changedNames.clear();
    return { removed, changed, duplicates };
  }
}
