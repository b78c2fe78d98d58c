import assert from 'node:assert/strict';
import fc from 'fast-check';
import { formatDuration, parseDuration } from '../../config/duration.ts';

describe('duration: parseDuration and formatDuration', () => {
  for (const [text, ms, printed] of [
    ['0', 0, '0s'],
    ['+0', 0, '0s'],
    ['-0', 0, '0s'],
    ['0s', 0, '0s'],
    ['30s', 30_000, '30s'],
    ['1m30s', 90_000, '1m30s'],
    ['90s', 90_000, '1m30s'],
    ['15m', 900_000, '15m0s'],
    ['24h', 86_400_000, '24h0m0s'],
    ['100h1ms', 360_000_001, '100h0m0.001s'],
    ['1h0.5s', 3_600_500, '1h0m0.5s'],
    ['1.5h', 5_400_000, '1h30m0s'],
    ['.5s', 500, '500ms'],
    ['5.s', 5000, '5s'],
    ['1s1s', 2000, '2s'],
    ['10ms', 10, '10ms'],
    ['1.5ms', 1.5, '1.5ms'],
    ['100us', 0.1, '100\u00b5s'],
    ['1.5\u00b5s', 0.0015, '1.5\u00b5s'],
    ['1\u03bcs', 0.001, '1\u00b5s'],
    ['1ns', 0.000001, '1ns'],
    ['1.9ns', 0.000001, '1ns'],
    ['-1m5s', -65_000, '-1m5s'],
    ['2562047h47m16.854775807s', 9_223_372_036_854.775, undefined],
  ] as const) {
    it(`parses ${text} as ${ms} ms`, () => {
      assert.equal(parseDuration(text), ms);
      assert.ok(!Object.is(parseDuration(text), -0));
      if (printed !== undefined) assert.equal(formatDuration(ms), printed);
    });
  }

  for (const text of [
    ...['', ' ', '30', '-', '+', '.', '.s', '-.s', 's', '1x', '1s ', ' 1s', '1 s', '1S', '1e3s'],
    ...[
      '--1s',
      '1-s',
      '1s-1s',
      '0x1s',
      '1d',
      'Infinity',
      '00',
      '1_0s',
      '1.2.3s',
      '1,5s',
      '\u0661s',
    ],
    ...['2562048h', '9223372036854775808ns', `${'9'.repeat(100)}h`, '9'.repeat(1_000_000)],
  ]) {
    it(`rejects ${JSON.stringify(text).slice(0, 40)}`, () => {
      assert.equal(parseDuration(text), undefined);
    });
  }

  it('round-trips to the nanosecond within a day and to the millisecond within a century', () => {
    const fine = fc.integer({ min: 0, max: 86_400_000_000_000 }).map((ns) => {
      const whole = Math.floor(ns / 1e6);
      return whole + (ns - whole * 1e6) / 1e6;
    });
    const coarse = fc.integer({ min: 0, max: 100 * 365 * 86_400_000 });
    fc.assert(
      fc.property(fc.oneof(fine, coarse), fc.boolean(), (ms, isNegative) => {
        const duration = isNegative && ms !== 0 ? -ms : ms;
        assert.equal(parseDuration(formatDuration(duration)), duration);
      }),
      { seed: 1, numRuns: 2000 },
    );
  });

  it('parses or rejects any text, and round-trips every parsed value', () => {
    const texts = fc.string({
      unit: fc.constantFrom(...'0123456789.+-nu\u00b5\u03bcmsh'),
      maxLength: 12,
    });
    fc.assert(
      fc.property(texts, (text) => {
        const ms = parseDuration(text);
        if (ms === undefined || Math.abs(ms) > 86_400_000) return;
        assert.equal(parseDuration(formatDuration(ms)), ms);
      }),
      { seed: 2, numRuns: 5000 },
    );
  });
});
