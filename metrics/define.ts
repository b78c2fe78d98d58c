/** Defines metrics in a registry, one way for each way to feed them. */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';

/** A count with the values of its labels. That of `ip_family` is in `family`. */
type LabelledCount<Label extends string> = { readonly count: number } & Readonly<
  Record<Label extends 'ip_family' ? 'family' : Label, string>
>;

/** Ways to define a metric in a registry, one for each way to feed it. */
export type MetricDefiner = ReturnType<typeof metricDefiner>;

/** Gauges with the name of a counter, and sums of others; `promtool check metrics` objects. */
const UNWANTED_DEFAULTS = [
  'nodejs_active_handles_total',
  'nodejs_active_requests_total',
  'nodejs_active_resources_total',
];

/** A registry that has the metrics of the process. */
export function createRegistry(): Registry {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  for (const name of UNWANTED_DEFAULTS) registry.removeSingleMetric(name);
  return registry;
}

export function metricDefiner(registry: Registry) {
  const registers = [registry];
  /** Counts that somebody else keeps. They must be cheap to get: a scrape walks over nothing. */
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
        // Two scrapes at a time must not add up.
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
    collected: collected,
    /** The same of one without labels. */
    collectedValue: (
      type: 'gauge' | 'counter',
      name: string,
      help: string,
      count: () => number | Promise<number>,
    ) => collected(type, name, help, [], async () => [{ count: await count() }]),
  };
}

/** From `start` on, each `factor` times the one before. */
export function exponential(start: number, factor: number, count: number): number[] {
  return Array.from({ length: count }, (_, power) => start * factor ** power);
}

/** From `start` on, each `width` more than the one before. */
export function linear(start: number, width: number, count: number): number[] {
  return Array.from({ length: count }, (_, index) => start + index * width);
}

/** As kube-proxy's for a sync: 1 ms, doubled up to 16 s. */
export const SYNC_BUCKETS = exponential(0.001, 2, 15);
