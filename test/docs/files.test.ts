import assert from 'node:assert/strict';
import { globSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';

const ROOT = new URL('../..', import.meta.url).pathname;

describe('files: the pages', () => {
  const files = globSync('**/*.ts', { cwd: ROOT, exclude: ['node_modules'] });
  const names = new Set(files.map((file) => basename(file)));
  const known = new Set(files);

  for (const page of ['README.md', ...globSync('docs/*.md', { cwd: ROOT })]) {
    it(`name files that are there: ${page}`, () => {
      const text = readFileSync(join(ROOT, page), 'utf8');
      const named = [...text.matchAll(/`([\w./-]+\.ts)`/g)].map(([, name = '']) => name);
      const isThere = (name: string) => (name.includes('/') ? known.has(name) : names.has(name));
      assert.deepEqual(
        named.filter((name) => !isThere(name)),
        [],
      );
    });
  }
});
