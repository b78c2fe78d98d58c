import assert from 'node:assert/strict';
import { cpSync, globSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import {
  compareVersions,
  replaceVersion,
  VERSIONED_FILES,
} from '../../scripts/release/versions.ts';

const ROOT = new URL('../..', import.meta.url).pathname;
const SCRIPT = join(ROOT, 'scripts/release.ts');
const { version: VERSION } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'));
const NEXT = '77.0.0';
const CHANGELOG = '# Changelog\n\n## [Unreleased]\n\n### Added\n\n- Something new.\n';
/** Notes the last commit and the version. */
const MAKEFILE =
  'dist:\n\t@git log -1 --format=%s >built; grep \'"version"\' package.json >>built\n';

describe('release', () => {
  let directory: string;

  /** A repository with the files of this checkout that a release reads. */
  beforeEach(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-release-'));
    const names = ['package.json', 'package-lock.json', 'README.md', 'CONTRIBUTING.md', 'docs'];
    for (const name of [...names, 'Containerfile', 'deploy', '.github']) {
      cpSync(join(ROOT, name), join(directory, name), { recursive: true });
    }
    write('CHANGELOG.md', CHANGELOG);
    write('Makefile', MAKEFILE);
    write('.gitignore', 'built\n');
    await git('init', '--quiet', '--initial-branch=main');
    await commit('Begin');
  });
  afterEach(() => rmSync(directory, { recursive: true, force: true }));

  const write = (path: string, text: string) => writeFileSync(join(directory, path), text);
  const read = (path: string) => readFileSync(join(directory, path), 'utf8');
  const env = {
    ...{ GIT_CONFIG_GLOBAL: '/dev/null', GIT_CONFIG_SYSTEM: '/dev/null' },
    ...{ GIT_AUTHOR_NAME: 'test', GIT_AUTHOR_EMAIL: 'test@portwide.invalid' },
    ...{ GIT_COMMITTER_NAME: 'test', GIT_COMMITTER_EMAIL: 'test@portwide.invalid' },
  };
  const git = async (...args: string[]) =>
    (await execa('git', args, { cwd: directory, env })).stdout;
  const commit = async (subject: string) => {
    await git('add', '--all');
    await git('commit', '--quiet', '--message', subject);
  };

  /** Runs the script with a command in place of the tests. */
  const release = async (version: string, test = 'true', ...flags: string[]) => {
    const args = [SCRIPT, '--test', test, ...flags, version];
    const result = await execa(process.execPath, args, { cwd: directory, env, reject: false });
    return { status: result.exitCode, stdout: result.stdout, stderr: result.stderr };
  };

  const isUntouched = async () => {
    assert.equal(await git('log', '--format=%s'), 'Begin');
    assert.equal(await git('diff', 'HEAD'), '');
    assert.equal(JSON.parse(read('package.json')).version, VERSION);
  };

  it('sets the version, moves the changelog section, commits and tags', async () => {
    const { status, stdout, stderr } = await release(NEXT, 'test -n "$(git diff --name-only)"');
    assert.deepEqual([status, stderr], [0, '']);
    assert.match(stdout, /tagged v77\.0\.0; publish it with: git push --follow-tags$/);
    assert.equal(await git('log', '-1', '--format=%s'), `Release ${NEXT}`);
    assert.equal(await git('cat-file', '-t', `v${NEXT}`), 'tag');
    assert.equal(await git('status', '--porcelain'), '');
    const lock = JSON.parse(read('package-lock.json'));
    assert.deepEqual([lock.version, lock.packages[''].version], [NEXT, NEXT]);
    const before = readFileSync(join(ROOT, 'package-lock.json'), 'utf8');
    assert.equal(
      read('package-lock.json').replaceAll(`"version": "${NEXT}"`, `"version": "${VERSION}"`),
      before,
      'nothing else changes',
    );
    assert.match(
      read('CHANGELOG.md'),
      /^## \[Unreleased\]\n\n## \[77\.0\.0\] - \d{4}-\d\d-\d\d\n\n### Added\n\n- Something new\.\n/m,
    );
    for (const file of ['deploy/base', 'deploy/dns'].map((name) => `${name}/kustomization.yaml`)) {
      assert.match(read(file), /newTag: "?77\.0\.0"?$/m, file);
    }
    assert.match(read('deploy/krew/portwide.yaml'), /^ {2}version: v77\.0\.0$/m);
    assert.match(read('README.md'), /Version 77\.0\.0/);
  });

  it('builds all artefacts from the commit of the release', async () => {
    await release(NEXT);
    assert.match(read('built'), /^Release 77\.0\.0\n.*"77\.0\.0"/);
  });

  it('takes its commit back if the artefacts fail', async () => {
    write('Makefile', 'dist:\n\t@false\n');
    await git('commit', '--quiet', '--amend', '--no-edit', '--all');
    assert.equal((await release(NEXT)).status, 1);
    await isUntouched();
    assert.equal(await git('tag'), '');
  });

  it('writes the notes of the version that package.json has', async () => {
    await release(NEXT);
    const notes = join(directory, 'built');
    assert.equal((await release(NEXT, 'true', '--notes', notes)).status, 0);
    assert.equal(read('built'), '### Added\n\n- Something new.\n');
    assert.match((await release('78.0.0', 'true', '--notes', notes)).stderr, /package\.json is 77/);
  });

  it('refuses a second release without new entries', async () => {
    await release(NEXT);
    const { status, stderr } = await release('78.0.0');
    assert.equal(status, 1);
    assert.equal(stderr, 'release: CHANGELOG.md has no entry under [Unreleased]');
  });

  it('refuses a section with headings only', async () => {
    write('CHANGELOG.md', CHANGELOG.replace('- Something new.', ''));
    await commit('No entry');
    const { stderr } = await release(NEXT);
    assert.equal(stderr, 'release: CHANGELOG.md has no entry under [Unreleased]');
  });

  for (const [what, path] of [
    ['a changed file', 'README.md'],
    ['a new file', 'new.txt'],
  ] as const) {
    it(`refuses a tree with ${what}, and names it`, async () => {
      write(path, 'changed');
      const { status, stderr } = await release(NEXT);
      assert.equal(status, 1);
      assert.ok(stderr.startsWith('release: the tree is dirty'), stderr);
      assert.ok(stderr.includes(path), stderr);
    });
  }

  for (const version of ['1.9.9', '1.10.0']) {
    it(`refuses ${version} after 1.10.0`, async () => {
      await git('tag', 'v1.9.0');
      await git('tag', 'v1.10.0');
      await git('tag', 'vnext');
      const { status, stderr } = await release(version);
      assert.equal(status, 1);
      assert.equal(stderr, `release: ${version} is not above the last release 1.10.0`);
      await isUntouched();
    });
  }

  for (const version of ['', '1.2', 'v1.2.3', '01.2.3', '1.2.3-rc.1']) {
    it(`refuses "${version}" as a version`, async () => {
      const { status, stderr } = await release(version);
      assert.equal(status, 1);
      assert.match(stderr, /^release: VERSION must be three numbers/);
    });
  }

  it('restores all files if the tests fail', async () => {
    const { status } = await release(NEXT, 'false');
    assert.equal(status, 1);
    await isUntouched();
    assert.equal(await git('tag'), '');
  });
});

