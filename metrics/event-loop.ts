/** Measures how long the event loop is blocked. */
import { monitorEventLoopDelay } from 'node:perf_hooks';

/** Milliseconds between samples of the monitor's timer; the precision of a measured stall. */
const RESOLUTION = 10;
/** Milliseconds between two reports. */
const PERIOD = 1000;

type DelayMonitor = ReturnType<typeof monitorEventLoopDelay>;

/**
 * Reports the longest event loop stall of each second. Node's monitor measures outside of
 * JavaScript; a JavaScript timer with that precision would cause load.
 * @param observe gets seconds.
 * @returns a function that stops the reports. The timer does not keep the process alive.
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

/**
 * Resets the monitor, which measures in nanoseconds.
 * @returns the longest stall since the last reset, in seconds.
 */
export function takeMaxStall(monitor: Pick<DelayMonitor, 'max' | 'reset'>): number {
  // The monitor's values include the sampling interval. Before the first sample there is no
  // maximum.
  const longest = Math.max(0, monitor.max / 1e6 - RESOLUTION) / 1000;
  monitor.reset();
  return longest;
}
