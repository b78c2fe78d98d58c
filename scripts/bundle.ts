/** `node scripts/bundle.ts DIRECTORY` writes the agent there as plain JavaScript; see {@link writeBundle}. */
import { copyFileSync, globSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
/** Binaries of their own; the launcher starts the one, the agent loads the other. */
export const NOT_BUNDLED = ['node', 'koffi'] as const;

/**
 * Writes the agent into a directory: the launcher, package.json, and the modules and packages in a few files of
 * JavaScript. What {@link NOT_BUNDLED} names has to be in node_modules beside them. A start loads a tenth of the
 * files that it loads from the sources, and no types are stripped.
 */
export async function writeBundle(directory: string): Promise<void> {
  mkdirSync(directory, { recursive: true });
  for (const file of ['portwide', 'package.json']) {
    copyFileSync(join(ROOT, file), join(directory, file));
  }
  const { metafile } = await build({
    absWorkingDir: ROOT,
    // Another thread starts with a file of its own.
    entryPoints: { main: 'cmd/main.ts', thread: 'policy/fqdn/thread.ts' },
    outdir: join(directory, 'bundle'),
    outExtension: { '.js': '.mjs' },
    bundle: true,
    splitting: true,
    platform: 'node',
    target: 'node24',
    format: 'esm',
    external: [...NOT_BUNDLED],
    // For packages that are CommonJS.
    banner: {
      js: "import { createRequire as requireOf } from 'node:module'; const require = requireOf(import.meta.url);",
    },
    metafile: true,
    logLevel: 'warning',
  });
  writeFileSync(join(directory, 'bundle', 'LICENSES'), licences(Object.keys(metafile.inputs)));
}

/**
 * The licences of all packages that files come from; a package may have one of its own within it.
 *
 * @throws Error when a package has none
 */
function licences(files: readonly string[]): string {
  const packages = files.map((file) => /^.*node_modules\/(?:@[^/]+\/)?[^/]+/.exec(file)?.[0]);
  const texts = [...new Set(packages)]
    .filter((directory) => directory !== undefined)
    .sort()
    .map((directory) => {
      const [licence] = globSync(`${directory}/{LICEN[CS]E,licen[cs]e}*`, { cwd: ROOT });
      if (licence === undefined) throw new Error(`${directory} has no licence`);
      return `=== ${directory}\n\n${readFileSync(join(ROOT, licence), 'utf8')}`;
    });
  return texts.join('\n');
}

if (import.meta.main) {
  const [directory] = process.argv.slice(2);
  if (directory === undefined) throw new Error('usage: node scripts/bundle.ts DIRECTORY');
  await writeBundle(directory);
}
