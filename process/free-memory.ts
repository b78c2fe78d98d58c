/** When memory is given back to the machine. */
import { trimHeap } from '../netlink/core/malloc.ts';
import { systemTimers } from '../sync/timers.ts';

/** Milliseconds between two looks. */
export const CHECK_PERIOD = 30_000;
/** Bytes more than after the last time. Less is not worth the pause. */
export const MIN_GROWTH = 8 << 20;
/** Share of one CPU. Above it many queries would wait for the collector, and the memory would be needed again. */
export const IDLE_CPU_SHARE = 0.05;

/**
 * Gives memory back now, and after each burst of work once that is over. V8 lets a heap grow to twice of what is in use and
 * more, and collects nothing while nothing is allocated; libc's allocator keeps what is free between blocks. A collection
 * stops the process: 0.2 s were seen with 5,000 Services on a busy machine. So there is one after each burst and no more, for a server that
 * answers a few hundred queries a second without a rest would be stopped again and again for the same memory.
 * @returns what ends it.
 */
export function releaseFreeMemory(probe = PROCESS_PROBE): () => void {
  const { rss, cpu, release: giveBack, timers } = probe;
  let least = 0;
  let hadBurst = false;
  const collect = () => {
    giveBack();
    least = rss();
    hadBurst = false;
  };
  collect();
  let timer: unknown;
  const wait = () => {
    const cpuBefore = cpu();
    const begun = timers.now();
    timer = timers.set(() => {
      const isQuiet = cpu() - cpuBefore < (timers.now() - begun) * IDLE_CPU_SHARE;
      const size = rss();
      least = Math.min(least, size);
      if (!isQuiet) hadBurst = true;
      else if (hadBurst && size - least >= MIN_GROWTH) collect();
      wait();
    }, CHECK_PERIOD);
  };
  wait();
  return () => timers.clear(timer);
}

/** What decides whether memory is to be given back. */
const PROCESS_PROBE = {
  /** Bytes that the process has of the machine's memory. */
  rss: () => process.memoryUsage.rss(),
  /** Milliseconds of CPU so far. */
  cpu: () => {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1000;
  },
  release: () => {
    // Without --expose-gc, which ./portwide gives, V8 decides by itself. Only a collection of this kind compacts the heap.
    globalThis.gc?.({ type: 'major', flavor: 'last-resort' });
    trimHeap();
  },
  timers: systemTimers,
};
