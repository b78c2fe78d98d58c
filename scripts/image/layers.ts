/** The layers of the image: Debian, Node.js, the agent. An update of the agent changes only the last. */
import { lstatSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import { writeBundle } from '../bundle.ts';
import { downloadPackages } from './debian.ts';
import { missingLibraries } from './elf.ts';
import { LOCK_FILE, type LockedPackages } from './lock.ts';
import { npmFiles } from './npm.ts';
import { type Architecture, EXCLUDED, LINKS, PARTIAL } from './packages.ts';
import { type Entry, readTar } from './tar.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const HOME = 'opt/portwide';
const MODULES = `${HOME}/node_modules`;

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
 * @param epoch Time of files that no package has, in seconds.
 * @throws Error if a program in the image needs a library that the image does not have
 */
export async function makeLayers(
  cache: string,
  architecture: Architecture,
  locked: LockedPackages,
  epoch: number,
): Promise<Layer[]> {
  const debian = await debianEntries(cache, architecture, locked);
  const packages = await Promise.all(
    locked.npm.map(async (each) => ({ ...each, files: await npmFiles(cache, each) })),
  );
  const node = packages.filter(({ name }) => name.startsWith('node-'));
  const others = packages.filter(({ name }) => !name.startsWith('node-'));
  const agent = [
    ...(await bundleEntries(epoch)),
    ...others.flatMap(({ name, files }) => moved(`${MODULES}/${name}`, files.filter(isLoaded))),
    { path: `${MODULES}/.bin/node`, mode: 0o777, mtime: epoch, target: '../node/bin/node' },
    ...systemEntries(epoch),
  ];
  const layers = [
    { name: 'Debian packages', entries: withParents(debian) },
    {
      name: 'Node.js',
      // Without npm, headers and documentation.
      entries: withParents(
        node.flatMap(({ files }) =>
          moved(
            `${MODULES}/node`,
            files.filter(({ path }) => /^(bin\/node|LICENSE)$/.test(path)),
          ),
        ),
      ),
    },
    { name: 'Portwide', entries: withParents(agent) },
  ];
  const missing = missingLibraries(layers.flatMap(({ entries }) => entries));
  if (missing.length > 0)
    throw new Error(`packages are missing in ${LOCK_FILE}: ${missing.join(', ')}`);
  return layers;
}

async function debianEntries(
  cache: string,
  architecture: Architecture,
  { debian }: LockedPackages,
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
  const links = { ...LINKS, bin: 'usr/bin', sbin: 'usr/sbin', lib: 'usr/lib', lib64: 'usr/lib64' };
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

/** Neither sources of binaries, nor types, nor the binary for musl. */
function isLoaded({ path }: Entry): boolean {
  return (
    /(\.c?js|^package\.json|^LICENSE\.txt|linux_\w+\/koffi\.node)$/.test(path) &&
    path !== 'cnoke.cjs'
  );
}

async function bundleEntries(mtime: number): Promise<Entry[]> {
  const directory = mkdtempSync(join(tmpdir(), 'portwide-image-'));
  try {
    await writeBundle(directory);
    const paths = readdirSync(directory, { recursive: true, encoding: 'utf8' });
    const files = paths.filter((path) => lstatSync(join(directory, path)).isFile());
    const entries = files.map((path) => ({
      path: `${HOME}/${path}`,
      // Not the mode of the file, which depends on the umask.
      mode: path === 'portwide' ? 0o755 : 0o644,
      mtime,
      data: readFileSync(join(directory, path)),
    }));
    const data = readFileSync(join(ROOT, 'LICENSE'));
    return [...entries, { path: `${HOME}/LICENSE`, mode: 0o644, mtime, data }];
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
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

function moved(directory: string, entries: readonly Entry[]): Entry[] {
  return entries.map((entry) => ({ ...entry, path: `${directory}/${entry.path}` }));
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
