import assert from 'node:assert/strict';
import { parse } from 'yaml';
import { identities } from './certificates.ts';
import { layOut } from './layout.ts';
import { readOptions } from './options.ts';
import { planRun } from './plan.ts';
import type { Step } from './steps.ts';

const layout = layOut('ab12', '/tmp', 3, ['/sys/fs/cgroup/cpu', '/sys/fs/cgroup/pids']);

function plan(environment: Record<string, string> = {}) {
  const options = readOptions(environment, '/report');
  return planRun(options, { layout, root: '/src', cni: '/cni', archives: ['/images/a.tar'] });
}

const contentOf = (steps: readonly Step[], end: string) => {
  const step = steps.find((each) => each.kind === 'file' && each.path.endsWith(end));
  return step?.kind === 'file' ? step.content : assert.fail(end);
};

describe('identities', () => {
  it('names users and groups as RBAC and the node authorizer expect them', () => {
    const subjects = Object.fromEntries(
      identities(layout).map(({ name, subject }) => [name, subject]),
    );
    assert.equal(subjects['node-3'], '/O=system:nodes/CN=system:node:node-3');
    assert.equal(subjects.portwide, '/CN=system:serviceaccount:kube-system:portwide');
    assert.equal(subjects['kube-proxy'], '/CN=system:kube-proxy');
    assert.equal(subjects.admin, '/O=system:masters/CN=admin');
  });

  it('lists the names and addresses of the API server and the kubelets', () => {
    const [apiserver, ...rest] = identities(layout);
    assert(apiserver?.alternatives?.includes('DNS:kubernetes.default.svc'));
    assert(apiserver?.alternatives?.includes('IP:10.96.0.1'));
    assert.deepEqual(rest.at(-1)?.alternatives, ['DNS:node-3', 'IP:10.89.0.13']);
  });
});

describe('planRun', () => {
  it('routes the pods of each node through its address', () => {
    const commands = plan().cluster.flatMap((step) =>
      step.kind === 'run' ? [`${step.on}: ${step.command.join(' ')}`] : [],
    );
    assert(commands.includes('control: ip route add 10.88.3.0/24 via 10.89.0.13'));
    assert(commands.includes('node-1: ip route add 10.88.2.0/24 via 10.89.0.12'));
    assert(!commands.includes('node-1: ip route add 10.88.1.0/24 via 10.89.0.11'));
    assert(commands.includes('machine: mkdir -p /sys/fs/cgroup/pids/portwide-cluster-ab12/node-2'));
  });

  it('gives each kubelet its own cgroup and certificate', () => {
    const config = parse(contentOf(plan().cluster, 'node-2/kubelet.yaml'));
    assert.equal(config.cgroupRoot, '/portwide-cluster-ab12/node-2');
    assert.equal(config.tlsCertFile, '/tmp/portwide-cluster-ab12/pki/node-2.crt');
  });

  it('configures kube-proxy and Portwide alike, each with its own rights', () => {
    const modes = plan({ MODES: 'kube-proxy-iptables iptables' }).modes;
    const [theirs, ours] = modes.map(({ mode, start }) =>
      JSON.parse(contentOf(start, `proxy-${mode}.json`)),
    );
    assert.equal(theirs.mode, 'iptables');
    assert.equal(
      ours.clientConnection.kubeconfig,
      '/tmp/portwide-cluster-ab12/portwide.kubeconfig',
    );
    assert.deepEqual({ ...ours, clientConnection: theirs.clientConnection }, theirs);
  });

  it('deploys CoreDNS only if its image is set', () => {
    const deploys = (image: string) =>
      plan({ COREDNS_IMAGE: image }).cluster.some(
        (step) => step.kind === 'file' && step.path.endsWith('coredns.yaml'),
      );
    assert.equal(deploys(''), false);
    assert.equal(deploys('coredns:1.12'), true);
  });
});
