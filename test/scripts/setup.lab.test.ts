import assert from 'node:assert/strict';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { ROOT } from '../deploy/manifests.ts';

/** A machine whose PATH has only the commands in `bin`. */
describe('setup without network namespaces', () => {
  let root: string;
  let bin: string;
  beforeEach(() => {
    root = mkdtempSync(join(tmpdir(), 'portwide-setup-'));
    bin = join(root, 'bin');
    for (const each of [bin, join(root, 'scripts')]) mkdirSync(each);
    cpSync(join(ROOT, 'scripts/setup.sh'), join(root, 'scripts/setup.sh'));
    writeFileSync(join(root, 'package-lock.json'), '');
    for (const name of ['dirname', 'touch', 'mkdir', 'chmod'])
      command(name, `/usr/bin/${name} "$@"`);
    for (const name of ['gzip', 'dpkg-deb']) command(name, '');
  });
  afterEach(() => rmSync(root, { recursive: true }));

  const command = (name: string, script: string) =>
    writeFileSync(join(bin, name), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  const setUp = (user: number) => {
    command('id', `echo ${user}`);
    const script = join(root, 'scripts/setup.sh');
    const env = { PATH: bin, ROOT: root };
    return execa(script, ['--modules', 'dist'], { env, extendEnv: false, reject: false });
  };
  /** Records its arguments, and installs the modules as npm does. */
  const npm = `echo "$@" >>"$ROOT/npm.log"
mkdir -p node_modules/.bin
echo >node_modules/.package-lock.json
echo '#!/bin/sh' >node_modules/.bin/node
chmod +x node_modules/.bin/node`;

  it('names missing packages if it is not run as root', async () => {
    command('apt-get', 'exit 9');
    const { exitCode, stderr } = await setUp(1000);
    assert.equal(exitCode, 1);
    assert.match(
      stderr,
      /^Packages are missing\. Install them as root: apt-get install .* npm git( debian-archive-keyring)?$/,
    );
  });

  it('names the Debian package of apt-get on other systems', async () => {
    const { exitCode, stderr } = await setUp(0);
    assert.equal(exitCode, 1);
    assert.match(stderr, / npm git apt/);
  });

  it('installs them as root', async () => {
    command('apt-get', 'echo "$@" >>"$ROOT/apt.log"');
    await setUp(0);
    assert.match(readFileSync(join(root, 'apt.log'), 'utf8'), /^update .*\ninstall .* npm git/);
  });

  it('needs no root if nothing is missing, and installs modules once for each lock file', async () => {
    for (const name of ['apt-get', 'git']) command(name, '');
    command('npm', npm);
    const calls = () => readFileSync(join(root, 'npm.log'), 'utf8').split('\n').length - 1;
    for (const expected of [1, 1]) {
      const { exitCode, stderr } = await setUp(1000);
      assert.equal(exitCode, 0, stderr);
      assert.equal(calls(), expected);
    }
    // Newer than what is installed.
    await execa('touch', ['-d', 'tomorrow', join(root, 'package-lock.json')]);
    await setUp(1000);
    assert.equal(calls(), 2);
  });
});
