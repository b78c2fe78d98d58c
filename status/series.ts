/** Time series of the last 15 minutes, for the status API. Memory is bounded: 16 KiB. */
import type { Series, SeriesList } from './api/activity.ts';

/** Milliseconds between two samples. */
export const SAMPLE_INTERVAL = 5000;
/** 15 minutes. */
const SAMPLES = 180;

/** Values of one moment. Counters only increase; undefined if a value is unknown. */
export interface Sample {
  /** Counter: syncs that ended, successful or not. */
  readonly syncs: number;
  /** Longest sync since the previous sample, in seconds; 0 without a sync. */
  readonly syncSeconds: number;
  readonly conntrackEntries: number | undefined;
  readonly services: number;
  readonly endpoints: number;
  /** Counter: CPU time of the agent in seconds. */
  readonly cpuSeconds: number;
  /** Resident memory of the agent in bytes. */
  readonly memory: number | undefined;
}

interface Column {
  readonly name: string;
  readonly title: string;
  readonly unit: Series['unit'];
  /** @param seconds since the previous sample. */
  readonly value: (sample: Sample, before: Sample, seconds: number) => number | undefined;
}

const COLUMNS: readonly Column[] = [
  {
    name: 'syncs',
    title: 'Syncs in 5 seconds',
    unit: 'count',
    value: ({ syncs }, before) => syncs - before.syncs,
  },
  {
    name: 'syncSeconds',
    title: 'Longest sync',
    unit: 'seconds',
    value: ({ syncSeconds }) => syncSeconds,
  },
  {
    name: 'conntrackEntries',
    title: 'Conntrack entries',
    unit: 'count',
    value: ({ conntrackEntries }) => conntrackEntries,
  },
  { name: 'services', title: 'Services', unit: 'count', value: ({ services }) => services },
  { name: 'endpoints', title: 'Endpoints', unit: 'count', value: ({ endpoints }) => endpoints },
  {
    name: 'cpu',
    title: 'CPU of the agent',
    unit: 'cores',
    value: ({ cpuSeconds }, before, seconds) => (cpuSeconds - before.cpuSeconds) / seconds,
  },
  { name: 'memory', title: 'Memory of the agent', unit: 'bytes', value: ({ memory }) => memory },
];

/** A ring of samples. */
export class SeriesRecorder {
  readonly #times = new Float64Array(SAMPLES);
  readonly #values = COLUMNS.map(() => new Float64Array(SAMPLES));
  /** Number of samples added since the start. */
  #added = 0;
  #last: { readonly at: number; readonly sample: Sample } | undefined;

  /**
   * Adds a sample. The first one only sets the counters.
   * @param at milliseconds since 1970. A sample that is not later than the previous one is ignored: the clock was set.
   */
  add(sample: Sample, at: number): void {
    const last = this.#last;
    this.#last = { at, sample };
    if (last === undefined || at <= last.at) return;
    const index = this.#added % SAMPLES;
    this.#times[index] = at / 1000;
    for (const [column, { value }] of COLUMNS.entries()) {
      const values = this.#values[column];
      const number = value(sample, last.sample, (at - last.at) / 1000);
      if (values !== undefined) values[index] = number ?? Number.NaN;
    }
    this.#added += 1;
  }

  list(): SeriesList {
    return {
      intervalSeconds: SAMPLE_INTERVAL / 1000,
      times: this.#inOrder(this.#times),
      series: COLUMNS.map(({ name, title, unit }, column) => ({
        name,
        title,
        unit,
        values: this.#inOrder(this.#values[column]).map((value) =>
          Number.isNaN(value) ? null : value,
        ),
      })),
    };
  }

  /** The values of a ring, the oldest first. */
  #inOrder(ring: Float64Array = new Float64Array()): number[] {
    if (this.#added <= SAMPLES) return [...ring.subarray(0, this.#added)];
    const start = this.#added % SAMPLES;
    return [...ring.subarray(start), ...ring.subarray(0, start)];
  }
}
