/**
 * `node scripts/release.ts VERSION` makes a release of the current commit: sets the version, moves
 * the section Unreleased of CHANGELOG.md, runs the tests, commits, builds the artefacts and tags.
 * It pushes nothing. `--test COMMAND` runs another command instead of `make test`.
 *
 * `node scripts/release.ts --notes FILE VERSION` writes the changelog section of a version, for the
 * release workflow.
 */
import { globSync, readFileSync, writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { execa } from 'execa';
import { changelogSection, releaseSection } from './release/changelog.ts';
import {
  compareVersions,
  replaceVersion,
  setPackageVersion,
  VERSIONED_FILES,
} from './release/versions.ts';

/** A reason not to release, for the person who called the script. */
class Refusal extends Error {}

const read = (path: string) => readFileSync(path, 'utf8');
const currentVersion = () => (JSON.parse(read('package.json')) as { version: string }).version;

async function git(...args: string[]): Promise<string> {
  return (await execa('git', args)).stdout;
}

async function checkReleasable(version: string): Promise<void> {
  const changes = await git('status', '--porcelain');
  if (changes !== '') throw new Refusal(`the tree is dirty; commit or remove:\n${changes}`);
  const tags = (await git('tag', '--list', 'v*')).split('\n').map((tag) => tag.slice(1));
  const [last] = tags
    .filter((tag) => /^\d+\.\d+\.\d+$/.test(tag))
    .sort(compareVersions)
    .reverse();
  if (last !== undefined && compareVersions(version, last) <= 0)
    throw new Refusal(`${version} is not above the last release ${last}`);
  const unreleased = changelogSection(read('CHANGELOG.md'), 'Unreleased');
  // Headings of kinds alone, such as "### Added", say nothing.
  if (unreleased?.replaceAll(/^#.*$/gm, '').trim() === '' || unreleased === undefined)
    throw new Refusal('CHANGELOG.md has no entry under [Unreleased]');
}

type Edit = [path: string, edit: (text: string) => string];

/** Writes the version into all files. Returns the files that changed. */
function setVersion(version: string): string[] {
  const old = currentVersion();
  const date = new Date().toISOString().slice(0, 10);
  const edits: Edit[] = [
    ['package.json', (text) => setPackageVersion(text, version)],
    ['package-lock.json', (text) => setPackageVersion(text, version)],
    ['CHANGELOG.md', (text) => releaseSection(text, version, date)],
    ...VERSIONED_FILES.flatMap((pattern) => globSync(pattern))
      .sort()
      .map((path): Edit => [path, (text) => replaceVersion(text, old, version)]),
  ];
  const changed: string[] = [];
  for (const [path, edit] of edits) {
    const text = read(path);
    const edited = edit(text);
    if (edited === text) continue;
    writeFileSync(path, edited);
    changed.push(path);
  }
  return changed;
}

async function release(version: string, test: string): Promise<void> {
  await checkReleasable(version);
  const changed = setVersion(version);
  const stdio = 'inherit';
  try {
    await execa('sh', ['-c', test], { stdio });
  } catch (error) {
    // The tree was clean: nothing else is lost.
    await git('restore', '--', ...changed);
    throw error;
  }
  // Before the artefacts, which name their commit.
  await git('commit', '--quiet', '--message', `Release ${version}`, '--', ...changed);
  try {
    await execa('make', ['dist'], { stdio });
  } catch (error) {
    await git('reset', '--quiet', '--keep', 'HEAD~1');
    throw error;
  }
  await git('tag', '--annotate', `v${version}`, '--message', `Portwide ${version}`);
  console.log(`tagged v${version}; publish it with: git push --follow-tags`);
}

function writeNotes(version: string, file: string): void {
  if (version !== currentVersion())
    throw new Refusal(`the version in package.json is ${currentVersion()}, not ${version}`);
  const section = changelogSection(read('CHANGELOG.md'), version);
  if (section === undefined) throw new Refusal(`CHANGELOG.md has no section [${version}]`);
  writeFileSync(file, `${section}\n`);
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { test: { type: 'string', default: 'make test' }, notes: { type: 'string' } },
});
try {
  const [version = ''] = positionals;
  if (!/^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)$/.test(version))
    throw new Refusal(`VERSION must be three numbers, such as 1.2.3, not "${version}"`);
  if (values.notes === undefined) await release(version, values.test);
  else writeNotes(version, values.notes);
} catch (error) {
  if (!(error instanceof Refusal)) throw error;
  console.error(`release: ${error.message}`);
  process.exitCode = 1;
}
