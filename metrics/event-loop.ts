/** Measures how long the event loop is blocked. */
import { performance } from 'node:perf_hooks';

/**
 * Milliseconds between samples. Each wakes the process up: every 10 ms, an idle process takes 0.7 % of a core, every
 * 100 ms a tenth of that.
 */
const SAMPLE_MS = 100;
const SAMPLES_IN_REPORT = 10;

/**
 * Reports the longest event loop stall of each second, with an error of at most 0.1 s. Work delays the next sample, so no
 * stall is longer than all work between two samples. A process without CPU time, for example because of a CPU limit, works
 * less, but its sample is late.
 * @param observe gets seconds.
 * @returns a function that stops the reports. The timer does not keep the process alive.
 */
export function watchEventLoop(observe: (seconds: number) => void): () => void {
  let last = performance.eventLoopUtilization();
  let lastAt = performance.now();
  let [samples, longest] = [0, 0];
  const sample = () => {
    const [now, at] = [performance.eventLoopUtilization(), performance.now()];
    longest = Math.max(longest, now.active - last.active, at - lastAt - SAMPLE_MS);
    [last, lastAt] = [now, at];
    samples += 1;
    if (samples < SAMPLES_IN_REPORT) return;
    observe(longest / 1000);
    [samples, longest] = [0, 0];
  };
  const timer = setInterval(sample, SAMPLE_MS).unref();
  return () => clearInterval(timer);
}
