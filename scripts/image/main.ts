/**
 * `node scripts/image/main.ts build [--output DIRECTORY] [--without-iptables] [ARCHITECTURE...]` writes images, without
 * the other files of a release; `lock` locks the newest Debian packages.
 */
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { withBuild } from '../dist/build.ts';
import { type Architecture, architecturesOf, ROOT } from '../dist/npm-packages.ts';
import { lockPackages, writeImage } from './image.ts';

async function build(
  output: string,
  architectures: readonly Architecture[],
  hasIptables: boolean,
): Promise<void> {
  await withBuild(async ({ install }) => {
    // One after the other: each takes a gigabyte of memory.
    for (const architecture of architectures) {
      const digest = await writeImage(
        output,
        await install(architecture, architecture),
        hasIptables,
      );
      console.log(`${output}: image for ${architecture}, ${digest}`);
    }
  });
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    output: { type: 'string', default: join(ROOT, 'dist') },
    'without-iptables': { type: 'boolean', default: false },
  },
});
const [command, ...given] = positionals;
if (command === 'lock' && given.length === 0) await lockPackages();
else if (command === 'build')
  await build(values.output, architecturesOf(given), !values['without-iptables']);
else
  throw new Error(
    'usage: main.ts lock | build [--output DIRECTORY] [--without-iptables] [ARCHITECTURE...]',
  );
