/**
 * `node scripts/image/main.ts build [--out DIRECTORY] [ARCHITECTURE...]` writes the image, its SBOM
 * and its provenance; `lock` locks the newest Debian packages and the npm packages of
 * package-lock.json.
 */
import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { execa } from 'execa';
import { VERSION } from '../../process/version.ts';
import { newestPackages } from './debian.ts';
import { makeLayers } from './layers.ts';
import { LOCK_FILE, type Lock, readLock, sha256, writeLock } from './lock.ts';
import { lockNpmPackage } from './npm.ts';
import { makeImage, SOURCE } from './oci.ts';
import { ARCHITECTURES, type Architecture, npmPackages } from './packages.ts';
import { provenance, softwareBill } from './statements.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const CACHE = process.env.PORTWIDE_IMAGE_CACHE ?? join(ROOT, 'node_modules/.cache/portwide-image');
const ALL = Object.keys(ARCHITECTURES) as Architecture[];

const MEGABYTE = 1_000_000;
/** Bytes of an image. */
const LIMITS = { uncompressed: 200 * MEGABYTE, compressed: 75 * MEGABYTE };

async function build(architecture: Architecture, out: string): Promise<void> {
  const locked = readLock()[architecture];
  const description = { architecture, version: VERSION, ...(await gitState()) };
  const { epoch, revision } = description;
  const layers = await makeLayers(CACHE, architecture, locked, epoch);
  const { archive, digest, sizes } = await makeImage(layers, description);

  const total = (key: 'uncompressed' | 'compressed') =>
    sizes.reduce((sum, size) => sum + size[key], 0);
  for (const key of ['uncompressed', 'compressed'] as const) {
    if (total(key) <= LIMITS[key]) continue;
    throw new Error(`the image has ${total(key)} bytes ${key}, more than ${LIMITS[key]}`);
  }

  const name = `portwide-${VERSION}-${architecture}`;
  const file = `${name}.oci.tar`;
  const materials = [
    { uri: `git+${SOURCE}`, digest: { gitCommit: revision } },
    ...[LOCK_FILE, 'package-lock.json'].map((path) => ({
      uri: path,
      digest: { sha256: sha256(readFileSync(join(ROOT, path))) },
    })),
  ];
  const subject = [
    { name: file, digest: { sha256: sha256(archive) } },
    { name: 'portwide', digest: { sha256: digest.replace('sha256:', '') } },
  ];
  mkdirSync(out, { recursive: true });
  write(join(out, file), archive);
  write(join(out, `${name}.cdx.json`), json(softwareBill(description, locked)));
  write(
    join(out, `${name}.provenance.json`),
    json(provenance(description, subject, materials, SOURCE)),
  );

  const megabytes = (bytes: number) => (bytes / MEGABYTE).toFixed(1);
  console.log(`${join(out, file)} ${digest}`);
  const parts = [
    ...sizes,
    { name: 'total', uncompressed: total('uncompressed'), compressed: total('compressed') },
  ];
  for (const part of parts) {
    console.log(
      `  ${part.name}: ${megabytes(part.uncompressed)} MB, compressed ${megabytes(part.compressed)} MB`,
    );
  }
}

async function lock(): Promise<void> {
  const { packages } = JSON.parse(readFileSync(join(ROOT, 'package-lock.json'), 'utf8')) as {
    packages: Readonly<Record<string, { version: string }>>;
  };
  const locked = await Promise.all(
    ALL.map(async (architecture) => {
      const npm = Object.entries(npmPackages(architecture)).map(([name, as]) =>
        lockNpmPackage(name, packages[`node_modules/${as}`]?.version ?? ''),
      );
      return [
        architecture,
        { debian: await newestPackages(CACHE, architecture), npm: await Promise.all(npm) },
      ];
    }),
  );
  writeLock(Object.fromEntries(locked) as Lock);
}

/** The last commit and its time. SOURCE_DATE_EPOCH sets another time. */
async function gitState(): Promise<{ revision: string; epoch: number }> {
  const git = async (...args: string[]) => (await execa('git', args, { cwd: ROOT })).stdout;
  const [commit = '', time] = (await git('log', '-1', '--format=%H %ct')).split(' ');
  const isChanged = (await git('status', '--porcelain')) !== '';
  return {
    revision: isChanged ? `${commit}-dirty` : commit,
    epoch: Number(process.env.SOURCE_DATE_EPOCH ?? time),
  };
}

/** Writes a file as a whole: readers never see part of an image. */
function write(file: string, data: Buffer | string): void {
  writeFileSync(`${file}.new`, data);
  renameSync(`${file}.new`, file);
}

function json(value: unknown): string {
  return `${JSON.stringify(value, null, 2)}\n`;
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { out: { type: 'string', default: join(ROOT, 'dist') } },
});
const [command, ...given] = positionals;
const unknown = given.find((each) => !ALL.includes(each as Architecture));
if (command === 'lock' && given.length === 0) await lock();
else if (command === 'build' && unknown === undefined) {
  // One after the other: each takes a gigabyte of memory.
  for (const each of given.length > 0 ? (given as Architecture[]) : ALL)
    await build(each, values.out);
} else throw new Error(`usage: main.ts lock | build [--out DIRECTORY] [${ALL.join(' ')}]`);
