/** Returns free memory to the operating system. */
import { getHeapStatistics, setFlagsFromString } from 'node:v8';
import { trimHeap } from '../netlink/core/malloc.ts';
import { unmapProgram } from '../netlink/core/program-pages.ts';
import { systemTimers } from '../sync/timers.ts';
import { isShortage } from './shortage.ts';

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
/** Milliseconds for V8 to compact a large heap. It looks for an idle moment every eight seconds. */
export const COMPACTION_TIME = 10_000;
/** Largest heap in bytes that one collection compacts at once, which takes 30 ms of CPU time. */
const SMALL_HEAP = 32 << 20;

/**
 * Resident set size in bytes. Node reads it from a file of `/proc`: undefined without a free file
 * descriptor.
 */
export function residentMemory(): number | undefined {
  try {
    return process.memoryUsage.rss();
  } catch (error) {
    if (isShortage(error)) return undefined;
    throw error;
  }
}

/**
 * Releases free memory now, and again after each burst of work that grew the process. V8 lets the
 * heap grow to more than twice the memory in use, and does not collect garbage while nothing is
 * allocated. The allocator of libc keeps free memory between used blocks. A garbage collection
 * pauses the process. Therefore there is one collection per burst. A server that constantly answers
 * a few hundred queries a second would otherwise pause repeatedly for the same memory.
 * @returns a function that stops the checks.
 */
export function releaseFreeMemory(probe = PROCESS_PROBE): () => void {
  const { rss, cpu, release, finish, timers } = probe;
  let lowest = 0;
  let hadBurst = false;
  let finishTimer: unknown;
  const collect = () => {
    release();
    timers.clear(finishTimer);
    finishTimer = timers.set(finish, COMPACTION_TIME);
    lowest = rss() ?? lowest;
    hadBurst = false;
  };
  collect();
  let timer: unknown;
  const wait = () => {
    const cpuBefore = cpu();
    const start = timers.now();
    timer = timers.set(() => {
      const isQuiet = cpu() - cpuBefore < (timers.now() - start) * IDLE_CPU_SHARE;
      const size = rss() ?? lowest;
      lowest = Math.min(lowest, size);
      if (!isQuiet) hadBurst = true;
      else if (hadBurst && size - lowest >= MIN_GROWTH) collect();
      wait();
    }, CHECK_PERIOD);
  };
  wait();
  return () => {
    timers.clear(timer);
    timers.clear(finishTimer);
    finish();
  };
}

/** Reads memory and CPU use, and releases memory. Tests replace this object. */
const PROCESS_PROBE = {
  rss: residentMemory,
  /** Milliseconds of CPU time used so far. */
  cpu: () => {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1000;
  },
  release: () => {
    // Without --expose-gc, which ./portwide sets, V8 decides when to collect. Only a `last-resort`
    // collection compacts the heap. It would pause a large heap for hundreds of milliseconds, so let
    // V8 do the same in small steps: with this flag it prefers less memory.
    const isSmall = getHeapStatistics().used_heap_size <= SMALL_HEAP;
    if (isSmall) globalThis.gc?.({ type: 'major', flavor: 'last-resort' });
    else setFlagsFromString('--optimize-for-size');
    trimHeap();
    unmapProgram();
  },
  /** Called `COMPACTION_TIME` after `release`. */
  finish: () => {
    setFlagsFromString('--no-optimize-for-size');
    // The compaction has freed buffers.
    trimHeap();
  },
  timers: systemTimers,
};
