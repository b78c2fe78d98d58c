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
  readonly toldFirst: string | undefined;
}

/**
 * Which file has a say about which object. Several may claim one; the first in the order of file
 * names (by code unit) has it, and the next takes over when that one lets go.
 */
export class FilePrecedence {
  readonly #claims = new Map<string, Map<string, FileDefinition>>();
  readonly #claimedBy = new Map<string, readonly string[]>();
  readonly #inForce = new Map<string, ApiObject>();
  readonly #touched = new Set<string>();

  /** Replaces what a file claims; with no objects it lets go of all. */
  setFile(file: string, objects: readonly ParsedObject[]): void {
    const before = new Map<string, FileDefinition>();
    for (const name of this.#claimedBy.get(file) ?? []) {
      const claim = this.#claims.get(name)?.get(file);
      if (claim !== undefined) before.set(name, claim);
      this.#claims.get(name)?.delete(file);
      this.#touched.add(name);
    }
    const names: string[] = [];
    for (const { object, line } of objects) {
      const name = `${object.kind} ${object.key}`;
      const claims = getOrCreate(this.#claims, name, () => new Map<string, FileDefinition>());
      claims.set(file, { object, line, toldFirst: before.get(name)?.toldFirst });
      this.#touched.add(name);
      names.push(name);
    }
    if (names.length === 0) this.#claimedBy.delete(file);
    else this.#claimedBy.set(file, names);
  }

  /**
   * Puts the claims in force.
   * @returns what that changed, each in the order in which it was claimed, and duplicates not yet told.
   */
  apply() {
    const removed: ApiObject[] = [];
    const changed: ApiObject[] = [];
    const duplicates: DuplicateObject[] = [];
    for (const name of this.#touched) {
      const claims = this.#claims.get(name) ?? new Map<string, FileDefinition>();
      const [first, ...others] = [...claims.keys()].sort();
      const object = first === undefined ? undefined : claims.get(first)?.object;
      const old = this.#inForce.get(name);
      if (first === undefined || object === undefined) {
        this.#claims.delete(name);
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
        if (claim === undefined || claim.toldFirst === first) continue;
        claims.set(file, { ...claim, toldFirst: first });
        duplicates.push({ file, line: claim.line, object: name, usedFile: first });
      }
    }
    this.#touched.clear();
    return { removed, changed, duplicates };
  }
}
