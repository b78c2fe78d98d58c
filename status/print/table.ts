/** Tables as kubectl prints them: upper-case headers, columns three spaces apart. */
import { compareText } from '../../api/collections.ts';
import { PLAIN, type Style, safe } from './style.ts';

export interface Column<Row> {
  readonly header: string;
  /** @param now milliseconds since 1970, for ages. */
  readonly cell: (row: Row, now: number) => string;
  /** Least width, for a table whose header is printed before its rows. */
  readonly width?: number;
  /** Only shown with `-o wide`. */
  readonly wide?: boolean;
  /** Only shown in lists of more than one namespace. */
  readonly ofAllNamespaces?: boolean;
  /** Whether the cell is a state word, which gets a colour. */
  readonly isState?: boolean;
  /** The cell of a row that does not exist any longer, in a table that is watched. */
  readonly deleted?: string;
  /** Value for `--sort-by`; default: the text of the cell. */
  readonly sortKey?: (row: Row) => number | string;
}

export interface TableOptions {
  readonly noHeaders?: boolean;
  readonly style?: Style;
}

const GAP = '   ';

/** Prints rows, and the header before the first ones. Later rows keep at least the widths of earlier ones. */
export class Table<Row> {
  readonly #columns: readonly Column<Row>[];
  readonly #style: Style;
  readonly #widths: number[];
  #showsHeader: boolean;

  constructor(columns: readonly Column<Row>[], options: TableOptions = {}) {
    const { noHeaders = false, style = PLAIN } = options;
    this.#columns = columns;
    this.#style = style;
    this.#showsHeader = !noHeaders;
    this.#widths = columns.map(({ width = 0 }) => width);
  }

  /**
   * @param now milliseconds since 1970.
   * @param deleted rows that do not exist any longer, printed last.
   */
  print(rows: readonly Row[], now: number, deleted: readonly Row[] = []): string {
    const cells = [
      ...rows.map((row) => this.#columns.map((column) => safe(column.cell(row, now)))),
      ...deleted.map((row) =>
        this.#columns.map((column) => column.deleted ?? safe(column.cell(row, now))),
      ),
    ];
    if (this.#showsHeader) cells.unshift(this.#columns.map(({ header }) => header));
    for (const [index, width] of this.#widths.entries()) {
      this.#widths[index] = cells.reduce(
        (most, line) => Math.max(most, line[index]?.length ?? 0),
        width,
      );
    }
    const headers = this.#showsHeader ? 1 : 0;
    this.#showsHeader = false;
    return cells.map((line, index) => `${this.#line(line, index >= headers)}\n`).join('');
  }

  #line(cells: readonly string[], isRow: boolean): string {
    const last = cells.length - 1;
    return cells
      .map((cell, index) => {
        const padding = index === last ? '' : ' '.repeat((this.#widths[index] ?? 0) - cell.length);
        const isStyled = isRow && this.#columns[index]?.isState === true;
        return (isStyled ? this.#style(cell) : cell) + padding;
      })
      .join(GAP);
  }
}

/** Prints one table. @param now milliseconds since 1970. */
export function tableText<Row>(
  columns: readonly Column<Row>[],
  rows: readonly Row[],
  now: number,
  options: TableOptions = {},
): string {
  return new Table(columns, options).print(rows, now);
}

/** Names of columns for `--sort-by`. */
export function sortNames<Row>(columns: readonly Column<Row>[]): string[] {
  return columns.map(({ header }) => header.toLowerCase());
}

/**
 * Sorts rows by a column; rows with equal values stay in order.
 * @param by a name of `sortNames`; a leading `-` reverses.
 * @throws TypeError for any other name.
 */
export function sortRows<Row>(
  columns: readonly Column<Row>[],
  rows: readonly Row[],
  by: string,
): Row[] {
  const name = by.replace(/^-/, '');
  const column = columns.find(({ header }) => header.toLowerCase() === name);
  if (column === undefined) throw new TypeError(`no column ${name}`);
  const key = column.sortKey ?? ((row: Row) => column.cell(row, 0));
  const direction = by === name ? 1 : -1;
  return rows
    .map((row) => ({ row, key: key(row) }))
    .sort((a, b) => direction * compareKeys(a.key, b.key))
    .map(({ row }) => row);
}

function compareKeys(a: number | string, b: number | string): number {
  return typeof a === 'number' && typeof b === 'number' ? a - b : compareText(`${a}`, `${b}`);
}
