/** Reads the documentation pages for the tests that check them. */
import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

export const ROOT = new URL('../..', import.meta.url).pathname;

/** Paths of all pages, relative to the root of the repository. */
export const PAGES: readonly string[] = ['README.md', ...globSync('docs/**/*.md', { cwd: ROOT })];

/** @param path relative to the root of the repository. */
export function readPage(path: string): string {
  return readFileSync(join(ROOT, path), 'utf8');
}

/** The texts of the fenced blocks of one language, in their order. */
export function fencedBlocks(page: string, language: string): string[] {
  const blocks = page.matchAll(/^ *```(\w*)\n(.*?)^ *```$/gms);
  return [...blocks].filter(([, name]) => name === language).map(([, , text = '']) => text);
}

/** The page without its fenced blocks. */
export function prose(page: string): string {
  return page.replaceAll(/^ *```.*?^ *```$/gms, '');
}

/** The texts between single backticks outside fenced blocks. */
export function codeSpans(page: string): string[] {
  return [...prose(page).matchAll(/`([^`\n]+)`/g)].map(([, text = '']) => text);
}

/** Anchors of the headings, as GitHub forms them. */
export function anchors(page: string): string[] {
  const headings = [...prose(page).matchAll(/^#+ (.*)$/gm)].map(([, title = '']) => title);
  return headings.map((title) =>
    title
      .toLowerCase()
      .replaceAll(/[^\p{L}\p{N}_ -]/gu, '')
      .replaceAll(' ', '-'),
  );
}

/** Targets of the links that do not begin with a URL scheme. */
export function relativeLinks(page: string): string[] {
  const targets = [...prose(page).matchAll(/\]\(([^)\s]+)\)/g)].map(([, target = '']) => target);
  return targets.filter((target) => !/^\w+:/.test(target));
}

/** A command and the output that the page shows below it, without the last newline. */
export interface ShownCommand {
  readonly command: string;
  readonly output: string;
}

/** Splits a block of language `console`: commands after `$ `, each with its output. */
export function consoleCommands(block: string): ShownCommand[] {
  return block
    .split(/^\$ /m)
    .slice(1)
    .map((text) => {
      const [command = '', ...output] = text.trimEnd().split('\n');
      return { command, output: output.join('\n') };
    });
}
