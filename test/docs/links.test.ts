import assert from 'node:assert/strict';
import { existsSync, globSync, readFileSync } from 'node:fs';
import { basename, dirname, join, normalize } from 'node:path';
import { anchors, codeSpans, PAGES, ROOT, readPage, relativeLinks } from './page.ts';

/** Pages that GitHub looks for at the root. */
const ROOT_PAGES = ['CHANGELOG.md', 'CONTRIBUTING.md', 'SECURITY.md'];

/** @returns what is wrong with the link; undefined if it resolves. */
function brokenLink(page: string, link: string): string | undefined {
  const [path = '', anchor] = link.split('#');
  const target = path === '' ? page : normalize(join(dirname(page), path));
  if (!existsSync(join(ROOT, target))) return `${link}: no file ${target}`;
  if (anchor === undefined) return undefined;
  const headings = anchors(readFileSync(join(ROOT, target), 'utf8'));
  return headings.includes(anchor) ? undefined : `${link}: no heading in ${target}`;
}

describe('links of the pages', () => {
  for (const page of [...PAGES, ...ROOT_PAGES]) {
    it(`resolve, with their anchors: ${page}`, () => {
      const broken = relativeLinks(readPage(page)).flatMap((link) => brokenLink(page, link) ?? []);
      assert.deepEqual(broken, []);
    });
  }

  it('reach every page from README.md', () => {
    const reached = new Set(['README.md']);
    for (const page of reached) {
      for (const link of relativeLinks(readPage(page))) {
        const [path = ''] = link.split('#');
        const target = normalize(join(dirname(page), path));
        if (path !== '' && PAGES.includes(target)) reached.add(target);
      }
    }
    assert.deepEqual([...reached].sort(), [...PAGES].sort());
  });
});

describe('SECURITY.md', () => {
  it('names tests and sources that exist', () => {
    const files = globSync('{api,config,scripts,test}/**', { cwd: ROOT });
    const names = new Set(files.map((file) => basename(file)));
    const named = codeSpans(readPage('SECURITY.md')).filter((span) =>
      /^(api|config|test)\/|\.ts$/.test(span),
    );
    assert.ok(named.length > 15);
    for (const span of named) {
      const isKnown = span.includes('/')
        ? globSync(span, { cwd: ROOT }).length > 0
        : names.has(span);
      assert.ok(isKnown, span);
    }
  });
});

describe('the form of the pages', () => {
  for (const page of PAGES.filter((each) => !each.startsWith('docs/develop/'))) {
    it(`begin with a title and a line that names their readers: ${page}`, () => {
      assert.match(readPage(page), /^# .+\n\n(<!-- .+ -->\n\n)?\*?For .+\n/);
    });
  }

  it('README.md has at most 120 lines', () => {
    assert.ok(readPage('README.md').split('\n').length <= 121);
  });
});
