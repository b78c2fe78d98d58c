import assert from 'node:assert/strict';
import { execa } from 'execa';
import { rawVersion } from '../../cmd/version.ts';
import { VERSION } from '../../process/version.ts';
import { PORTWIDE } from '../portwide.ts';

describe('version: --version', () => {
  const run = async (...args: readonly string[]) => {
    const { exitCode, stdout, stderr } = await execa(PORTWIDE, args, { reject: false });
    return { exitCode, stdout, stderr };
  };

  it('prints the version like kube-proxy, also raw, for portwide and for run', async () => {
    for (const command of [[], ['run']]) {
      for (const flag of ['--version', '--version=true']) {
        const result = await run(...command, flag);
        assert.deepEqual(result, { exitCode: 0, stdout: VERSION, stderr: '' });
      }
      assert.equal((await run(...command, '--version=raw')).stdout, rawVersion());
    }
    assert.equal((await run('-V')).stdout, VERSION);
  });

  it("raw has the form of Go's %#v", () => {
    assert.match(
      rawVersion('1.2.3'),
      /^version\.Info\{Major:"1", Minor:"2", GitVersion:"v1\.2\.3", .*Platform:"linux\/\w+"\}$/,
    );
  });

  it('hides preset values in --help', async () => {
    for (const command of [[], ['run'], ['dns']]) {
      const { stdout } = await run(...command, '--help');
      assert.doesNotMatch(stdout, /preset/);
    }
  });

  it('rejects other values', async () => {
    const { exitCode, stderr } = await run('run', '--version=v1.2.3');
    assert.equal(exitCode, 2);
    assert.match(stderr, /Use true, false or raw\./);
  });
});
