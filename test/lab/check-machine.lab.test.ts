import assert from 'node:assert/strict';
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { execa, execaSync } from 'execa';

const SCRIPT = new URL('../../scripts/check-machine.sh', import.meta.url).pathname;

/** Runs a script from standard input in a root directory that is not a mount point. */
const IN_CHROOT = `
set -e
for name in usr bin sbin lib lib64 etc proc sys dev; do
  if [ -L "/$name" ]; then cp -d "/$name" "$1/$name"
  elif [ -d "/$name" ]; then mkdir "$1/$name" && mount --rbind "/$name" "$1/$name"
  fi
done
mkdir "$1/run"
exec chroot "$1" sh -s
`;

describe('check-machine: requirements of the demo and the tests', () => {
  let directory: string;
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-machine-'));
  });
  afterEach(() => rmSync(directory, { recursive: true, force: true }));

  const check = async (options: {
    command?: readonly string[];
    env?: Readonly<Record<string, string>>;
    inputFile?: string;
  }) => {
    const [file = SCRIPT, ...args] = options.command ?? [];
    const { env = {}, inputFile = '/dev/null' } = options;
    const result = await execa(file, args, { env, inputFile, reject: false });
    return { status: result.exitCode, stdout: result.stdout, stderr: result.stderr };
  };

  /** Replaces a command by one that fails for certain arguments. */
  const stub = (command: string, pattern: string) => {
    const { stdout: real } = execaSync('which', [command]);
    const script = `#!/bin/dash\ncase "$*" in ${pattern}) echo 'no luck' >&2; exit 1 ;; esac\nexec ${real} "$@"\n`;
    writeFileSync(join(directory, command), script, { mode: 0o755 });
  };

  it('prints nothing if the machine meets all requirements', async () => {
    assert.deepEqual(await check({}), { status: 0, stdout: '', stderr: '' });
  });

  it('suggests a bind mount for the root of a chroot', async () => {
    const command = ['unshare', '--mount', '--propagation=private', 'sh', '-c', IN_CHROOT];
    const { status, stderr } = await check({
      command: [...command, 'sh', directory],
      inputFile: SCRIPT,
    });
    assert.equal(status, 1);
    assert.match(
      stderr,
      /^This machine cannot run commands in a network namespace \(.*\): .*run: mount --bind DIRECTORY DIRECTORY\.$/,
    );
  });

  it('prints missing capabilities', async () => {
    const command = ['setpriv', '--bounding-set=-all', '--inh-caps=-all', SCRIPT];
    const { status, stderr } = await check({ command });
    assert.equal(status, 1);
    assert.match(
      stderr,
      /^This machine cannot create network namespaces \(.*\): .*CAP_SYS_ADMIN.*\.$/,
    );
  });

  it('stops `make` before any target runs', async () => {
    const root = join(directory, 'root');
    mkdirSync(join(root, 'node_modules/.bin'), { recursive: true });
    cpSync(dirname(SCRIPT), join(root, 'scripts'), { recursive: true });
    // As if npm had installed the lock file.
    for (const file of ['package-lock.json', 'node_modules/.package-lock.json']) {
      writeFileSync(join(root, file), '');
    }
    writeFileSync(join(root, 'node_modules/.bin/node'), '#!/bin/sh\n', { mode: 0o755 });
    stub('ip', '*veth*');
    const { status, stderr } = await check({
      command: [join(root, 'scripts/setup.sh'), 'demo'],
      env: { PATH: `${directory}:${process.env.PATH}` },
    });
    assert.equal(status, 1);
    assert.match(stderr, /^This machine cannot create veth pairs \(no luck\): /);
  });

  for (const [what, command, pattern, advice] of [
    ['a kernel without veth', 'ip', '*veth*', /veth pairs \(no luck\): .*modprobe veth/],
    [
      'a kernel without nf_tables',
      'nft',
      '*',
      /nf_tables tables \(no luck\): .*modprobe nf_tables/,
    ],
    ['a read-only /proc/sys', 'sh', '*ip_forward*', /sysctls .*\/proc\/sys must/],
  ] as const) {
    it(`prints one sentence for ${what}`, async () => {
      stub(command, pattern);
      const { status, stderr } = await check({ env: { PATH: `${directory}:${process.env.PATH}` } });
      assert.equal(status, 1);
      assert.match(stderr, advice);
      assert.equal(stderr.split('\n').length, 1, stderr);
    });
  }
});
