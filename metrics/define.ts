import { Counter, Gauge, Histogram, type Registry } from 'prom-client';

/** One sample of a metric that is asked for at each scrape. */
export interface Sample<Label extends string> {
  readonly labels: Readonly<Record<Label, string>>;
  readonly value: number;
}

/** Ways to define a metric in a registry, one for each way to feed it. */
export interface Define {
  counter<Label extends string>(
    name: string,
    help: string,
    labels?: readonly Label[],
  ): Counter<Label>;
  gauge<Label extends string>(name: string, help: string, labels?: readonly Label[]): Gauge<Label>;
  histogram<Label extends string>(
    name: string,
    help: string,
    buckets: readonly number[],
    labels?: readonly Label[],
  ): Histogram<Label>;
  /** Numbers that somebody else keeps. They must be cheap to get: a scrape walks over nothing. */
  asked<Label extends string>(
    type: 'gauge' | 'counter',
    name: string,
    help: string,
    labels: readonly Label[],
    samples: () => Iterable<Sample<Label>> | Promise<Iterable<Sample<Label>>>,
  ): void;
}

export function definer(registry: Registry): Define {
  const registers = [registry];
  return {
    counter: (name, help, labelNames = []) => new Counter({ name, help, labelNames, registers }),
    gauge: (name, help, labelNames = []) => new Gauge({ name, help, labelNames, registers }),
    histogram: (name, help, buckets, labelNames = []) =>
      new Histogram({ name, help, labelNames, buckets: [...buckets], registers }),
    asked(type, name, help, labelNames, samples) {
      const configuration = {
        name,
        help,
        labelNames,
        registers,
        async collect(this: { reset(): void; inc(labels: object, value: number): void }) {
          // Two scrapes at a time must not add up.
          const all = await samples();
          this.reset();
          for (const { labels, value } of all) this.inc(labels, value);
        },
      };
      if (type === 'gauge') new Gauge<string>(configuration);
      else new Counter<string>(configuration);
    },
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
