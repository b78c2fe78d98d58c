import assert from 'node:assert/strict';
import { cpSync, existsSync, globSync } from 'node:fs';
import { basename, join } from 'node:path';
import { execa } from 'execa';
import { VERSION } from '../../process/version.ts';
import { DEPENDS } from '../../scripts/dist/deb.ts';
import { ROOT as CHECKOUT } from '../../scripts/dist/npm-packages.ts';
import { artefacts, DEADLINE, WORK } from './artefacts.ts';

const ROOT = join(WORK, 'root');
/** As in the container image. */
const SUITE = 'bookworm';
const CONFIGURATION = 'etc/portwide/config.yaml';

/** Runs a program in the root, which gets its own /proc. */
function inRoot(...command: string[]) {
  const namespaces = ['--pid', '--fork', `--mount-proc=${ROOT}/proc`];
  const env = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' };
  return execa('unshare', [...namespaces, 'chroot', ROOT, ...command], { env, extendEnv: false });
}

/** All files, except records of dpkg. */
async function filesInRoot(): Promise<string[]> {
  const { stdout } = await execa('find', ['.', '-mindepth', '1', '-printf', '%P\\n'], {
    cwd: ROOT,
  });
  const others = /^(proc|sys|dev|tmp|var\/(lib\/dpkg|log))\//;
  return stdout
    .split('\n')
    .filter((path) => !others.test(path))
    .sort();
}

describe('Debian package in a new root', function () {
  this.timeout(DEADLINE);
  let filesBefore: string[] = [];

  before(async () => {
    const packages = DEPENDS.map((each) => each.replace(/ .*/, '')).join(',');
    const mirror = 'http://deb.debian.org/debian';
    const options = ['--quiet', '--mode=root', '--variant=minbase', `--include=${packages}`];
    await execa('mmdebstrap', [...options, SUITE, ROOT, mirror]);
    cpSync(join(CHECKOUT, 'examples'), join(ROOT, 'examples'), { recursive: true });
    filesBefore = await filesInRoot();
    const [file = ''] = globSync(join(await artefacts(), '*.deb'));
    cpSync(file, join(ROOT, 'tmp', basename(file)));
    await inRoot('dpkg', '--install', `/tmp/${basename(file)}`);
  });

  it('runs from PATH and finds koffi', async () => {
    assert.equal((await inRoot('portwide', 'version')).stdout, VERSION);
    assert.match((await inRoot('kubectl-portwide', '--help')).stdout, /^Usage: kubectl portwide/);
    // Opens a netlink socket with koffi.
    const { stderr } = await inRoot('sh', '-c', 'portwide ipvs marks || true');
    assert.doesNotMatch(stderr, /Cannot find|ERR_MODULE/);
  });

  it('validates and renders the examples', async () => {
    const { stdout } = await inRoot('portwide', 'validate', '--manifests=/examples');
    assert.match(stdout, /\S/);
    const mode = '--proxy-mode=nftables';
    const rules = await inRoot('portwide', 'render', '--manifests=/examples', mode);
    assert.match(rules.stdout, /^table ip portwide/m);
  });

  it('has man pages, completion, the unit and a configuration that the agent takes', async () => {
    for (const path of [
      'usr/share/man/man1/portwide.1.gz',
      'usr/share/man/man1/portwide-run.1.gz',
      'usr/share/man/man1/kubectl-portwide.1.gz',
      'usr/share/bash-completion/completions/portwide',
      'usr/share/zsh/vendor-completions/_portwide',
      'usr/share/fish/vendor_completions.d/portwide.fish',
    ]) {
      assert.ok(existsSync(join(ROOT, path)), path);
    }
    const written = '--write-config-to=/tmp/complete.yaml';
    await inRoot('portwide', 'run', `--config=/${CONFIGURATION}`, written);
    await inRoot('bash', '-c', 'source /usr/share/bash-completion/completions/portwide');
  });

  it('only what dpkg knows and the cache of compiled code was added', async () => {
    const { stdout } = await inRoot('dpkg', '--listfiles', 'portwide');
    const known = new Set([...filesBefore, ...stdout.split('\n').map((path) => path.slice(1))]);
    const all = await filesInRoot();
    const added = all.filter((path) => !known.has(path));
    assert.deepEqual(
      added.filter((path) => !path.startsWith('var/cache/portwide/')),
      [],
    );
    assert.ok(added.length > 0, 'compiled code is cached');
  });

  it('is not enabled', () => {
    assert.deepEqual(globSync(join(ROOT, 'etc/systemd/**/portwide*')), []);
  });

  it('leaves only its configuration when it is removed, and nothing when it is purged', async () => {
    await inRoot('dpkg', '--remove', 'portwide');
    const all = await filesInRoot();
    const left = all.filter((path) => !filesBefore.includes(path));
    assert.deepEqual(left, ['etc/portwide', CONFIGURATION]);
    await inRoot('dpkg', '--purge', 'portwide');
    assert.deepEqual(await filesInRoot(), filesBefore);
  });
});
