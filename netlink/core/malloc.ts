/** The allocator of libc. */
import { createRequire } from 'node:module';
import type * as Koffi from 'koffi';

/**
 * Gives pages back to the kernel that libc's allocator keeps for later: after a burst of queries most of its heap is free,
 * but not at its end. Costs a millisecond.
 * @returns false where libc has no such function (musl).
 */
export function trimHeap(): boolean {
  trim ??= load();
  return trim !== undefined && trim(0) >= 0;
}

type Trim = (pad: number) => number;

let trim: Trim | undefined;

function load(): Trim | undefined {
  const koffi = createRequire(import.meta.url)('koffi') as typeof Koffi;
  try {
    return koffi.load(null).func('int malloc_trim(size_t pad)') as Trim;
  } catch {
    return undefined;
  }
}
