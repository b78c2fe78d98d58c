/**
 * `node scripts/dist/dist.ts [--output DIRECTORY] [ARCHITECTURE...]` writes what a release has; see
 * {@link writeDist}. Default: `dist`, for amd64 and arm64.
 */
import { createHash } from 'node:crypto';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { execa } from 'execa';
import { VERSION } from '../../process/version.ts';
import { writeBundle } from '../bundle.ts';
import { sourceDate, writeTarball } from './archive.ts';
import { writeDeb } from './deb.ts';
import { writeNpmPackage } from './npm.ts';
import { ARCHITECTURES, type Architecture, ROOT } from './packages.ts';
import { billOfMaterials } from './sbom.ts';
import { writeTree } from './tree.ts';

/**
 * Writes the artefacts to an empty directory: for each architecture a tar.gz file and a Debian
 * package; an npm package; source maps for stack traces; a bill of materials; digests. The same sources give the same bytes.
 */
export async function writeDist(output: string, architectures: readonly Architecture[]) {
  const date = await sourceDate(ROOT);
  const work = mkdtempSync(join(tmpdir(), 'portwide-dist-'));
  try {
    const bundle = join(work, 'bundle');
    const maps = join(work, 'maps');
    const bundled = await writeBundle(bundle, { sourceMaps: join(maps, 'bundle') });
    mkdirSync(output, { recursive: true });
    const mapsFile = join(output, `portwide-${VERSION}-sourcemaps.tar.gz`);
    await writeTarball(mapsFile, maps, ['bundle'], date);
    for (const arch of architectures) {
      const name = `portwide-${VERSION}-linux-${arch}`;
      await writeTree(join(work, name), bundle, arch);
      await writeTarball(join(output, `${name}.tar.gz`), work, [name], date);
      await writeDeb(output, join(work, name), join(work, `deb-${arch}`), arch, date);
    }
    await writeNpmPackage(output, bundle, join(work, 'npm'));
    const bill = billOfMaterials(bundled, architectures, date);
    writeFileSync(join(output, `portwide-${VERSION}.cdx.json`), bill);
    writeDigests(output);
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

/** Writes SHA256SUMS, for `sha256sum -c`. */
function writeDigests(directory: string): void {
  const lines = readdirSync(directory)
    .sort()
    .map((name) => {
      const content = readFileSync(join(directory, name));
      return `${createHash('sha256').update(content).digest('hex')}  ${name}\n`;
    });
  writeFileSync(join(directory, 'SHA256SUMS'), lines.join(''));
}

function isArchitecture(name: string): name is Architecture {
  return Object.hasOwn(ARCHITECTURES, name);
}

if (import.meta.main) {
  const { values, positionals } = parseArgs({
    options: { output: { type: 'string', default: join(ROOT, 'dist') } },
    allowPositionals: true,
  });
  const given = positionals.length > 0 ? positionals : Object.keys(ARCHITECTURES);
  const architectures = given.filter(isArchitecture);
  if (architectures.length < given.length) {
    throw new Error(`architectures: ${Object.keys(ARCHITECTURES).join(', ')}`);
  }
  rmSync(values.output, { recursive: true, force: true });
  await writeDist(values.output, architectures);
  const { stdout } = await execa('du', ['-bh', ...['-a', values.output]]);
  process.stdout.write(`${stdout}\n`);
}
