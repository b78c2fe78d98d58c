/**
 * `node scripts/image/main.ts build [--output DIRECTORY] [ARCHITECTURE...]` writes images, without the
 * other files of a release; `lock` locks the newest Debian packages.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { writeBundle } from '../bundle.ts';
import { type Architecture, architecturesOf, ROOT } from '../dist/npm-packages.ts';
import { writeTree } from '../dist/tree.ts';
import { lockPackages, writeImage } from './image.ts';

async function build(output: string, architectures: readonly Architecture[]): Promise<void> {
  const work = mkdtempSync(join(tmpdir(), 'portwide-image-'));
  try {
    const bundle = join(work, 'bundle');
    // With maps, as in scripts/dist/dist.ts: each file names its map.
    const bundled = await writeBundle(bundle, { sourceMaps: join(work, 'maps') });
    // One after the other: each takes a gigabyte of memory.
    for (const architecture of architectures) {
      const tree = join(work, architecture);
      await writeTree(tree, bundle, architecture);
      const digest = await writeImage(output, { tree, bundled, architecture });
      console.log(`${output}: image for ${architecture}, ${digest}`);
    }
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { output: { type: 'string', default: join(ROOT, 'dist') } },
});
const [command, ...given] = positionals;
if (command === 'lock' && given.length === 0) await lockPackages();
else if (command === 'build') await build(values.output, architecturesOf(given));
else throw new Error('usage: main.ts lock | build [--output DIRECTORY] [ARCHITECTURE...]');
