/** Checks the prose of docs and sources: CONTRIBUTING.md, "Words". Arguments: files to check; none: all .md and .ts. */
import { globSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { lintProse } from './prose/lint.ts';

/** words.ts contains the rejected words. */
const EXCLUDED = ['node_modules', '.git', 'scripts/prose/words.ts'];
const all = () => globSync('**/*.{md,ts}', { exclude: EXCLUDED }).sort();
const paths = process.argv.length > 2 ? process.argv.slice(2) : all();

let count = 0;
for (const path of paths) {
  const problems = await lintProse(await readFile(path, 'utf8'), path);
  count += problems.length;
  for (const { line, column, rule, message } of problems) {
    console.log(`${path}:${line}:${column}: ${message} (${rule})`);
  }
}
if (count > 0) {
  console.error(`${count} problems; CONTRIBUTING.md, "Words", has the rules`);
  process.exitCode = 1;
}
