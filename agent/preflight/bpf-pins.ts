/** Objects that other programs pin in the BPF file system. */
import { readdir, readFile } from 'node:fs/promises';
import { asError } from '../../api/errors.ts';
import type { BpfPins } from '../../preflight/proxies.ts';

const ROOT = '/sys/fs/bpf';
/** Entries to look at. A node with hundreds of pods has some thousands. */
const MAX_ENTRIES = 20_000;

/** What the walk reads. */
export interface PinFiles {
  /** The content of `/proc/self/mounts`. */
  mounts(): Promise<string>;
  list(path: string): Promise<readonly { readonly name: string; isDirectory(): boolean }[]>;
}

const SYSTEM: PinFiles = {
  mounts: () => readFile('/proc/self/mounts', 'utf8'),
  list: (path) => readdir(path, { withFileTypes: true }),
};

/**
 * Paths of pinned objects below the root.
 * @throws Error if no BPF file system is mounted there.
 */
export async function readBpfPins(files: PinFiles = SYSTEM): Promise<BpfPins> {
  if (!(await files.mounts()).includes(` ${ROOT} bpf `))
    throw new Error(`no bpf file system at ${ROOT}`);
  const paths: string[] = [];
  let missing: string | undefined;
  let entries = 0;
  const directories = [''];
  for (const directory of directories) {
    try {
      for (const entry of await files.list(`${ROOT}/${directory}`)) {
        if (entries === MAX_ENTRIES)
          return { paths, missing: `only ${MAX_ENTRIES} entries of ${ROOT} were read` };
        entries += 1;
        const path = `${directory}${entry.name}`;
        if (entry.isDirectory()) directories.push(`${path}/`);
        else paths.push(path);
      }
    } catch (error) {
      // The program that owns the directory may delete it meanwhile: nothing is missing.
      if ((error as NodeJS.ErrnoException).code !== 'ENOENT') missing ??= asError(error).message;
    }
  }
  return { paths, missing };
}
