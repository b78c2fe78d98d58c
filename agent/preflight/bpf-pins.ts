/** Objects that other programs pin in the BPF file system. */
import { readdir, readFile } from 'node:fs/promises';

const ROOT = '/sys/fs/bpf';
/** `cilium/devices/<name>/links/<program>` has five parts. */
const MAX_DEPTH = 6;
/** Entries to look at. A node with hundreds of pods has some thousands. */
const MAX_ENTRIES = 20_000;

/**
 * Paths of pinned objects below the root.
 * @throws Error if no BPF file system is mounted there, or it cannot be read.
 */
export async function readBpfPins(): Promise<string[]> {
  const mounts = await readFile('/proc/self/mounts', 'utf8');
  if (!mounts.includes(` ${ROOT} bpf `)) throw new Error(`no bpf file system at ${ROOT}`);
  return await pathsBelow(ROOT);
}

async function pathsBelow(root: string): Promise<string[]> {
  const found: string[] = [];
  let waiting = [''];
  for (let depth = 0; depth < MAX_DEPTH && waiting.length > 0; depth++) {
    const next: string[] = [];
    for (const directory of waiting) {
      for (const entry of await readdir(`${root}/${directory}`, { withFileTypes: true })) {
        if (found.length + next.length >= MAX_ENTRIES) return found;
        (entry.isDirectory() ? next : found).push(`${directory}${entry.name}`);
      }
    }
    waiting = next.map((each) => `${each}/`);
  }
  return found;
}
