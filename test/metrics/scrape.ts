/** One metric of a scrape, with its samples. */
export interface Scraped {
  readonly type: string;
  readonly help: string;
  readonly samples: readonly Sample[];
}

export interface Sample {
  /** With the suffix `_bucket`, `_sum` or `_count` for a histogram. */
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

/** Parses Prometheus' text format, as far as prom-client uses it. */
export class Scrape {
  readonly metrics: ReadonlyMap<string, Scraped>;

  constructor(text: string) {
    const metrics = new Map<string, { type: string; help: string; samples: Sample[] }>();
    let current: { type: string; help: string; samples: Sample[] } | undefined;
    for (const line of text.split('\n')) {
      const [, help, of, rest = ''] = /^# (HELP|TYPE) (\S+) (.*)$/.exec(line) ?? [];
      if (help === 'HELP') {
        current = { type: '', help: rest, samples: [] };
        metrics.set(of ?? '', current);
      } else if (help === 'TYPE' && current !== undefined) current.type = rest;
      else if (line !== '') current?.samples.push(parseSample(line));
    }
    this.metrics = metrics;
  }

  /** Value of the sample with these labels; undefined if there is none. */
  value(name: string, labels: Readonly<Record<string, string>> = {}): number | undefined {
    const base = name.replace(/_(bucket|sum|count)$/, '');
    const samples = (this.metrics.get(name) ?? this.metrics.get(base))?.samples ?? [];
    return samples.find(
      (sample) =>
        sample.name === name &&
        Object.entries(labels).every(([label, value]) => sample.labels[label] === value),
    )?.value;
  }
}

function parseSample(line: string): Sample {
  const [, name = '', labels = '', value = ''] =
    /^([a-z_0-9]+)(?:\{(.*)\})? (\S+)$/i.exec(line) ?? [];
  if (name === '') throw new Error(`not a sample: ${line}`);
  const pairs = [...labels.matchAll(/([a-z_]+)="([^"]*)"/g)].map(([, key = '', text = '']) => [
    key,
    text,
  ]);
  return { name, labels: Object.fromEntries(pairs), value: Number(value) };
}
