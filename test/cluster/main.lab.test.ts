import assert from 'node:assert/strict';
import {
  chmodSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { execa } from 'execa';
import { waitFor } from '../lab/wait.ts';
import { cgroupMounts } from './cgroups.ts';

const DAEMON = 'exec sleep 1000';
/** Scripts in place of Kubernetes' programs. */
const PROGRAMS: Readonly<Record<string, string>> = {
  etcd: DAEMON,
  containerd: DAEMON,
  'containerd-shim-runc-v2': '',
  runc: '',
  ctr: '',
  // The proxy serves. Each node has its own /run.
  curl: 'test -e /run/serving',
  kubectl: '',
  kubelet: DAEMON,
  'kube-apiserver': DAEMON,
  'kube-controller-manager': DAEMON,
  'kube-scheduler': DAEMON,
  'kube-proxy': `case $1 in --cleanup) ;; *) grep -q nftables "\${1#*=}" && : >/run/serving && ${DAEMON}; echo no iptables; exit 2 ;; esac`,
  'e2e.test': `for flag; do case $flag in --report-dir=*)
    echo '<testcase name="[It] serves"></testcase>' >"\${flag#*=}/junit_01.xml" ;; esac; done
    [ -z "$HANG" ] || sleep 1000`,
};

describe('make test-cluster', () => {
  let directory: string;

  before(() => {
    directory = mkdtempSync(join(tmpdir(), 'cluster-test-'));
    for (const name of ['bin', 'images', 'tmp']) mkdirSync(join(directory, name));
    writeFileSync(join(directory, 'images/pause.tar'), '');
    const plugins = ['ptp', 'portmap', 'host-local', 'loopback'].map((name) => [name, '']);
    for (const [name, script] of [...Object.entries(PROGRAMS), ...plugins]) {
      const path = join(directory, 'bin', name ?? '');
      writeFileSync(path, `#!/bin/sh\n${script}\n`);
      chmodSync(path, 0o755);
    }
  });
  after(() => rmSync(directory, { recursive: true }));

  const start = (modes: string, more: Record<string, string> = {}) => {
    const at = (name: string) => join(directory, name);
    rmSync(at('report'), { recursive: true, force: true });
    const paths = { KUBE_BIN: at('bin'), IMAGES: at('images'), REPORT: at('report') };
    return execa(process.execPath, [join(import.meta.dirname, 'main.ts')], {
      env: { ...paths, TMPDIR: at('tmp'), MODES: modes, NODES: '1', ...more },
      reject: false,
    });
  };

  const assertNothingIsLeft = (output: string) => {
    const id = /portwide-cluster-(\w+)/.exec(output)?.[1] ?? assert.fail(output);
    assert.deepEqual(readdirSync(join(directory, 'tmp')), []);
    for (const mount of cgroupMounts()) {
      assert(!readdirSync(mount).includes(`portwide-cluster-${id}`), mount);
    }
  };

  it('writes a table of all modes, also if a proxy does not start', async () => {
    const { stdout, exitCode } = await start('kube-proxy-iptables kube-proxy-nftables');
    assert.equal(exitCode, 1, stdout);
    const table = readFileSync(join(directory, 'report/table.md'), 'utf8');
    assert.match(
      table,
      /\| kube-proxy-iptables \| 0 \| 0 \| 0 \| kube-proxy-iptables-node-1 exited: 2 no iptables \|/,
    );
    assert.match(table, /\| kube-proxy-nftables \| 1 \| 0 \| 0 \| {2}\|/);
    assertNothingIsLeft(stdout);
  });

  it('removes the cluster after Ctrl-C', async () => {
    const run = start('kube-proxy-nftables', { HANG: 'yes' });
    let output = '';
    run.stdout.on('data', (data) => {
      output += data;
    });
    await waitFor('tests', () => output.includes('e2e.test'), 60_000);
    run.kill('SIGINT');
    const { stdout, exitCode, stderr } = await run;
    assert.equal(exitCode, 1, stderr);
    assert.match(stdout, /The cluster has been removed/);
    assertNothingIsLeft(stdout);
  });
});
