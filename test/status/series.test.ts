import assert from 'node:assert/strict';
import fc from 'fast-check';
import { type Sample, SeriesRecorder } from '../../status/series.ts';

function sample(fields: Partial<Sample> = {}): Sample {
  return {
    syncs: 0,
    syncSeconds: 0,
    conntrackEntries: 0,
    services: 0,
    endpoints: 0,
    cpuSeconds: 0,
    memory: 0,
    ...fields,
  };
}

const valuesOf = (recorder: SeriesRecorder, name: string) =>
  recorder.list().series.find((series) => series.name === name)?.values;

describe('series: the last 15 minutes', () => {
  it('shows rates of counters, and values as they are', () => {
    const recorder = new SeriesRecorder();
    recorder.add(sample({ syncs: 10, cpuSeconds: 1 }), 1_000_000);
    recorder.add(sample({ syncs: 13, cpuSeconds: 1.5, memory: 7 }), 1_005_000);
    assert.deepEqual(recorder.list().times, [1005]);
    assert.deepEqual(valuesOf(recorder, 'syncs'), [3]);
    assert.deepEqual(valuesOf(recorder, 'cpu'), [0.1]);
    assert.deepEqual(valuesOf(recorder, 'memory'), [7]);
  });

  it('has null for an unknown value', () => {
    const recorder = new SeriesRecorder();
    recorder.add(sample(), 0);
    recorder.add(sample({ conntrackEntries: undefined }), 5000);
    assert.deepEqual(valuesOf(recorder, 'conntrackEntries'), [null]);
  });

  it('ignores a sample after the clock was set back', () => {
    const recorder = new SeriesRecorder();
    for (const at of [10_000, 15_000, 2000, 7000]) recorder.add(sample(), at);
    assert.deepEqual(recorder.list().times, [15, 7]);
  });

  it('keeps the latest 180 samples, in order', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 800 }), (count) => {
        const recorder = new SeriesRecorder();
        for (let index = 0; index <= count; index++) {
          recorder.add(sample({ services: index }), index * 5000);
        }
        const expected = Array.from({ length: count }, (_, index) => index + 1).slice(-180);
        assert.deepEqual(valuesOf(recorder, 'services'), expected);
        assert.deepEqual(
          recorder.list().times,
          expected.map((index) => index * 5),
        );
      }),
      { numRuns: 30 },
    );
  });

  it('answers with less than 2 MB', () => {
    const recorder = new SeriesRecorder();
    for (let index = 0; index < 1000; index++) {
      recorder.add(sample({ memory: index * 1e9 + 1 / 3, cpuSeconds: index / 7 }), index * 5001);
    }
    assert.ok(JSON.stringify(recorder.list()).length < 50_000);
  });
});
