/** How long the event loop was held up. */
import { monitorEventLoopDelay } from 'node:perf_hooks';

/** Milliseconds between two looks of the kernel-side timer; a stall is known to that. */
const RESOLUTION = 10;
const PERIOD = 1000;

type DelayMonitor = ReturnType<typeof monitorEventLoopDelay>;

/**
 * Tells, each second, the longest time in it in which the event loop was held up. Node's own monitor
 * measures, outside of JavaScript; a timer that looked as often would itself be work.
 * @param observe seconds.
 * @returns what ends it. It does not keep the process alive.
 */
export function watchEventLoop(observe: (seconds: number) => void): () => void {
  const monitor = monitorEventLoopDelay({ resolution: RESOLUTION });
  monitor.enable();
  const timer = setInterval(() => observe(takeMaxStall(monitor)), PERIOD).unref();
  return () => {
    clearInterval(timer);
    monitor.disable();
  };
}

/** @param monitor of nanoseconds. @returns seconds; the monitor begins anew. */
export function takeMaxStall(monitor: Pick<DelayMonitor, 'max' | 'reset'>): number {
  // What it measures includes the wait itself. Before the first look it has no maximum.
  const longest = Math.max(0, monitor.max / 1e6 - RESOLUTION) / 1000;
  monitor.reset();
  return longest;
}
