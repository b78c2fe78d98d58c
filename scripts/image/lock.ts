/** The lock file: versions and digests of all packages in the image. */
import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Architecture } from './packages.ts';

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

export interface NpmPackage {
  readonly name: string;
  readonly version: string;
  /** As in package-lock.json. */
  readonly integrity: string;
}

export interface LockedPackages {
  readonly debian: readonly DebianPackage[];
  readonly npm: readonly NpmPackage[];
}

export type Lock = Readonly<Record<Architecture, LockedPackages>>;

export function readLock(): Lock {
  return JSON.parse(readFileSync(LOCK, 'utf8')) as Lock;
}

export function writeLock(lock: Lock): void {
  writeFileSync(LOCK, `${JSON.stringify(lock, null, 2)}\n`);
}

/** The digest in hexadecimal digits. */
export function sha256(data: Buffer | string): string {
  return createHash('sha256').update(data).digest('hex');
}
