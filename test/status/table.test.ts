import assert from 'node:assert/strict';
import fc from 'fast-check';
import { COLOURED, PLAIN, styleFor } from '../../status/print/style.ts';
import { type Column, sortNames, sortRows, Table, tableText } from '../../status/print/table.ts';

interface Pet {
  readonly name: string;
  readonly legs: number;
  readonly state: string;
}

const COLUMNS: readonly Column<Pet>[] = [
  { header: 'NAME', cell: ({ name }) => name },
  { header: 'STATE', cell: ({ state }) => state, isState: true, deleted: 'deleted' },
  { header: 'LEGS', cell: ({ legs }) => `${legs}`, sortKey: ({ legs }) => legs },
];
const CAT: Pet = { name: 'cat', legs: 4, state: 'ready' };
const CENTIPEDE: Pet = { name: 'centipede', legs: 100, state: 'served' };
const BIRD: Pet = { name: 'bird', legs: 2, state: 'refused' };

describe('status/print/table', () => {
  it('aligns columns three spaces apart, without spaces at the end', () => {
    assert.equal(
      tableText(COLUMNS, [CAT, CENTIPEDE], 0),
      'NAME        STATE    LEGS\ncat         ready    4\ncentipede   served   100\n',
    );
  });

  it('omits the header', () => {
    assert.equal(tableText(COLUMNS, [CAT], 0, { noHeaders: true }), 'cat   ready   4\n');
  });

  it('keeps the widths for later rows, without a second header', () => {
    const table = new Table(COLUMNS);
    table.print([CENTIPEDE], 0);
    assert.equal(table.print([CAT], 0), 'cat         ready    4\n');
  });

  it('marks deleted rows', () => {
    const table = new Table(COLUMNS, { noHeaders: true });
    assert.equal(table.print([], 0, [CAT]), 'cat   deleted   4\n');
  });

  it('colours state words only, and aligns as without colours', () => {
    const named: Pet = { ...CAT, name: 'refused' };
    const coloured = tableText(COLUMNS, [named, CENTIPEDE], 0, { style: COLOURED });
    assert.ok(coloured.includes('\nrefused     \u001b[32mready\u001b[39m    4\n'));
    const escapes = new RegExp(`${String.fromCharCode(27)}\\[\\d+m`, 'g');
    assert.equal(coloured.replaceAll(escapes, ''), tableText(COLUMNS, [named, CENTIPEDE], 0));
  });

  it('lets no control character of a cell reach the terminal', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), (name) => {
        const text = tableText(COLUMNS, [{ ...CAT, name }], 0);
        return /^[\x20-\x7e\n]*$/.test(text) && text.split('\n').length === 3;
      }),
    );
  });

  it('sorts by a column: numbers as numbers, `-` in reverse', () => {
    const names = (by: string) =>
      sortRows(COLUMNS, [CENTIPEDE, CAT, BIRD], by).map(({ name }) => name);
    assert.deepEqual(names('legs'), ['bird', 'cat', 'centipede']);
    assert.deepEqual(names('-legs'), ['centipede', 'cat', 'bird']);
    assert.deepEqual(names('name'), ['bird', 'cat', 'centipede']);
    assert.throws(() => names('wings'), TypeError);
    assert.deepEqual(sortNames(COLUMNS), ['name', 'state', 'legs']);
  });
});

describe('status/print/style', () => {
  it('colours only on a terminal that has colours', () => {
    assert.equal(styleFor(true, {}), COLOURED);
    assert.equal(styleFor(true, { NO_COLOR: '' }), COLOURED);
    assert.equal(styleFor(true, { NO_COLOR: '1' }), PLAIN);
    assert.equal(styleFor(true, { TERM: 'dumb' }), PLAIN);
    assert.equal(styleFor(false, {}), PLAIN);
  });
});
