import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';

const SCRIPT = new URL('../../scripts/in-debian.sh', import.meta.url).pathname;

describe('in-debian: tests in a container on the kernel of this machine', () => {
  let directory: string;
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-debian-'));
    mkdirSync(join(directory, 'net'));
    command('docker', 'printf "%s\\n" "$@"');
    command('modprobe', ':');
    command('apt-cache', 'exit 1');
  });
  afterEach(() => rmSync(directory, { recursive: true, force: true }));

  /** Replaces a command of the script. */
  const command = (name: string, script: string) =>
    writeFileSync(join(directory, name), `#!/bin/sh\n${script}\n`, { mode: 0o755 });

  const run = async (...args: string[]) => {
    const env = { PATH: `${directory}:${process.env.PATH}`, PROC: directory };
    const result = await execa(SCRIPT, args, { env, reject: false });
    return { status: result.exitCode, stdout: result.stdout, stderr: result.stderr };
  };

  it('passes target and variables to make', async () => {
    const { status, stdout, stderr } = await run('test-kernels', 'KERNELS=6.12');
    assert.deepEqual([status, stderr], [0, '']);
    const lines = stdout.split('\n');
    assert.ok(lines.includes('--privileged'));
    assert.deepEqual(lines.slice(-3), ['make', 'test-kernels', 'KERNELS=6.12']);
  });

  it('names all modules that the kernel lacks, and what they are for', async () => {
    command('modprobe', 'case "$1" in veth | nfnetlink_queue) exit 1 ;; esac');
    const { status, stdout, stderr } = await run('test');
    assert.deepEqual([status, stdout], [1, '']);
    assert.match(
      stderr,
      /^The kernel \S+ lacks modules that the tests need: veth \(network namespaces\) nfnetlink_queue \(DNS queue\)\.$/,
    );
  });

  it("refuses to run beside the kernel's SCTP, which would answer packets of the tests", async () => {
    mkdirSync(join(directory, 'net/sctp'));
    const { status, stderr } = await run('test');
    assert.equal(status, 1);
    assert.match(stderr, /^The kernel module sctp is loaded .*modprobe -r sctp$/);
  });
});
