/** Memory pages of the program file and its libraries. */
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import type * as Koffi from 'koffi';

const MADV_DONTNEED = 4;
/** First line of a mapping of a file without write permission: addresses, permissions, …, path. */
const READ_ONLY_FILE = /^([0-9a-f]+)-([0-9a-f]+) r-\S+ \S+ \S+ \S+ +\//;

/** A range of addresses. */
interface Mapping {
  readonly start: bigint;
  readonly length: bigint;
}

/**
 * Unmaps the pages of the program file and its libraries: the start uses many that serving does not,
 * and the kernel maps sixteen pages for each page used ("fault-around"). Unmapped pages stay in the
 * node's page cache, which may drop them. If a page is used again, the kernel maps it within
 * microseconds. Does nothing on a kernel without /proc/PID/smaps (CONFIG_PROC_PAGE_MONITOR).
 */
export function unmapProgram(): void {
  let smaps: string;
  try {
    smaps = readFileSync('/proc/self/smaps', 'utf8');
  } catch {
    return;
  }
  madvise ??= load();
  for (const { start, length } of unchangedFileMappings(smaps)) {
    // If the call fails, the pages stay mapped.
    madvise(start, length, MADV_DONTNEED);
  }
}

/**
 * Mappings of files that the process cannot write and has not changed.
 * @param smaps text of /proc/PID/smaps.
 */
export function unchangedFileMappings(smaps: string): readonly Mapping[] {
  return smaps.split(/\n(?=[0-9a-f]+-)/).flatMap((mapping) => {
    const [, start, end] = READ_ONLY_FILE.exec(mapping) ?? [];
    // The dynamic loader writes to some pages before it makes them read-only, and the kernel may swap
    // these out. MADV_DONTNEED would restore the content of the file.
    const isUnchanged = ['Anonymous', 'Swap'].every((field) =>
      new RegExp(`^${field}: +0 kB$`, 'm').test(mapping),
    );
    if (start === undefined || end === undefined || !isUnchanged) return [];
    const first = BigInt(`0x${start}`);
    return [{ start: first, length: BigInt(`0x${end}`) - first }];
  });
}

type Advise = (start: bigint, length: bigint, advice: number) => number;

let madvise: Advise | undefined;

function load(): Advise {
  const koffi = createRequire(import.meta.url)('koffi') as typeof Koffi;
  const library = koffi.load(null);
  return library.func('int madvise(uintptr_t start, size_t length, int advice)') as Advise;
}
