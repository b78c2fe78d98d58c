/** Writes an image, its SBOM and its provenance; locks packages. */
import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { execa } from 'execa';
import { VERSION } from '../../process/version.ts';
import { sha256, sourceDate } from '../dist/archive.ts';
import type { Installation } from '../dist/build.ts';
import { ARCHITECTURES, type Architecture, ROOT } from '../dist/npm-packages.ts';
import { FOR_OTHER_MODES } from './contents.ts';
import { newestPackages, packagesWithout } from './debian.ts';
import { makeLayers } from './layers.ts';
import { LOCK_FILE, type Lock, readLock, writeLock } from './lock.ts';
import { type LayerSize, makeImage, SOURCE } from './oci.ts';
import { provenance, softwareBill } from './statements.ts';

const CACHE = process.env.PORTWIDE_IMAGE_CACHE ?? join(ROOT, 'node_modules/.cache/portwide-image');

const MEGABYTE = 1_000_000;
/** Bytes of an image. */
const LIMITS = { uncompressed: 200 * MEGABYTE, compressed: 75 * MEGABYTE };

/**
 * Writes `portwide-VERSION-ARCHITECTURE.oci.tar`, `.cdx.json` and `.provenance.json`.
 *
 * @param hasIptables false: the image has neither iptables nor ipset, and `-nftables` after the version.
 * @returns the digest by which registries know the image
 * @throws Error if the image is larger than its limits, or the mirror lacks a locked package
 */
export async function writeImage(
  output: string,
  { tree, bundled, architecture }: Installation,
  hasIptables = true,
): Promise<string> {
  const all = readLock()[architecture];
  const locked = hasIptables
    ? all
    : await packagesWithout(FOR_OTHER_MODES, CACHE, architecture, all);
  const tag = hasIptables ? VERSION : `${VERSION}-nftables`;
  const revision = await gitRevision();
  const epoch = await sourceDate(ROOT);
  const description = { architecture, version: VERSION, tag, revision, epoch };
  const layers = await makeLayers(CACHE, architecture, locked, tree, epoch);
  const { archive, digest, sizes } = await makeImage(layers, description);
  checkSizes(sizes);

  const name = `portwide-${tag}-${architecture}`;
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
  mkdirSync(output, { recursive: true });
  write(join(output, file), archive);
  write(join(output, `${name}.cdx.json`), softwareBill(description, locked, bundled));
  const statement = provenance(description, subject, materials, SOURCE);
  write(join(output, `${name}.provenance.json`), `${JSON.stringify(statement, null, 2)}\n`);
  return digest;
}

function checkSizes(sizes: readonly LayerSize[]): void {
  for (const key of ['uncompressed', 'compressed'] as const) {
    const total = sizes.reduce((sum, size) => sum + size[key], 0);
    if (total <= LIMITS[key]) continue;
    throw new Error(`the image has ${total} bytes ${key}, more than ${LIMITS[key]}`);
  }
}

/** Locks the newest Debian packages. */
export async function lockPackages(): Promise<void> {
  const names = Object.keys(ARCHITECTURES) as Architecture[];
  const locked = await Promise.all(
    names.map(async (architecture) => [architecture, await newestPackages(CACHE, architecture)]),
  );
  writeLock(Object.fromEntries(locked) as Lock);
}

/** The last commit. */
async function gitRevision(): Promise<string> {
  const git = async (...args: string[]) => (await execa('git', args, { cwd: ROOT })).stdout;
  const commit = await git('rev-parse', 'HEAD');
  const isChanged = (await git('status', '--porcelain')) !== '';
  return isChanged ? `${commit}-dirty` : commit;
}

/** Writes a file as a whole: readers never see part of an image. */
function write(file: string, data: Buffer | string): void {
  writeFileSync(`${file}.new`, data);
  renameSync(`${file}.new`, file);
}
