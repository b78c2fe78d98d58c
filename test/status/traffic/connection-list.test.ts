import assert from 'node:assert/strict';
import fc from 'fast-check';
import { ConnectionList } from '../../../status/traffic/connection-list.ts';

/** Text of a connection: its state and time. */
type Given = readonly [string | undefined, number | undefined];

function listOf(limit: number, given: readonly Given[]) {
  const list = new ConnectionList<string>(limit);
  for (const [tcpState, startedAt] of given) {
    const details = { tcpState, startedAt, counters: undefined };
    list.add(details, () => `${tcpState ?? 'none'} ${startedAt ?? ''}`.trim());
  }
  return { rows: list.rows(), total: list.total };
}

describe('traffic: connections of a Service', () => {
  it('has established ones first, then closing ones, then closed ones, the older first', () => {
    const { rows, total } = listOf(10, [
      ['TIME_WAIT', 1],
      ['ESTABLISHED', 5],
      ['CLOSE', 0],
      ['SYN_SENT', 3],
      [undefined, 4],
      ['ESTABLISHED', 2],
    ]);
    assert.deepEqual(rows, [
      ...['ESTABLISHED 2', 'none 4', 'ESTABLISHED 5'],
      ...['SYN_SENT 3', 'CLOSE 0', 'TIME_WAIT 1'],
    ]);
    assert.equal(total, 6);
  });

  it('keeps the order of the dump if the kernel has no times', () => {
    const { rows } = listOf(2, [
      ['TIME_WAIT', undefined],
      ['FIN_WAIT', undefined],
      ['ESTABLISHED', undefined],
      ['SYN_SENT', undefined],
    ]);
    assert.deepEqual(rows, ['ESTABLISHED', 'FIN_WAIT']);
  });

  it('has the first of all, however many there are', () => {
    const entry = fc.tuple(
      fc.constantFrom('TIME_WAIT', 'ESTABLISHED', 'FIN_WAIT'),
      fc.integer({ min: 0, max: 50 }),
    );
    fc.assert(
      fc.property(
        fc.array(entry, { maxLength: 60 }),
        fc.integer({ min: 1, max: 9 }),
        (all, limit) => {
          const few = listOf(limit, all);
          assert.deepEqual(few.rows, listOf(1000, all).rows.slice(0, limit));
          assert.equal(few.total, all.length);
        },
      ),
    );
  });
});
