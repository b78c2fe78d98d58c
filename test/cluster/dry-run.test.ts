import assert from 'node:assert/strict';
import { join } from 'node:path';
import { execa } from 'execa';

const MAIN = join(import.meta.dirname, 'main.ts');

describe('make test-cluster DRY_RUN=1', () => {
  let lines: string[];

  before(async () => {
    const env = { NODES: '2', MODES: 'kube-proxy-nftables ipvs', COREDNS_IMAGE: 'coredns:1' };
    const { stdout } = await execa(process.execPath, [MAIN, '--dry-run'], { env });
    lines = stdout.split('\n');
  });

  const indexOf = (start: string) => {
    const index = lines.findIndex((line) => line.startsWith(start));
    assert.notEqual(index, -1, `no line starts with: ${start}`);
    return index;
  };

  it('prints each command with its host, in order', () => {
    const order = [
      '[machine] openssl req -x509 -subj /CN=portwide-cluster',
      '[machine] unshare: namespaces of control',
      '[machine] unshare: namespaces of node-2',
      '[control] etcd ',
      '[control] kube-apiserver ',
      '[control] until kubectl ',
      '[control] kube-controller-manager ',
      '[control] kube-scheduler ',
      '[node-1] containerd ',
      "[node-1] ctr --address=/run/containerd/containerd.sock --namespace=k8s.io images import 'IMAGES/*.tar'",
      '[node-1] kubelet ',
      '[node-2] kubelet ',
      '# kube-proxy-nftables',
      '[node-2] kube-proxy --config=',
      '[control] e2e.test ',
      '[machine] stop kube-proxy-nftables-node-1',
      '[node-1] kube-proxy --cleanup',
      '# ipvs',
      `[node-1] ${join(MAIN, '../../../portwide')} run --config=`,
      '[machine] stop portwide-ipvs-node-1',
      '[machine] end all namespaces',
    ];
    const found = order.map(indexOf);
    assert.deepEqual(
      found,
      found.toSorted((a, b) => a - b),
    );
  });

  it('prints each file with its content', () => {
    const start = indexOf('[machine] write ') - 1;
    const files = lines.slice(start).filter((line) => line.startsWith('[machine] write '));
    const names = files.map((line) => line.split('portwide-cluster-ID/')[1]);
    for (const name of [
      'admin.kubeconfig',
      'node-2/kubelet.yaml',
      'node-2/containerd.toml',
      'node-2/cni/10-portwide.conflist',
      'coredns.yaml',
      'proxy-ipvs.json',
    ])
      assert(names.includes(name), name);
    assert.equal(
      lines[indexOf(`${files.find((line) => line.endsWith('/containerd.toml'))}`) + 1],
      '    version = 2',
    );
  });

  it('leaves out tests of policies with kube-proxy, which enforces none', () => {
    const [withKubeProxy = '', withPortwide = ''] = lines.filter((line) =>
      line.startsWith('[control] e2e.test'),
    );
    assert.match(withKubeProxy, /ginkgo\.skip=[^']*Netpol/);
    assert.doesNotMatch(withPortwide, /ginkgo\.skip=[^']*Netpol/);
    assert.match(withPortwide, /ginkgo\.focus=[^']*Netpol/);
  });

  it('removes the cgroups and the directory of the cluster', () => {
    const end = lines.slice(indexOf('[machine] end all namespaces'));
    assert(end.some((line) => /remove cgroup .*\/portwide-cluster-ID$/.test(line)));
    assert.match(end.at(-1) ?? '', /rm -r .*\/portwide-cluster-ID$/);
  });

  it('lists all missing programs in one error, with their source', async () => {
    const env = { PATH: '/nonexistent', KUBE_BIN: '/empty', MODES: 'kube-proxy-iptables' };
    const run = execa(process.execPath, [MAIN], { env, reject: false });
    const { stderr, exitCode } = await run;
    assert.equal(exitCode, 1);
    assert.match(stderr, /^Programs are missing in KUBE_BIN \(\/empty\) and PATH:\n/);
    assert.match(stderr, / kubelet, kubectl, kube-proxy: kubernetes-server-linux-ARCH\.tar\.gz /);
    assert.match(stderr, /\n {2}containerd, containerd-shim-runc-v2, ctr: Debian package/);
  });

  it('refuses a mode or a number of nodes that it does not know', async () => {
    for (const [env, message] of [
      [{ MODES: 'nftables eBPF' }, /unknown mode eBPF; use nftables, iptables, ipvs/],
      [{ NODES: '0' }, /NODES=0: must be a number from 1 to 9/],
    ] as const) {
      const { stderr } = await execa(process.execPath, [MAIN, '--dry-run'], { env, reject: false });
      assert.match(stderr, message);
    }
  });
});
