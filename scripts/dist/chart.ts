/** `node scripts/dist/chart.ts [DIRECTORY]` packages the Helm chart. Default: `dist`. */
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { VERSION } from '../../process/version.ts';
import { sourceDate, writeTarball } from './archive.ts';
import { ROOT } from './npm-packages.ts';

const CHARTS = join(ROOT, 'deploy/chart');

/** Writes portwide-VERSION.tgz, as `helm package` does. */
export async function writeChart(output: string, date: number): Promise<void> {
  mkdirSync(output, { recursive: true });
  await writeTarball(join(output, `portwide-${VERSION}.tgz`), CHARTS, ['portwide'], date, [
    // The chart has links to files of deploy/.
    '--dereference',
    `--exclude-from=${join(CHARTS, 'portwide/.helmignore')}`,
  ]);
}

if (import.meta.main) {
  const [output = join(ROOT, 'dist')] = process.argv.slice(2);
  await writeChart(output, await sourceDate(ROOT));
}
