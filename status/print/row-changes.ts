/** Finds the rows that changed between two readings of a list. Pure. */

export interface RowChanges<Row> {
  /** New and changed rows, in their order. */
  readonly changed: readonly Row[];
  readonly deleted: readonly Row[];
}

/** Remembers the last reading of a list. */
export class WatchedRows<Row extends object> {
  readonly #key: (row: Row) => string;
  #rows: ReadonlyMap<string, { readonly row: Row; readonly text: string }> = new Map();

  /** @param key tells rows apart. */
  constructor(key: (row: Row) => string) {
    this.#key = key;
  }

  /** Compares with the previous reading; the first time, every row is new. */
  update(rows: readonly Row[]): RowChanges<Row> {
    const before = this.#rows;
    const after = new Map(
      rows.map((row) => [this.#key(row), { row, text: JSON.stringify(row) }] as const),
    );
    this.#rows = after;
    const isChanged = ([key, { text }]: readonly [string, { readonly text: string }]) =>
      before.get(key)?.text !== text;
    return {
      changed: [...after].filter(isChanged).map(([, { row }]) => row),
      deleted: [...before].filter(([key]) => !after.has(key)).map(([, { row }]) => row),
    };
  }
}
