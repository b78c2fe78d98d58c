/** The files of the status page: modules in `page/`, and files of packages, which browsers load as they are. */
import { readdir, readFile } from 'node:fs/promises';

/** Content types by the end of a name. Other files of the folder are for development only. */
const TYPES: Readonly<Record<string, string>> = {
  html: 'text/html; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
  css: 'text/css; charset=utf-8',
  svg: 'image/svg+xml',
};

/** Files of packages by name. The bundle has them in `page/`. */
export const PAGE_PACKAGES: Readonly<Record<string, string>> = {
  'preact.js': 'node_modules/preact/dist/preact.mjs',
  'htm.js': 'node_modules/htm/dist/htm.module.js',
  'uplot.js': 'node_modules/uplot/dist/uPlot.iife.min.js',
  'uplot.css': 'node_modules/uplot/dist/uPlot.min.css',
};

/** The script that `index.html` loads: the modules of the page, joined. */
export const PAGE_SCRIPT = { name: 'page.js', entry: 'main.js' } as const;

const FOLDER = new URL('page/', import.meta.url);

/** The names of all files. */
export async function pageFileNames(): Promise<string[]> {
  const own = (await readdir(FOLDER)).filter((name) => contentType(name) !== undefined);
  return [...new Set([...own, ...Object.keys(PAGE_PACKAGES)])].sort();
}

/** The content type of a file; undefined if it is not served. */
export function contentType(name: string): string | undefined {
  return TYPES[name.split('.').at(-1) ?? ''];
}

/** @param name one of `pageFileNames`. */
export async function readPageFile(name: string): Promise<Buffer> {
  const path = PAGE_PACKAGES[name];
  const ownFile = new URL(name, FOLDER);
  if (path === undefined) return await readFile(ownFile);
  try {
    return await readFile(ownFile);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT') throw error;
    // Not a bundle: the package is installed.
    return await readFile(new URL(`../${path}`, import.meta.url));
  }
}
