/** Packages of npm with binaries. */
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { gunzipSync } from 'node:zlib';
import { execa } from 'execa';
import type { NpmPackage } from './lock.ts';
import { type Entry, readTar } from './tar.ts';

/**
 * The integrity of a version, from the registry.
 */
export async function lockNpmPackage(name: string, version: string): Promise<NpmPackage> {
  const { stdout } = await execa('npm', ['view', `${name}@${version}`, 'dist.integrity']);
  return { name, version, integrity: stdout.trim() };
}

/**
 * The files of a package, downloaded if it is not in the cache. Paths have no `package/`.
 *
 * @throws Error if the package has another digest than the lock file
 */
export async function npmFiles(
  cache: string,
  { name, version, integrity }: NpmPackage,
): Promise<Entry[]> {
  const directory = join(cache, 'npm');
  mkdirSync(directory, { recursive: true });
  const fileName = `${name.replace('@', '').replace('/', '-')}-${version}.tgz`;
  const file = join(directory, fileName);
  if (!existsSync(file)) {
    // Renamed once complete: an interrupted download leaves no package.
    const draft = join(directory, `draft-${process.pid}`);
    mkdirSync(draft, { recursive: true });
    await execa('npm', ['pack', '--silent', '--pack-destination', draft, `${name}@${version}`]);
    renameSync(join(draft, fileName), file);
  }
  const archive = readFileSync(file);
  const digest = `sha512-${createHash('sha512').update(archive).digest('base64')}`;
  if (digest !== integrity)
    throw new Error(`${file} has integrity ${digest}, not ${integrity} as locked`);
  return readTar(gunzipSync(archive)).map((entry) => ({
    ...entry,
    path: entry.path.replace(/^[^/]+\//, ''),
  }));
}
