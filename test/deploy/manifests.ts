/** Reads the objects under deploy/. */
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseAllDocuments } from 'yaml';

export const ROOT = new URL('../../', import.meta.url).pathname;

/** A Kubernetes object as written in a manifest. */
export interface RawObject {
  readonly apiVersion: string;
  readonly kind: string;
  readonly metadata: { readonly name: string; readonly namespace?: string };
  readonly [field: string]: unknown;
}

/** Content of a file of the repository. */
export function readText(path: string): string {
  return readFileSync(join(ROOT, path), 'utf8');
}

/** Paths of all YAML files under deploy/, except templates of the Helm chart and links to the other files. */
export function yamlFiles(): string[] {
  return globSync('deploy/**/*.{yaml,yml}', { cwd: ROOT, exclude: ['deploy/chart'] }).sort();
}

/** @throws Error for invalid YAML. */
export function readObjects(path: string): RawObject[] {
  return parseAllDocuments(readText(path)).map((document) => {
    if (document.errors.length > 0) throw new Error(`${path}: ${document.errors.join('; ')}`);
    return document.toJS() as RawObject;
  });
}

/** The only object of this kind in a file. @param name undefined: of any name. */
export function readObject<T>(path: string, kind: string, name?: string): RawObject & T {
  const [object, ...rest] = readObjects(path).filter(
    (each) => each.kind === kind && (name === undefined || each.metadata.name === name),
  );
  if (object === undefined || rest.length > 0)
    throw new Error(`${path}: expected exactly one ${kind}`);
  return object as RawObject & T;
}
