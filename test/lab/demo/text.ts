/** Text output of the demo: plain text of at most 100 columns, with bold headings on a terminal. */
import { styleText } from 'node:util';

const WIDTH = 100;
const INDENT = '   ';

let headings = 0;

/** Prints lines below the current heading. */
export function print(...lines: readonly string[]): void {
  for (const line of lines) process.stdout.write(line === '' ? '\n' : `${INDENT}${line}\n`);
}

/** Prints the next numbered heading. */
export function heading(title: string): void {
  headings += 1;
  print('');
  headline(`${headings}. ${title}`);
}

/** Prints a line at the margin. */
export function headline(text: string): void {
  // styleText alone would apply FORCE_COLOR to a file too.
  const shown = process.stdout.isTTY ? styleText('bold', text) : text;
  process.stdout.write(`${shown}\n`);
}

/** Prints rows under column heads, each column as wide as its widest cell. */
export function table(rows: readonly (readonly string[])[]): void {
  const widths: number[] = [];
  for (const row of rows) {
    for (const [column, cell] of row.entries()) {
      widths[column] = Math.max(widths[column] ?? 0, cell.length);
    }
  }
  for (const row of rows) {
    print(
      row
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join('   ')
        .trimEnd(),
    );
  }
}

/** Wraps a command or rule, with breaks before options. */
export function folded(command: string): string[] {
  const room = WIDTH - 2 * INDENT.length - ' \\'.length;
  const lines: string[] = [];
  let line = '';
  for (const part of command.split(/ (?=-)/)) {
    const longer = line === '' ? part : `${line} ${part}`;
    if (line !== '' && longer.length > room) {
      lines.push(`${line} \\`);
      line = `${INDENT}${part}`;
    } else line = longer;
  }
  return [...lines, line];
}

/** A number with thousands separators: 65,535. */
export function grouped(value: number): string {
  return value.toLocaleString('en-US');
}
