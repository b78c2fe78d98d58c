import assert from 'node:assert/strict';
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { PAGES, prose, ROOT, readPage } from './page.ts';

/** Folders without production code. */
const OTHER = ['node_modules', 'test', 'bench', 'docs'];

/** Headers of table columns whose code spans quote the agent. */
const QUOTING_COLUMNS = ['Log message', '`waitingFor`'];

/** Texts in the columns of tables that quote the agent. */
function quotesInTables(page: string): string[] {
  const quotes: string[] = [];
  let columns: readonly number[] = [];
  let isInTable = false;
  for (const line of prose(page).split('\n')) {
    if (!line.startsWith('|')) {
      isInTable = false;
      continue;
    }
    const cells = line.split(/(?<!\\)\|/).map((cell) => cell.trim());
    if (!isInTable) columns = QUOTING_COLUMNS.map((name) => cells.indexOf(name));
    else for (const column of columns) quotes.push(...spansOf(cells[column] ?? ''));
    isInTable = true;
  }
  return quotes;
}

function spansOf(text: string): string[] {
  return [...text.matchAll(/`([^`]+)`/g)].map(([, span = '']) => span);
}

/** Texts in emphasized code, *`like this`*, which is how the pages quote log messages and errors. */
function emphasizedQuotes(page: string): string[] {
  return [...prose(page).matchAll(/(?<!\*)\*`([^`]+)`\*(?!\*)/g)].map(([, text = '']) => text);
}

/** Messages of log lines that fenced blocks show as text. */
function shownLogLines(page: string): string[] {
  const lines = [...page.matchAll(/^\S+Z (?:INFO|WARN|ERROR) (.*?) \w+=/gm)];
  return lines.map(([, message = '']) => message);
}

/** String and template literals that a line break splits are joined. */
const source = globSync('**/*.ts', { cwd: ROOT, exclude: (name) => OTHER.includes(name) })
  .map((file) => readFileSync(join(ROOT, file), 'utf8'))
  .join('\n')
  .replaceAll(/['`] \+\s+['`]/g, '');

describe('log messages and errors that the pages quote', () => {
  for (const page of PAGES.filter((each) => !each.startsWith('docs/develop/'))) {
    const text = readPage(page);
    const quotes = [...quotesInTables(text), ...emphasizedQuotes(text), ...shownLogLines(text)];
    if (quotes.length === 0) continue;

    it(`exist in the source: ${page}`, () => {
      // An ellipsis stands for what varies.
      const parts = quotes.flatMap((quote) => quote.split('…')).map((part) => part.trim());
      assert.deepEqual(
        parts.filter((part) => part !== '' && !source.includes(part)),
        [],
      );
    });
  }

  it('are found in the log table of docs/operate/troubleshoot.md', () => {
    assert.ok(quotesInTables(readPage('docs/operate/troubleshoot.md')).length >= 10);
  });
});
