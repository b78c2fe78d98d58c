/** The layers of the image: Debian, Node.js, the agent. An update of the agent changes only the last. */
import { lstatSync, readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { execa } from 'execa';
import type { Architecture } from '../dist/npm-packages.ts';
import { EXCLUDED, LINKS, PARTIAL } from './contents.ts';
import { downloadPackages } from './debian.ts';
import { missingLibraries } from './elf.ts';
import { type DebianPackage, LOCK_FILE } from './lock.ts';
import { type Entry, readTar } from './tar.ts';

const HOME = 'opt/portwide';

export interface Layer {
  readonly name: string;
  readonly entries: readonly Entry[];
}

/**
 * Without Node's compile cache, which Containerfile fills: a start uses 0.32 s of CPU instead of
 * 0.23 s. V8 writes other bytes in each run unless --hash-seed fixes the seed, and then reads them
 * only with that seed. A known seed would let peers choose keys that collide. The cache of arm64
 * needs arm64.
 *
 * @param tree installation that `writeTree` has written
 * @param epoch Time of files that no package has, in seconds.
 * @throws Error if a program in the image needs a library that the image does not have
 */
export async function makeLayers(
  cache: string,
  architecture: Architecture,
  locked: readonly DebianPackage[],
  tree: string,
  epoch: number,
): Promise<Layer[]> {
  const debian = await debianEntries(cache, architecture, locked);
  const installed = treeEntries(tree, epoch);
  const isNode = ({ path }: Entry) => path.startsWith(`${HOME}/node_modules/node/`);
  const layers = [
    { name: 'Debian packages', entries: withParents(debian) },
    { name: 'Node.js', entries: withParents(installed.filter(isNode)) },
    {
      name: 'Portwide',
      entries: withParents([
        ...installed.filter((entry) => !isNode(entry)),
        ...systemEntries(epoch),
      ]),
    },
  ];
  const missing = missingLibraries(layers.flatMap(({ entries }) => entries));
  if (missing.length > 0)
    throw new Error(`packages are missing in ${LOCK_FILE}: ${missing.join(', ')}`);
  return layers;
}

async function debianEntries(
  cache: string,
  architecture: Architecture,
  debian: readonly DebianPackage[],
): Promise<Entry[]> {
  const files = await downloadPackages(cache, architecture, debian);
  const unpacked = await Promise.all(
    debian.map(async ({ name }, index) => {
      const file = files[index] ?? '';
      const [archive, control] = await Promise.all([
        execa('dpkg-deb', ['--fsys-tarfile', file], { encoding: 'buffer' }),
        execa('dpkg-deb', ['--field', file]),
      ]);
      const entries = readTar(Buffer.from(archive.stdout)).map(merged);
      const kept = entries.filter(({ path, data, target }) => {
        const isDirectory = data === undefined && target === undefined;
        return !isDirectory && isKept(name, path);
      });
      const mtime = newest(kept);
      // Scanners find the packages of an image without dpkg here.
      const status = Buffer.from(`${control.stdout}\n`);
      return [...kept, { path: `var/lib/dpkg/status.d/${name}`, mode: 0o644, mtime, data: status }];
    }),
  );
  const entries = unpacked.flat();
  const mtime = newest(entries);
  const paths = new Set(entries.map(({ path }) => path));
  const alternatives = Object.entries(LINKS).filter(([path, target]) =>
    paths.has(join(dirname(path), target)),
  );
  const links = {
    ...Object.fromEntries(alternatives),
    bin: 'usr/bin',
    sbin: 'usr/sbin',
    lib: 'usr/lib',
    lib64: 'usr/lib64',
  };
  const made = Object.entries(links).map(([path, target]) => ({
    path,
    mode: 0o777,
    mtime,
    target,
  }));
  return [...entries.filter(({ path }) => !(path in links)), ...made];
}

/** Debian's packages still have files in /bin, /sbin and /lib, which are links to /usr. */
function merged(entry: Entry): Entry {
  return { ...entry, path: entry.path.replace(/^(bin|sbin|lib|lib64)\//, 'usr/$1/') };
}

function isKept(name: string, path: string): boolean {
  if (EXCLUDED.some((pattern) => pattern.test(path))) return false;
  const partial = PARTIAL[name];
  if (partial === undefined || path.startsWith('usr/share/doc/')) return true;
  return partial.some((each) => path === each || path.startsWith(`${each}/`));
}

/** Files of packages keep their time, so a layer changes only with its packages. */
function treeEntries(tree: string, epoch: number): Entry[] {
  const paths = readdirSync(tree, { recursive: true, encoding: 'utf8' });
  return paths.flatMap((name): Entry[] => {
    const file = join(tree, name);
    const stats = lstatSync(file);
    // It runs where kubectl is.
    if (stats.isDirectory() || name === 'kubectl-portwide') return [];
    const path = `${HOME}/${name}`;
    if (stats.isSymbolicLink()) {
      return [{ path, mode: 0o777, mtime: epoch, target: readlinkSync(file) }];
    }
    const mtime = name.startsWith('node_modules/') ? Math.floor(stats.mtimeMs / 1000) : epoch;
    return [{ path, mode: stats.mode & 0o777, mtime, data: readFileSync(file) }];
  });
}

/** What Debian's maintainer scripts or container runtimes would create; the root is read-only. */
function systemEntries(mtime: number): Entry[] {
  const files = {
    'etc/passwd': 'root:x:0:0:root:/root:/bin/sh\nnonroot:x:65532:65532::/nonexistent:/bin/false\n',
    'etc/group': 'root:x:0:\nnonroot:x:65532:\n',
    // Without it, glibc asks DNS servers before it reads /etc/hosts.
    'etc/nsswitch.conf':
      'passwd: files\ngroup: files\nhosts: files dns\nprotocols: files\nservices: files\n',
    'run/xtables.lock': '',
  };
  const directories = ['dev', 'proc', 'sys', 'root', 'run/portwide', 'var/lib/portwide'];
  return [
    ...Object.entries(files).map(([path, text]) => ({
      path,
      mode: 0o644,
      mtime,
      data: Buffer.from(text),
    })),
    ...directories.map((path) => ({ path, mode: 0o755, mtime })),
    { path: 'tmp', mode: 0o1777, mtime },
  ];
}

/** Adds the directories of all entries, as old as the newest entry. */
function withParents(entries: readonly Entry[]): Entry[] {
  const mtime = newest(entries);
  const paths = new Set(entries.map(({ path }) => path));
  const parents = new Set<string>();
  for (const { path } of entries) {
    for (let at = path.indexOf('/'); at > 0; at = path.indexOf('/', at + 1)) {
      const parent = path.slice(0, at);
      if (!paths.has(parent)) parents.add(parent);
    }
  }
  return [...entries, ...[...parents].map((path) => ({ path, mode: 0o755, mtime }))];
}

function newest(entries: readonly Entry[]): number {
  return Math.max(...entries.map(({ mtime }) => mtime));
}
