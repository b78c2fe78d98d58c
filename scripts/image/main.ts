/**
 * `node scripts/image/main.ts build [--output DIRECTORY] [ARCHITECTURE...]` writes images, without the
 * other files of a release; `lock` locks the newest Debian packages.
 */
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { withBuild } from '../dist/build.ts';
import { type Architecture, architecturesOf, ROOT } from '../dist/npm-packages.ts';
import { lockPackages, writeImage } from './image.ts';

async function build(output: string, architectures: readonly Architecture[]): Promise<void> {
  await withBuild(async ({ install }) => {
    // One after the other: each takes a gigabyte of memory.
    for (const architecture of architectures) {
      const digest = await writeImage(output, await install(architecture, architecture));
      console.log(`${output}: image for ${architecture}, ${digest}`);
    }
  });
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { output: { type: 'string', default: join(ROOT, 'dist') } },
});
const [command, ...given] = positionals;
if (command === 'lock' && given.length === 0) await lockPackages();
else if (command === 'build') await build(values.output, architecturesOf(given));
else throw new Error('usage: main.ts lock | build [--output DIRECTORY] [ARCHITECTURE...]');
