/** Reads the files in .github/ and the Makefile for the tests that check them. */
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';

export const ROOT = new URL('../..', import.meta.url).pathname;

/** @param path relative to the root of the repository. */
export function readText(path: string): string {
  return readFileSync(join(ROOT, path), 'utf8');
}

export function readYaml<T>(path: string): T {
  return parse(readText(path)) as T;
}

export interface Step {
  readonly uses?: string;
  readonly run?: string;
  readonly with?: Readonly<Record<string, unknown>>;
}

export interface Job {
  readonly 'runs-on'?: string;
  readonly 'timeout-minutes'?: number;
  readonly permissions?: Readonly<Record<string, string>>;
  readonly uses?: string;
  readonly steps?: readonly Step[];
  readonly strategy?: {
    readonly matrix: { readonly include?: readonly { readonly target?: string }[] };
  };
}

export interface Workflow {
  readonly name: string;
  readonly on: Readonly<Record<string, unknown>>;
  readonly permissions: Readonly<Record<string, string>>;
  readonly concurrency: { readonly group: string };
  readonly jobs: Readonly<Record<string, Job>>;
}

export const WORKFLOWS = globSync('.github/workflows/*', { cwd: ROOT }).sort();

/** Names of the targets of the Makefile, without patterns. */
export function makeTargets(): Set<string> {
  const rules = readText('Makefile').matchAll(/^([\w-]+(?: [\w-]+)*):(?!=)/gm);
  return new Set([...rules].flatMap(([, names = '']) => names.split(' ')));
}

/** Targets of make that a job runs, also in the container of scripts/in-debian.sh. */
export function targetsOf({ steps = [], strategy }: Job): string[] {
  const words = steps
    .flatMap(({ run = '' }) => run.split('\n'))
    .flatMap((line) => /^(?:make|sudo scripts\/in-debian\.sh) (.*)$/.exec(line)?.[1] ?? [])
    .flatMap((rest) => rest.replace(/ [A-Z]+=.*/, '').split(' '));
  const matrix = (strategy?.matrix.include ?? []).flatMap(({ target }) => target ?? []);
  // The only expression is `matrix.target`, in three words.
  return [...words.filter((word) => /^[\w-]+$/.test(word)), ...matrix];
}
