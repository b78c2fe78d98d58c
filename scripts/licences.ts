/**
 * `node scripts/licences.ts [DIRECTORY]` checks the licences of the production packages of the
 * checkout in DIRECTORY, which the image contains. It prints packages with other licences than
 * {@link ALLOWED} and exits with 1. `make audit` runs it.
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

/** SPDX names of licences that ask for no more than a copy of the licence, or of the notice. */
const ALLOWED = new Set([
  ...['0BSD', 'Apache-2.0', 'BSD-2-Clause', 'BSD-3-Clause', 'BlueOak-1.0.0', 'ISC', 'MIT'],
  ...['PSF-2.0', 'Unlicense'],
]);

interface Manifest {
  readonly license?: unknown;
}

interface Locked extends Manifest {
  readonly dev?: boolean;
}

interface Lock {
  readonly packages: Readonly<Record<string, Locked>>;
}

function readJson<T>(path: string): T {
  return JSON.parse(readFileSync(path, 'utf8')) as T;
}

/** @param expression SPDX expression without nested brackets, such as `(MIT OR GPL-3.0-only)`. */
function isAllowed(expression: string): boolean {
  const text = expression.replace(/^\((.*)\)$/, '$1');
  return text
    .split(' OR ')
    .some((part) => part.split(' AND ').every((licence) => ALLOWED.has(licence)));
}

/** Packages of the lock file that are not only for development, with a licence not allowed. */
function refusedPackages(directory: string): { count: number; refused: string[] } {
  const { packages } = readJson<Lock>(join(directory, 'package-lock.json'));
  const production = Object.entries(packages).filter(([path, { dev }]) => path !== '' && !dev);
  const refused = production.flatMap(([path, locked]) => {
    const manifest = join(directory, path, 'package.json');
    // npm installs binaries of this platform only; the lock file has the licences of the others.
    const { license } = existsSync(manifest) ? readJson<Manifest>(manifest) : locked;
    const text = typeof license === 'string' ? license : 'no licence in package.json';
    return isAllowed(text) ? [] : [`${path}: ${text}`];
  });
  return { count: production.length, refused };
}

const [directory = '.'] = process.argv.slice(2);
const { count, refused } = refusedPackages(directory);
if (refused.length > 0) {
  console.error(refused.join('\n'));
  console.error(`allowed are: ${[...ALLOWED].join(', ')}`);
  process.exitCode = 1;
} else console.log(`${count} production packages have allowed licences`);
