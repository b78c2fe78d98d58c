/** Helpers that define metrics in a registry. */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';

/** A value with its labels. The label `ip_family` is in field `family`. */
type LabelledCount<Label extends string> = { readonly count: number } & Readonly<
  Record<Label extends 'ip_family' ? 'family' : Label, string>
>;

/** Defines metrics in one registry: updated by the caller, or collected at each scrape. */
export type MetricDefiner = ReturnType<typeof metricDefiner>;

const LAG_STATISTICS = ['min', 'max', 'mean', 'stddev', 'p50', 'p90', 'p99'];
/**
 * Metrics of prom-client that are left out. `promtool check metrics` rejects the gauges with names of counters; each is
 * the sum of another default metric. The statistics of the event loop's lag need a timer of 10 ms, which takes 0.7 % of a
 * core, and its utilization a timer of 100 ms; event-loop.ts measures instead.
 */
const UNWANTED_DEFAULTS = [
  'nodejs_active_handles_total',
  'nodejs_active_requests_total',
  'nodejs_active_resources_total',
  ...LAG_STATISTICS.map((statistic) => `nodejs_eventloop_lag_${statistic}_seconds`),
  'nodejs_eventloop_utilization_histogram',
  'nodejs_eventloop_utilization_summary',
];
/** Milliseconds between samples of the event loop: practically never. Their statistics are left out. */
const NEVER = 2 ** 31 - 1;

/** Creates a registry with the metrics of the process. */
export function createRegistry(): Registry {
  const registry = new Registry();
  collectDefaultMetrics({
    register: registry,
    eventLoopMonitoringPrecision: NEVER,
    eventLoopUtilizationTimeout: NEVER,
  });
  for (const name of UNWANTED_DEFAULTS) registry.removeSingleMetric(name);
  return registry;
}

export function metricDefiner(registry: Registry) {
  const registers = [registry];
  /**
   * Defines a metric whose values are collected at each scrape. `counts` must be cheap: it must not
   * iterate over Services.
   */
  const collected = <Label extends string>(
    type: 'gauge' | 'counter',
    name: string,
    help: string,
    labelNames: readonly Label[],
    counts: () => Iterable<LabelledCount<Label>> | Promise<Iterable<LabelledCount<Label>>>,
  ) => {
    const configuration = {
      name,
      help,
      labelNames,
      registers,
      async collect(this: { reset(): void; inc(labels: object, value: number): void }) {
        // Reset after the await, so that concurrent scrapes do not add up.
        const all: Iterable<Record<string, string | number>> = await counts();
        this.reset();
        for (const { count, ...each } of all) {
          const labels = labelNames.map((name) => [
            name,
            each[name === 'ip_family' ? 'family' : name],
          ]);
          this.inc(Object.fromEntries(labels), Number(count));
        }
      },
    };
    if (type === 'gauge') new Gauge<string>(configuration);
    else new Counter<string>(configuration);
  };
  return {
    counter: <Label extends string>(
      name: string,
      help: string,
      labelNames: readonly Label[] = [],
    ) => new Counter<Label>({ name, help, labelNames, registers }),
    gauge: <Label extends string>(name: string, help: string, labelNames: readonly Label[] = []) =>
      new Gauge<Label>({ name, help, labelNames, registers }),
    histogram: <Label extends string>(
      name: string,
      help: string,
      buckets: readonly number[],
      labelNames: readonly Label[] = [],
    ) => new Histogram<Label>({ name, help, labelNames, buckets: [...buckets], registers }),
    collected,
    /** Defines a collected metric without labels. */
    collectedValue: (
      type: 'gauge' | 'counter',
      name: string,
      help: string,
      count: () => number | Promise<number>,
    ) => collected(type, name, help, [], async () => [{ count: await count() }]),
  };
}

/** `count` buckets from `start` on, each `factor` times the previous one. */
export function exponentialBuckets(start: number, factor: number, count: number): number[] {
  return Array.from({ length: count }, (_, power) => start * factor ** power);
}

/** `count` buckets from `start` on, each `width` more than the previous one. */
export function linearBuckets(start: number, width: number, count: number): number[] {
  return Array.from({ length: count }, (_, index) => start + index * width);
}

/** kube-proxy's buckets for syncs: 1 ms, doubled up to 16 s. */
export const SYNC_BUCKETS = exponentialBuckets(0.001, 2, 15);
