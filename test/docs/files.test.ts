import assert from 'node:assert/strict';
import { existsSync, globSync } from 'node:fs';
import { basename, join } from 'node:path';
import { DNS_SETTINGS } from '../../config/dns-settings.ts';
import { flagOf } from '../../config/setting.ts';
import { ALL_SETTINGS } from '../../config/settings.ts';
import { codeSpans, fencedBlocks, PAGES, prose, ROOT, readPage } from './page.ts';

/** Flags of `portwide` subcommands that are no settings. */
const COMMAND_FLAGS = [
  '--pod',
  '--from',
  '--to',
  '--port',
  '--protocol',
  '--namespace',
  '--no-service-links',
  '--state',
  '--vip',
  '--expect-text',
  '--live',
  '--service',
  '--ip-family',
  '--netns',
  '--seed',
  '--agent',
  '--all-nodes',
];
/** Flags of other programs. */
const FOREIGN_FLAGS = [
  ...['--allow-privileged', '--feature-gates', '--runtime-config'],
  ...[
    '--ignore-preflight-errors',
    '--skip-phases',
    '--pod-network-cidr',
    '--query',
    '--name',
    '--check',
    '--enable-source-maps',
    '--help',
  ],
];

describe('files and flags that the pages name', () => {
  const sources = globSync('**/*.ts', { cwd: ROOT, exclude: ['node_modules'] });
  const names = new Set(sources.map((file) => basename(file)));
  const known = new Set(sources);
  const exists = (name: string) => (name.includes('/') ? known.has(name) : names.has(name));

  for (const page of PAGES) {
    it(`names only source files that exist: ${page}`, () => {
      const named = [...readPage(page).matchAll(/`([\w./-]+\.ts)`/g)].map(([, name = '']) => name);
      assert.deepEqual(
        named.filter((name) => !exists(name)),
        [],
      );
    });

    it(`names only paths of deploy/, examples/ and scripts/ that exist: ${page}`, () => {
      const text = readPage(page);
      const shown = [...codeSpans(text), ...fencedBlocks(text, 'sh')];
      const spans = shown.flatMap((span) => span.split(/[\s=]/));
      const paths = spans.filter((span) => /^(deploy|examples|scripts)\/[\w./-]*$/.test(span));
      assert.deepEqual(
        paths.filter((path) => !existsSync(join(ROOT, path))),
        [],
      );
    });
  }

  const flags = new Set([
    ...Object.keys({ ...ALL_SETTINGS, ...DNS_SETTINGS }).map(flagOf),
    ...COMMAND_FLAGS,
    ...FOREIGN_FLAGS,
  ]);
  for (const page of PAGES.filter((each) => !each.startsWith('docs/develop/'))) {
    it(`names only flags that exist: ${page}`, () => {
      const spans = codeSpans(prose(readPage(page))).filter(
        (span) => !/^kubectl|iptables-save/.test(span),
      );
      const named = spans.flatMap((span) => span.match(/(?<![\w-])--[a-z][a-z-]*/g) ?? []);
      assert.deepEqual(
        named.filter((flag) => !flags.has(flag)),
        [],
      );
    });
  }
});
