import assert from 'node:assert/strict';
import { execa } from 'execa';
import { rawVersion } from '../../cmd/version.ts';
import { VERSION } from '../../process/version.ts';
import { PORTWIDE } from '../portwide.ts';

describe('version: --version', () => {
  const say = async (...args: readonly string[]) => {
    const { exitCode, stdout, stderr } = await execa(PORTWIDE, args, { reject: false });
    return { exitCode, stdout, stderr };
  };

  it('is printed as kube-proxy does, raw too, by itself and of `run`', async () => {
    for (const command of [[], ['run']]) {
      for (const flag of ['--version', '--version=true']) {
        const said = await say(...command, flag);
        assert.deepEqual(said, { exitCode: 0, stdout: VERSION, stderr: '' });
      }
      assert.equal((await say(...command, '--version=raw')).stdout, rawVersion());
    }
    assert.equal((await say('-V')).stdout, VERSION);
  });

  it('raw has the form of Go', () => {
    assert.match(
      rawVersion('1.2.3'),
      /^version\.Info\{Major:"1", Minor:"2", GitVersion:"v1\.2\.3", .*Platform:"linux\/\w+"\}$/,
    );
  });

  it('has no values of the option parser in its help', async () => {
    for (const command of [[], ['run'], ['dns']]) {
      const { stdout } = await say(...command, '--help');
      assert.doesNotMatch(stdout, /preset/);
    }
  });

  it('is nothing else', async () => {
    const { exitCode, stderr } = await say('run', '--version=v1.2.3');
    assert.equal(exitCode, 1);
    assert.match(stderr, /must be true, false or raw/);
  });
});
