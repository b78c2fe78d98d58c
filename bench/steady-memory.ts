/** Follows the memory of a process over a long run. */
import { field } from './processes.ts';

/** Seconds since the first sample, and resident memory in MiB. */
export interface MemorySample {
  readonly at: number;
  readonly memory: number;
}

/** A line through samples. */
export interface Slope {
  /** MB an hour. */
  readonly slope: number;
  /** Standard error of `slope`. Samples of one minute count as one, because neighbours are alike. */
  readonly error: number;
}

const SAMPLE_MS = 1000;
const GROUP_SECONDS = 60;
const LEAST_GROUPS = 10;
const MB_IN_MIB = 1.048_576;
const HOUR = 3600;

/** Samples a process once a second until `stop` is called. */
export function followMemory(pid: number) {
  const samples: MemorySample[] = [];
  const started = performance.now();
  const timer = setInterval(() => {
    samples.push({ at: (performance.now() - started) / 1000, memory: field(pid, 'VmRSS') });
  }, SAMPLE_MS);
  return {
    stop: (): readonly MemorySample[] => {
      clearInterval(timer);
      return samples;
    },
  };
}

/**
 * The slope by least squares.
 * @returns undefined for less than ten minutes, after which the heap has its final size
 */
export function slopeOf(samples: readonly MemorySample[]): Slope | undefined {
  const groups = Map.groupBy(samples, ({ at }) => Math.floor(at / GROUP_SECONDS));
  const points = [...groups.values()].map((group) => ({
    x: mean(group.map(({ at }) => at)) / HOUR,
    y: mean(group.map(({ memory }) => memory)) * MB_IN_MIB,
  }));
  if (points.length < LEAST_GROUPS) return undefined;
  const [x, y] = [mean(points.map((point) => point.x)), mean(points.map((point) => point.y))];
  const sum = (of: (point: (typeof points)[number]) => number) =>
    points.reduce((total, point) => total + of(point), 0);
  const spread = sum((point) => (point.x - x) ** 2);
  const slope = sum((point) => (point.x - x) * (point.y - y)) / spread;
  const residuals = sum((point) => (point.y - y - slope * (point.x - x)) ** 2);
  return { slope, error: Math.sqrt(residuals / (points.length - 2) / spread) };
}

export function mean(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0) / values.length;
}
