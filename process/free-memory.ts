/** Returns free memory to the operating system. */
import { trimHeap } from '../netlink/core/malloc.ts';
import { unmapProgram } from '../netlink/core/program-pages.ts';
import { systemTimers } from '../sync/timers.ts';

/** Milliseconds between two checks. */
export const CHECK_PERIOD = 30_000;
/**
 * Minimum growth of the resident set in bytes, over its lowest value since the last garbage
 * collection, before another collection runs. Freeing less is not worth the pause.
 */
export const MIN_GROWTH = 8 << 20;
/**
 * Maximum CPU use at which a garbage collection runs, as a share of one CPU. In a busier process,
 * queries would wait for the collector, and the freed memory would soon be needed again.
 */
export const IDLE_CPU_SHARE = 0.05;
/**
 * Milliseconds from a garbage collection until libc's heap is trimmed. A collection makes V8 compact
 * its heap in small steps, which begin a second later (`--gc-memory-reducer-start-delay-ms` in
 * ./portwide) and free the buffers of unused objects.
 */
export const TRIM_DELAY = 6000;
/**
 * Largest heap in bytes that one collection compacts at once. That takes about 30 ms of CPU time,
 * three times as long as a collection without compaction.
 */
const SMALL_HEAP = 32 << 20;

/**
 * Releases free memory now, and again after each burst of work that grew the process. V8 lets the
 * heap grow to more than twice the memory in use, and does not collect garbage while nothing is
 * allocated. The allocator of libc keeps free memory between used blocks. A garbage collection
 * pauses the process, for 50 ms of CPU time with 10,000 Services. Therefore there is one collection
 * per burst. A server that constantly answers a few hundred queries a second would otherwise pause
 * repeatedly for the same memory.
 * @returns a function that stops the checks.
 */
export function releaseFreeMemory(probe = PROCESS_PROBE): () => void {
  const { rss, cpu, collectGarbage, trim, timers } = probe;
  let lowest = 0;
  let hadBurst = false;
  let trimTimer: unknown;
  const collect = () => {
    collectGarbage();
    trim();
    timers.clear(trimTimer);
    trimTimer = timers.set(trim, TRIM_DELAY);
    lowest = rss();
    hadBurst = false;
  };
  collect();
  let timer: unknown;
  const wait = () => {
    const cpuBefore = cpu();
    const start = timers.now();
    timer = timers.set(() => {
      const isQuiet = cpu() - cpuBefore < (timers.now() - start) * IDLE_CPU_SHARE;
      const size = rss();
      lowest = Math.min(lowest, size);
      if (!isQuiet) hadBurst = true;
      else if (hadBurst && size - lowest >= MIN_GROWTH) collect();
      wait();
    }, CHECK_PERIOD);
  };
  wait();
  return () => {
    timers.clear(timer);
    timers.clear(trimTimer);
  };
}

/** Reads memory and CPU use, and releases memory. Tests replace this object. */
const PROCESS_PROBE = {
  /** Resident set size in bytes. */
  rss: () => process.memoryUsage.rss(),
  /** Milliseconds of CPU time used so far. */
  cpu: () => {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1000;
  },
  collectGarbage: () => {
    const isSmall = process.memoryUsage().heapUsed <= SMALL_HEAP;
    // Without --expose-gc, which ./portwide sets, V8 decides when to collect. Only a `last-resort`
    // collection compacts the heap.
    globalThis.gc?.({ type: 'major', flavor: isSmall ? 'last-resort' : 'regular' });
    unmapProgram();
  },
  trim: trimHeap,
  timers: systemTimers,
};
