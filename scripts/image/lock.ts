/** The lock file: versions and digests of the Debian packages in the image. */
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Architecture } from '../dist/npm-packages.ts';

export const LOCK_FILE = 'scripts/image/lock.json';
const LOCK = fileURLToPath(new URL('./lock.json', import.meta.url));

export interface DebianPackage {
  readonly name: string;
  readonly version: string;
  /** `all` for packages that run anywhere. */
  readonly architecture: string;
  /** In hexadecimal digits, as in the archive's Packages. */
  readonly sha256: string;
}

export type Lock = Readonly<Record<Architecture, readonly DebianPackage[]>>;

export function readLock(): Lock {
  return JSON.parse(readFileSync(LOCK, 'utf8')) as Lock;
}

export function writeLock(lock: Lock): void {
  writeFileSync(LOCK, `${JSON.stringify(lock, null, 2)}\n`);
}
