import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { execa } from 'execa';
import { VERSION } from '../../process/version.ts';
import { artefacts, DEADLINE, digests, makeArtefacts, NAME, WORK } from './artefacts.ts';

describe('artefacts of a release', function () {
  this.timeout(DEADLINE);
  let directory = '';

  before(async () => {
    directory = await artefacts();
  });

  it('two builds write the same bytes', async () => {
    // Paths of different lengths must not appear in the files, or in hashes.
    const second = await makeArtefacts('second', 'a/longer/temporary');
    assert.deepEqual(digests(second), digests(directory));
  });

  it('SHA256SUMS has the digest of each file', async () => {
    const { stdout } = await execa('sha256sum', ['-c', 'SHA256SUMS'], { cwd: directory });
    assert.equal(stdout.split('\n').length, readdirSync(directory).length - 1);
  });

  describe('tar.gz of an architecture', () => {
    const tree = join(WORK, NAME);

    before(async () => {
      await execa('tar', ['-xzf', join(directory, `${NAME}.tar.gz`), '-C', WORK]);
    });

    it('runs without other files, and finds its koffi', async () => {
      const program = join(tree, 'portwide');
      const env = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' };
      const { stdout } = await execa(program, ['version'], { env, extendEnv: false });
      assert.match(stdout, new RegExp(`v?${VERSION}`));
      // Opens a netlink socket with koffi.
      const marks = await execa(program, ['ipvs', 'marks'], { env, reject: false });
      assert.doesNotMatch(marks.stderr, /Cannot find|ERR_MODULE/);
    });

    it('has licences, and neither source maps nor sources', async () => {
      for (const file of ['LICENSE', 'bundle/LICENSES', 'node_modules/node/LICENSE']) {
        assert.ok(existsSync(join(tree, file)), file);
      }
      const { stdout } = await execa('tar', ['-tzf', join(directory, `${NAME}.tar.gz`)]);
      assert.doesNotMatch(stdout, /\.(map|ts|cc|h)$/m);
    });

    it('with the source maps, stack traces name lines of the sources', async () => {
      const copy = join(WORK, 'with-maps');
      mkdirSync(copy);
      await execa('cp', ['-a', `${tree}/.`, copy]);
      const maps = join(directory, `portwide-${VERSION}-sourcemaps.tar.gz`);
      await execa('tar', ['-xzf', maps, '-C', copy]);
      const failure = 'data:text/javascript,process.stdout.write=null';
      const { stderr } = await execa(join(copy, 'portwide'), ['version'], {
        env: { NODE_OPTIONS: `--enable-source-maps --import ${failure}` },
        reject: false,
      });
      assert.match(stderr, /\/cmd\/version\.ts:\d+:\d+/);
    });
  });
  describe('npm package', () => {
    const prefix = join(WORK, 'npm');

    before(async () => {
      const file = join(directory, `portwide-npm-${VERSION}.tgz`);
      const flags = ['--prefer-offline', '--ignore-scripts', '--no-audit', '--no-fund'];
      await execa('npm', ['install', '--global', '--prefix', prefix, ...flags, file]);
    });

    it('puts both programs in PATH, and finds koffi', async () => {
      const program = join(prefix, 'bin/portwide');
      assert.equal((await execa(program, ['version'])).stdout, VERSION);
      const marks = await execa(program, ['ipvs', 'marks'], { reject: false });
      assert.doesNotMatch(marks.stderr, /Cannot find|ERR_MODULE/);
      const { stdout } = await execa(join(prefix, 'bin/kubectl-portwide'), ['--help']);
      assert.match(stdout, /^Usage: kubectl portwide/);
    });

    it('has a bundle instead of sources, and depends only on koffi', async () => {
      const installed = join(prefix, 'lib/node_modules/portwide');
      const names = readdirSync(join(installed, 'node_modules'));
      assert.deepEqual(
        names.filter((name) => !name.startsWith('.')),
        ['@koromix', 'koffi'],
      );
      assert.deepEqual(
        readdirSync(installed).filter((name) => name !== 'node_modules'),
        ['LICENSE', 'README.md', 'bundle', 'kubectl-portwide', 'package.json', 'portwide'],
      );
    });

    it('names the version of Node.js if that of the system is too old', async () => {
      const old = join(WORK, 'old');
      mkdirSync(old);
      writeFileSync(join(old, 'node'), '#!/bin/sh\necho v20.1.0\n', { mode: 0o755 });
      const { exitCode, stderr } = await execa(join(prefix, 'bin/portwide'), ['version'], {
        env: { PATH: `${old}:/usr/bin:/bin` },
        reject: false,
      });
      assert.equal(exitCode, 1);
      assert.equal(stderr, 'portwide: Node.js 24 or later is needed');
    });
  });
});
