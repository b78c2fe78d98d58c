/** The heap of libc's allocator. */
import { createRequire } from 'node:module';
import type * as Koffi from 'koffi';

/**
 * Returns free pages of libc's heap to the kernel (malloc_trim). After a burst of work most of the
 * heap is free, but libc by itself returns only free pages at its end. Takes a millisecond.
 * @returns false if libc lacks malloc_trim (musl).
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
