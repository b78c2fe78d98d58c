/** The artefacts of a release for this machine's architecture, made once per run. */
import { createHash } from 'node:crypto';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { VERSION } from '../../process/version.ts';
import { writeDist } from '../../scripts/dist/dist.ts';
import { ARCHITECTURES, type Architecture } from '../../scripts/dist/npm-packages.ts';

const names = Object.keys(ARCHITECTURES) as Architecture[];
export const ARCH = names.find((name) => ARCHITECTURES[name] === process.arch) ?? 'amd64';
export const NAME = `portwide-${VERSION}-linux-${ARCH}`;

/** Deadline of suites, in milliseconds. They make artefacts, which takes minutes on two busy cores. */
export const DEADLINE = 900_000;

/** Temporary directory, removed when the tests end. */
export const WORK = mkdtempSync(join(tmpdir(), 'portwide-test-dist-'));
process.once('exit', () => rmSync(WORK, { recursive: true, force: true }));

/**
 * Makes the artefacts.
 *
 * @param name directory in WORK
 * @param temporary directory for work files, in WORK
 */
export async function makeArtefacts(name: string, temporary: string): Promise<string> {
  const directory = join(WORK, name);
  const before = process.env.TMPDIR;
  process.env.TMPDIR = join(WORK, temporary);
  mkdirSync(process.env.TMPDIR, { recursive: true });
  try {
    await writeDist(directory, [ARCH]);
  } finally {
    if (before === undefined) delete process.env.TMPDIR;
    else process.env.TMPDIR = before;
  }
  return directory;
}

let made: Promise<string> | undefined;
/** The directory with the artefacts. */
export function artefacts(): Promise<string> {
  made ??= makeArtefacts('first', 'temporary');
  return made;
}

/** SHA-256 digests by file name. */
export function digests(directory: string): Record<string, string> {
  const digest = (name: string) =>
    createHash('sha256')
      .update(readFileSync(join(directory, name)))
      .digest('hex');
  return Object.fromEntries(
    readdirSync(directory)
      .sort()
      .map((name) => [name, digest(name)]),
  );
}
