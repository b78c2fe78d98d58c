import assert from 'node:assert/strict';
import { existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { execa } from 'execa';
import { VERSION } from '../../process/version.ts';
import { artefacts, digests, makeArtefacts, NAME, WORK } from './artefacts.ts';

describe('artefacts of a release', function () {
  this.timeout(300_000);
  let directory = '';

  before(async () => {
    directory = await artefacts();
  });

  it('two builds write the same bytes', async () => {
    // Paths of different lengths must not appear in the files, or in hashes.
    const second = await makeArtefacts('second', 'a/longer/temporary');
    assert.deepEqual(digests(second), digests(directory));
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
});
