/**
 * `node scripts/bundle.ts DIRECTORY` writes the agent to the directory as plain JavaScript; see
 * {@link writeBundle}.
 */
import { copyFileSync, globSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';
import { PAGE_PACKAGES, pageFileNames, readPageFile } from '../status/page-files.ts';

const ROOT = fileURLToPath(new URL('..', import.meta.url));
/** Packages with binaries: the launcher starts `node`, the agent loads `koffi`. */
export const NOT_BUNDLED = ['node', 'koffi'] as const;

export interface BundleOptions {
  /** Directory for source maps; without it none are made. */
  readonly sourceMaps?: string;
}

/**
 * Writes the agent to a directory: the launcher, package.json, and the modules and packages in a
 * few JavaScript files. The packages of {@link NOT_BUNDLED} must be in node_modules of that
 * directory. At startup, Node.js then loads a tenth as many files, and strips no types.
 *
 * @returns paths of the bundled packages, such as `node_modules/yaml`, sorted
 */
export async function writeBundle(
  directory: string,
  { sourceMaps }: BundleOptions = {},
): Promise<string[]> {
  mkdirSync(join(directory, 'bundle'), { recursive: true });
  for (const file of ['portwide', 'package.json']) {
    copyFileSync(join(ROOT, file), join(directory, file));
  }
  const { metafile, outputFiles } = await build({
    absWorkingDir: ROOT,
    // The worker thread has its own entry point.
    entryPoints: { main: 'cmd/main.ts', thread: 'policy/fqdn/thread.ts' },
    // Nothing is written here. Source maps name sources relative to this directory, and esbuild
    // hashes the names. So the directory must be the same in each build.
    outdir: join(ROOT, 'bundle'),
    write: false,
    outExtension: { '.js': '.mjs' },
    bundle: true,
    splitting: true,
    platform: 'node',
    target: 'node24',
    format: 'esm',
    external: [...NOT_BUNDLED],
    // Bundled CommonJS packages call require().
    banner: {
      js: "import { createRequire as requireOf } from 'node:module'; const require = requireOf(import.meta.url);",
    },
    // Adds a comment that names the map to each file.
    sourcemap: sourceMaps === undefined ? false : 'linked',
    metafile: true,
    logLevel: 'warning',
  });
  if (sourceMaps !== undefined) mkdirSync(sourceMaps, { recursive: true });
  for (const { path, contents } of outputFiles) {
    const isMap = sourceMaps !== undefined && path.endsWith('.map');
    writeFileSync(join(isMap ? sourceMaps : join(directory, 'bundle'), basename(path)), contents);
  }
  copyFileSync(join(ROOT, 'status/openapi.json'), join(directory, 'bundle', 'openapi.json'));
  await writePage(join(directory, 'bundle', 'page'));
  const packages = packagesOf([...Object.keys(metafile.inputs), ...Object.values(PAGE_PACKAGES)]);
  writeFileSync(join(directory, 'bundle', 'LICENSES'), licences(packages));
  return packages;
}

/** Copies the files of the status page, including files of packages. */
async function writePage(directory: string): Promise<void> {
  mkdirSync(directory, { recursive: true });
  for (const name of await pageFileNames()) {
    writeFileSync(join(directory, name), await readPageFile(name));
  }
}

/** Directories of the packages that contain these files, also of packages nested within others. */
function packagesOf(files: readonly string[]): string[] {
  const packages = files.map((file) => /^.*node_modules\/(?:@[^/]+\/)?[^/]+/.exec(file)?.[0]);
  return [...new Set(packages)].filter((directory) => directory !== undefined).sort();
}

/**
 * The licences of packages.
 *
 * @throws Error if a package has no licence file
 */
function licences(packages: readonly string[]): string {
  const texts = packages.map((directory) => {
    const [licence] = globSync(`${directory}/{LICEN[CS]E,licen[cs]e}*`, { cwd: ROOT });
    if (licence === undefined) throw new Error(`${directory} has no licence file`);
    return `=== ${directory}\n\n${readFileSync(join(ROOT, licence), 'utf8')}`;
  });
  return texts.join('\n');
}

if (import.meta.main) {
  const [directory] = process.argv.slice(2);
  if (directory === undefined) throw new Error('usage: node scripts/bundle.ts DIRECTORY');
  await writeBundle(directory);
}
