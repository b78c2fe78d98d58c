/** Packages of Debian, from apt with its own state: this machine's packages and sources do not matter. */
import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { execa } from 'execa';
import { sha256 } from '../dist/archive.ts';
import type { Architecture } from '../dist/npm-packages.ts';
import { PARTIAL, SUITE, WHOLE } from './contents.ts';
import type { DebianPackage } from './lock.ts';

const KEYRING = '/usr/share/keyrings/debian-archive-keyring.gpg';
/** A mirror has the directories debian and debian-security. */
const MIRROR = process.env.PORTWIDE_DEBIAN_MIRROR ?? 'http://deb.debian.org';
const SOURCES = [
  ['debian', SUITE],
  ['debian', `${SUITE}-updates`],
  ['debian-security', `${SUITE}-security`],
];

/** Packages that the mirror has no longer, normally because of a security update. */
class MissingPackagesError extends Error {
  override readonly name = 'MissingPackagesError';

  constructor(missing: readonly DebianPackage[]) {
    const names = missing.map((each) => `${each.name} ${each.version} (${each.architecture})`);
    super(
      `the mirror ${MIRROR} no longer has: ${names.join(', ')}. Run "make image-lock" to lock the current versions, then review and commit scripts/image/lock.json`,
    );
  }
}

/** apt for an architecture. The constructor writes its configuration; `update` gets the lists. */
class Apt {
  readonly #directory: string;
  readonly #architecture: Architecture;

  constructor(cache: string, architecture: Architecture) {
    this.#directory = join(cache, 'apt', architecture);
    this.#architecture = architecture;
    for (const each of ['lists/partial', 'archives/partial']) {
      mkdirSync(join(this.#directory, each), { recursive: true });
    }
    const lines = SOURCES.map(
      ([archive, suite]) => `deb [signed-by=${KEYRING}] ${MIRROR}/${archive} ${suite} main\n`,
    );
    writeFileSync(join(this.#directory, 'sources.list'), lines.join(''));
  }

  async update(): Promise<void> {
    await this.run('apt-get', ['update']);
  }

  async run(program: string, args: readonly string[], cwd = this.#directory): Promise<string> {
    const options = [
      `Dir::Etc::SourceList=${join(this.#directory, 'sources.list')}`,
      'Dir::Etc::SourceParts=-',
      `Dir::State::Lists=${join(this.#directory, 'lists')}`,
      'Dir::State::status=/dev/null',
      `Dir::Cache=${this.#directory}`,
      'APT::Sandbox::User=root',
      `APT::Architecture=${this.#architecture}`,
      `APT::Architectures=${this.#architecture}`,
    ].map((option) => `--option=${option}`);
    const env = { LC_ALL: 'C' };
    return (await execa(program, ['-qq', ...options, ...args], { cwd, env })).stdout;
  }
}

/** The newest versions of the image's packages, sorted by name. */
export async function newestPackages(
  cache: string,
  architecture: Architecture,
): Promise<DebianPackage[]> {
  const apt = new Apt(cache, architecture);
  await apt.update();
  const plan = await apt.run('apt-get', [
    'install',
    '--simulate',
    '--no-install-recommends',
    ...WHOLE,
  ]);
  const whole = [...plan.matchAll(/^Inst (\S+)/gm)].map(([, name = '']) => name.replace(/:.*/, ''));
  const names = [...new Set([...whole, ...Object.keys(PARTIAL)])].sort();
  const records = await apt.run('apt-cache', ['show', '--no-all-versions', ...names]);
  return records
    .trim()
    .split(/\n\n+/)
    .map((record) => {
      const field = (name: string) => new RegExp(`^${name}: (.*)$`, 'm').exec(record)?.[1] ?? '';
      return {
        name: field('Package'),
        version: field('Version'),
        architecture: field('Architecture'),
        sha256: field('SHA256'),
      };
    });
}

/**
 * Downloads packages that are not in the cache.
 *
 * @returns the files, in the order of the packages
 * @throws MissingPackagesError; Error if a package has another digest
 */
export async function downloadPackages(
  cache: string,
  architecture: Architecture,
  packages: readonly DebianPackage[],
): Promise<string[]> {
  const directory = join(cache, 'deb');
  mkdirSync(directory, { recursive: true });
  const fileOf = (each: DebianPackage) => join(directory, `${each.sha256}.deb`);
  const wanted = packages.filter((each) => !isFile(fileOf(each), each.sha256));
  if (wanted.length > 0) {
    const apt = new Apt(cache, architecture);
    await apt.update();
    // apt-get download would stop at the first missing package.
    const known = await apt.run('apt-cache', ['madison', ...wanted.map(({ name }) => name)]);
    const versions = new Set(
      known.split('\n').map((line) =>
        line
          .split('|')
          .slice(0, 2)
          .map((cell) => cell.trim())
          .join(' '),
      ),
    );
    const missing = wanted.filter(({ name, version }) => !versions.has(`${name} ${version}`));
    if (missing.length > 0) throw new MissingPackagesError(missing);
    // One call for all: each reads the lists, which takes seconds.
    const versioned = wanted.map(({ name, version }) => `${name}=${version}`);
    await apt.run('apt-get', ['download', ...versioned], directory);
    for (const each of wanted) {
      const version = each.version.replace(':', '%3a');
      const file = join(directory, `${each.name}_${version}_${each.architecture}.deb`);
      if (!isFile(file, each.sha256)) throw new Error(`${file} does not have the locked digest`);
      renameSync(file, fileOf(each));
    }
  }
  return packages.map(fileOf);
}

/**
 * The packages that stay when some packages of `WHOLE`, and what only they depend on, are left out. Downloads packages.
 *
 * @throws as `downloadPackages`
 */
export async function packagesWithout(
  omitted: readonly string[],
  cache: string,
  architecture: Architecture,
  packages: readonly DebianPackage[],
): Promise<DebianPackage[]> {
  const files = await downloadPackages(cache, architecture, packages);
  const dependencies = new Map<string, readonly string[]>();
  for (const [index, { name }] of packages.entries()) {
    const fields = ['Pre-Depends', 'Depends'];
    const { stdout } = await execa('dpkg-deb', ['--field', files[index] ?? '', ...fields]);
    dependencies.set(name, dependenciesOf(stdout));
  }
  const needed = new Set(Object.keys(PARTIAL));
  const add = (name: string) => {
    if (needed.has(name)) return;
    needed.add(name);
    for (const each of dependencies.get(name) ?? []) add(each);
  };
  for (const name of WHOLE) if (!omitted.includes(name)) add(name);
  return packages.filter(({ name }) => needed.has(name));
}

/** The names in fields such as `Depends: libc6 (>= 2.36), debconf (>= 0.5) | debconf-2.0`. */
export function dependenciesOf(fields: string): string[] {
  return fields
    .split('\n')
    .flatMap((line) => line.replace(/^[\w-]+:/, '').split(/[,|]/))
    .flatMap((each) => /[a-z0-9][a-z0-9+.-]+/.exec(each)?.[0] ?? []);
}

function isFile(file: string, digest: string): boolean {
  try {
    return sha256(readFileSync(file)) === digest;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return false;
    throw error;
  }
}
