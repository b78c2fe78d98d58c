import assert from 'node:assert/strict';
import { InvalidObject } from '../../api/errors.ts';
import { readService } from '../../api/read-service.ts';

describe('read-metadata: reading metadata', () => {
  const times: readonly (readonly [unknown, string | undefined])[] = [
    ['2026-01-02T03:04:05Z', '2026-01-02T03:04:05Z'],
    ['2026-01-02T03:04:05.999z', '2026-01-02T03:04:05Z'],
    ['2026-01-02T03:04:05+02:00', '2026-01-02T01:04:05Z'],
    ['2026-01-01T00:30:00+01:00', '2025-12-31T23:30:00Z'],
    [new Date(Date.UTC(2026, 0, 2, 3, 4, 5)), '2026-01-02T03:04:05Z'],
    [null, ''],
    ['', ''],
    ['2026-02-29T00:00:00Z', undefined],
    ['2024-02-29T00:00:00Z', '2024-02-29T00:00:00Z'],
    ['2026-13-01T00:00:00Z', undefined],
    ['2026-01-02T24:00:00Z', undefined],
    ['0000-01-01T00:00:00+23:00', undefined],
    ['2026-01-02', undefined],
    ['2026-01-02T03:04:05', undefined],
    ['yesterday', undefined],
    [new Date(Number.NaN), undefined],
    [1767323045, undefined],
  ];
  for (const [given, expected] of times) {
    it(`reads the time ${String(given)} as ${expected}`, () => {
      const read = () =>
        readService({ metadata: { name: 'a', creationTimestamp: given }, spec: {} })
          .creationTimestamp;
      if (expected === undefined)
        assert.throws(read, { name: 'InvalidObject', field: 'metadata.creationTimestamp' });
      else assert.equal(read(), expected);
    });
  }

  it('labels an object in printable ASCII, with ? for an unreadable name', () => {
    const named = (metadata: unknown) => () => readService({ metadata });
    const object = (expected: string) => (error: unknown) =>
      error instanceof InvalidObject && error.object === expected;
    assert.throws(named({ name: 'a' }), object('Service default/a'));
    assert.throws(named({ name: 'A\n\u202e', namespace: 'b' }), object('Service b/A\\n\\u202e'));
    assert.throws(named(undefined), object('Service default/?'));
  });
});
