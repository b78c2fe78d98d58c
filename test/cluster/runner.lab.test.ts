import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { cgroupMounts } from './cgroups.ts';
import { layOut } from './layout.ts';
import { networkSteps } from './network.ts';
import { createRunner } from './runner.ts';
import { run, type Step, start, until } from './steps.ts';

describe('createRunner', () => {
  it('connects nodes that change nothing of the machine, and removes them', async () => {
    const hostname = readFileSync('/proc/sys/kernel/hostname', 'utf8');
    const report = mkdtempSync(join(tmpdir(), 'portwide-report-'));
    const layout = layOut(randomBytes(3).toString('hex'), tmpdir(), 2, cgroupMounts());
    const [cgroup = ''] = layout.cgroups;
    const started = join(layout.directory, 'started');
    const { signal } = new AbortController();
    const runner = createRunner(layout, report, process.env.PATH ?? '', signal);
    const steps: readonly Step[] = [
      ...networkSteps(layout),
      run('node-1', 'ping', '-c1', '-w9', '10.89.0.12'),
      run('control', 'ping', '-c1', '-w9', '10.89.0.11'),
      run('node-1', 'sh', '-euc', 'test "$(hostname)" = node-1; : >/run/portwide-cluster-test'),
      run('node-1', 'sysctl', '-qw', 'kernel.panic=77'),
      run('machine', 'mkdir', '-p', join(cgroup, 'node-1/pod')),
      // A process in a session and a cgroup of its own, like a container.
      start(
        'node-1',
        'container',
        'setsid',
        'sh',
        '-c',
        `echo 0 >${cgroup}/node-1/pod/cgroup.procs; sleep 1000 & : >${started}; wait`,
      ),
      until('machine', 'test', '-e', started),
    ];
    try {
      for (const step of steps) await runner.perform(step);
      assert(!existsSync('/run/portwide-cluster-test'));
      assert.notEqual(readFileSync('/proc/sys/kernel/panic', 'utf8'), '77\n');
      assert.equal(readFileSync('/proc/sys/kernel/hostname', 'utf8'), hostname);
      assert.match(readFileSync(`${cgroup}/node-1/pod/cgroup.procs`, 'utf8'), /\d+\n\d+/);
    } finally {
      await runner.destroy();
      rmSync(report, { recursive: true });
    }
    assert(!existsSync(cgroup));
    assert(!existsSync(layout.directory));
  });
});
