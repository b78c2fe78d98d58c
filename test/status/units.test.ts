import assert from 'node:assert/strict';
import fc from 'fast-check';
import {
  age,
  ago,
  humanBytes,
  humanDuration,
  humanNumber,
  shortDuration,
  shortList,
} from '../../status/print/units.ts';

const MINUTE = 60;
const HOUR = 3600;
const DAY = 24 * HOUR;
const YEAR = 365 * DAY;

describe('status/print/units: humanDuration', () => {
  // The cases of TestHumanDuration in k8s.io/apimachinery/pkg/util/duration.
  for (const [seconds, expected] of [
    [1, '1s'],
    [70, '70s'],
    [190, '3m10s'],
    [70 * MINUTE, '70m'],
    [47 * HOUR, '47h'],
    [49 * HOUR, '2d1h'],
    [8 * DAY + 2 * HOUR, '8d'],
    [367 * DAY, '367d'],
    [400 * DAY, '400d'],
    [2 * YEAR + 25 * HOUR, '2y1d'],
    [8 * YEAR + 2 * HOUR, '8y'],
    [8 * YEAR + 364 * DAY, '8y'],
    [-2, '<invalid>'],
    [-2.1, '<invalid>'],
    [-1.9, '0s'],
    [119, '119s'],
    [120, '2m'],
    [3 * HOUR - 1, '179m'],
    [3 * HOUR, '3h'],
    [5 * HOUR + 20 * MINUTE, '5h20m'],
    [8 * HOUR - 1, '7h59m'],
    [3 * DAY, '3d'],
    [3 * YEAR, '3y'],
  ] as const) {
    it(`prints ${seconds} s as ${expected}`, () => assert.equal(humanDuration(seconds), expected));
  }

  it('loses at most an eighth of the duration', () => {
    const unit: Record<string, number> = { y: YEAR, d: DAY, h: HOUR, m: MINUTE, s: 1 };
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 20 * YEAR }), (seconds) => {
        const parts = [...humanDuration(seconds).matchAll(/(\d+)([ydhms])/g)];
        const printed = parts.reduce(
          (sum, [, count, name = '']) => sum + Number(count) * (unit[name] ?? Number.NaN),
          0,
        );
        return printed <= seconds && seconds - printed <= seconds / 8;
      }),
    );
  });
});

describe('status/print/units: humanNumber and humanBytes', () => {
  for (const [value, number, bytes] of [
    [null, '<unknown>', '<unknown>'],
    [0, '0', '0B'],
    [0.04, '0', '0B'],
    [0.5, '0.5', '0.5B'],
    [9.96, '10', '10B'],
    [999.4, '999', '999B'],
    [999.6, '1k', '1000B'],
    [1023.6, '1k', '1KiB'],
    [1234, '1.2k', '1.2KiB'],
    [34_500_000, '35M', '33MiB'],
    [5e12, '5T', '4.5TiB'],
    [7e15, '7000T', '6366TiB'],
  ] as const) {
    it(`prints ${value} as ${number} and ${bytes}`, () =>
      assert.deepEqual([humanNumber(value), humanBytes(value)], [number, bytes]));
  }

  it('is off by at most one part in nineteen, and never longer than seven characters', () => {
    const powers: Record<string, number> = { '': 0, k: 1, M: 2, G: 3, T: 4 };
    fc.assert(
      fc.property(fc.double({ min: 1, max: 9e14, noNaN: true }), (value) => {
        const [, digits = '', unit = ''] = /^([\d.]+)([kMGT]?)$/.exec(humanNumber(value)) ?? [];
        const printed = Number(digits) * 1000 ** (powers[unit] ?? Number.NaN);
        return Math.abs(printed - value) <= value / 19 && humanBytes(value).length <= 7;
      }),
    );
  });
});

describe('status/print/units', () => {
  const now = Date.parse('2026-03-01T12:00:00Z');

  it('prints an age, also of a missing or unreadable time', () => {
    assert.equal(age('2026-03-01T11:59:00Z', now), '60s');
    assert.equal(age(null, now), '<unknown>');
    assert.equal(age('yesterday', now), '<unknown>');
    assert.equal(ago(null, now), 'never');
    assert.equal(ago('2026-03-01T11:00:00Z', now), '60m ago');
  });

  it('prints durations of syncs', () => {
    assert.deepEqual([null, 0.0124, 0.9996, 1.25].map(shortDuration), [
      '<none>',
      '12ms',
      '1000ms',
      '1.3s',
    ]);
  });

  it('shortens a long list as kubectl does', () => {
    assert.equal(shortList([]), '<none>');
    assert.equal(shortList(['a', 'b', 'c']), 'a,b,c');
    assert.equal(shortList(['a', 'b', 'c', 'd', 'e']), 'a,b,c + 2 more...');
  });
});