describe('release: versions', () => {
  it('are compared by numbers', () => {
    assert.deepEqual(['1.10.0', '0.9.9', '1.9.10', '1.9.9'].sort(compareVersions), [
      ...['0.9.9', '1.9.9', '1.9.10', '1.10.0'],
    ]);
  });

  it('of other programs are left alone', () => {
    const text = 'nft 1.0.6, Portwide 1.0.6, portwide:1.0.6, 11.0.6, Portwide 1.0.60\n  tag: 1.0.6';
    assert.equal(
      replaceVersion(text, '1.0.6', '1.1.0'),
      'nft 1.0.6, Portwide 1.1.0, portwide:1.1.0, 11.0.6, Portwide 1.0.60\n  tag: 1.1.0',
    );
  });

  it('are replaced in every place of this checkout', () => {
    const exact = new RegExp(`(?<![\\d.])${VERSION.replaceAll('.', '\\.')}(?![\\d.]*\\d)`, 'g');
    const files = globSync(['*.md', 'Containerfile', '{docs,deploy,.github}/**/*.{md,y*ml,json}'], {
      cwd: ROOT,
    });
    for (const file of files.filter((each) => each !== 'CHANGELOG.md')) {
      const text = readFileSync(join(ROOT, file), 'utf8');
      const isReplaced = globSync(VERSIONED_FILES, { cwd: ROOT }).includes(file);
      const rest = isReplaced ? replaceVersion(text, VERSION, NEXT) : text;
      const own = [...rest.matchAll(exact)].filter(
        ({ index }) => !/nft $/.test(rest.slice(0, index)),
      );
      assert.deepEqual(
        own.map(([found]) => found),
        [],
        file,
      );
    }
  });
});
