/**
 * `node scripts/dist/dist.ts [--output DIRECTORY] [ARCHITECTURE...]` writes what a release has; see
 * {@link writeDist}. Default: `dist`, for amd64 and arm64.
 */
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { execa } from 'execa';
import { VERSION } from '../../process/version.ts';
import { writeImage } from '../image/image.ts';
import { sourceDate, writeDigests, writeTarball } from './archive.ts';
import { withBuild } from './build.ts';
import { writeChart } from './chart.ts';
import { writeDeb } from './deb.ts';
import { writeNpmPackage } from './npm.ts';
import { type Architecture, architecturesOf, ROOT } from './npm-packages.ts';
import { packagesBill } from './sbom.ts';

/**
 * Writes the artefacts to an empty directory. For each architecture: a tar.gz file, a Debian package
 * and an image. For all: an npm package, the Helm chart, source maps for stack traces, bills of
 * materials, digests. The same sources give the same bytes.
 */
export async function writeDist(output: string, architectures: readonly Architecture[]) {
  const date = await sourceDate(ROOT);
  await withBuild(async ({ work, bundle, maps, bundled, install }) => {
    mkdirSync(output, { recursive: true });
    const mapsFile = join(output, `portwide-${VERSION}-sourcemaps.tar.gz`);
    await writeTarball(mapsFile, maps, ['bundle'], date);
    for (const architecture of architectures) {
      const name = `portwide-${VERSION}-linux-${architecture}`;
      const installation = await install(architecture, name);
      await writeTarball(join(output, `${name}.tar.gz`), work, [name], date);
      await writeDeb(output, installation, join(work, `deb-${architecture}`), date);
      await writeImage(output, installation);
    }
    await writeNpmPackage(output, bundle, join(work, 'npm'));
    const bill = packagesBill(bundled, architectures, date);
    writeFileSync(join(output, `portwide-${VERSION}.cdx.json`), bill);
    await writeChart(output, date);
    writeDigests(output);
  });
}

if (import.meta.main) {
  const { values, positionals } = parseArgs({
    options: { output: { type: 'string', default: join(ROOT, 'dist') } },
    allowPositionals: true,
  });
  const architectures = architecturesOf(positionals);
  rmSync(values.output, { recursive: true, force: true });
  await writeDist(values.output, architectures);
  const { stdout } = await execa('du', ['-bh', ...['-a', values.output]]);
  process.stdout.write(`${stdout}\n`);
}
