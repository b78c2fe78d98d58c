/** Formats results as rows of Markdown tables. */

/** Timeout of an operation in seconds. */
export const LIMIT = 120;

/** Values of one operation; `late` if it took longer than `LIMIT`. */
export type CellValues = readonly number[] | 'late' | undefined;

/** A row: title, value of a report, number of digits. */
export type TableRow<Report> = readonly [
  what: string,
  of: (report: Report) => number,
  digits: number,
];

export function printRow(...cells: readonly (string | number)[]): void {
  console.log(`| ${cells.join(' | ')} |`);
}

/** Prints a row with the median over all reports for each of `rows`. */
export function printRows<Report>(
  reports: readonly Report[],
  rows: readonly TableRow<Report>[],
  ...first: readonly (string | number)[]
): void {
  for (const [what, of, digits] of rows) printRow(...first, what, cell(reports.map(of), digits));
}

/** The median, with minimum and maximum. */
export function cell(values: CellValues, digits: number): string {
  if (values === 'late') return `> ${LIMIT}`;
  if (values === undefined || values.length === 0) return '–';
  const middle = median(values).toFixed(digits);
  if (values.length === 1) return middle;
  return `${middle} (${Math.min(...values).toFixed(digits)}–${Math.max(...values).toFixed(digits)})`;
}

export function percentiles(values: readonly number[], digits: number): string {
  if (values.length === 0) return '–';
  const [middle, high] = [50, 99].map((percent) => percentile(values, percent).toFixed(digits));
  return `p50 ${middle}, p99 ${high}`;
}

/** The median of `theirs` divided by the median of `ours`, such as `2.1×`; empty if a value is missing. */
export function ratio(ours: CellValues, theirs: CellValues): string {
  if (ours === 'late' || ours === undefined || theirs === undefined) return '';
  if (ours.length === 0 || theirs.length === 0) return '';
  const times = (value: number) => {
    const quotient = value / median(ours);
    return `${quotient < 99.5 ? quotient.toPrecision(2) : quotient.toFixed()}×`;
  };
  return theirs === 'late' ? `> ${times(LIMIT)}` : times(median(theirs));
}

/** @throws RangeError if there are no values. */
export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const upper = sorted[Math.floor(sorted.length / 2)];
  const lower = sorted[Math.ceil(sorted.length / 2) - 1];
  if (upper === undefined || lower === undefined) throw new RangeError('median of no values');
  return (lower + upper) / 2;
}

/**
 * The smallest value that `percent` percent of the values do not exceed.
 * @throws RangeError if there are no values.
 */
export function percentile(values: readonly number[], percent: number): number {
  const sorted = values.toSorted((a, b) => a - b);
  const value = sorted[Math.ceil((sorted.length * percent) / 100) - 1];
  if (value === undefined) throw new RangeError('percentile of no values');
  return value;
}
