/** How an agent uses its own Node. */
import assert from 'node:assert/strict';
import { createLab, iptablesRules, type Lab, waitFor } from '../lab/lab.ts';
import { Agent, IPTABLES_FLAGS } from './agent.ts';
import { type Manifest, nodeManifest, serviceManifest, sliceManifest } from './manifests.ts';

const FLAGS = [...IPTABLES_FLAGS, '--iptables-variant=nft'];
const WAITING = 'waiting for pod CIDRs of the Node';
const ENDING = 'pod CIDRs of the Node changed; exiting for a restart';

describe('an agent and its Node', () => {
  let lab: Lab;
  let agent: Agent;
  beforeEach(async () => {
    lab = await createLab({ pods: 1, remotePods: 0 });
    agent = new Agent(lab);
    agent.write('objects', [
      serviceManifest('web', { spec: { clusterIPs: ['10.96.0.10', 'fd00:10:96::10'] } }),
      sliceManifest('web', 4, lab.pods, { ports: [{ name: '', port: 80 }] }),
    ]);
  });
  afterEach(async () => {
    await agent?.destroy();
    await lab?.destroy();
  });
  const nat = (family: 4 | 6) => iptablesRules(lab.node, 'nft', family, 'nat');
  const serving = () => agent.logged('serving').map(({ family }) => family);

  const node = (podCIDRs: readonly string[], taints: readonly { key: string }[] = []): Manifest => {
    const manifest = nodeManifest([lab.node.ipv4, lab.node.ipv6], { taints });
    return { ...manifest, spec: { ...(manifest.spec as object), podCIDRs } };
  };
  const healthz = async (): Promise<Record<string, unknown>> => {
    const answer = await lab.node.httpGet('http://127.0.0.1:10256/healthz');
    if ('error' in answer) throw new Error(answer.error);
    return { code: answer.code, ...(JSON.parse(answer.body) as Record<string, unknown>) };
  };

  it('waits for pod CIDRs with --detect-local-mode=NodeCIDR, and exits when they change', async () => {
    const flags = [...FLAGS, '--detect-local-mode=NodeCIDR', '--cluster-cidr='];
    agent.write('node', [node([])]);
    const { ended } = agent.launch(flags);
    await waitFor('it waits', () => agent.logged(WAITING).length === 1, 20_000);
    // Other changes of the Node do not matter.
    agent.write('node', [node([], [{ key: 'ToBeDeletedByClusterAutoscaler' }])]);
    const { code, waitingFor } = await waitFor(
      'it has received the change',
      async () => {
        const answer = await healthz();
        return answer.nodeEligible === false ? answer : undefined;
      },
      20_000,
    );
    assert.deepEqual(
      [code, waitingFor],
      [503, ['pod CIDRs of Node "node" (--detect-local-mode=NodeCIDR)']],
    );
    assert.doesNotMatch(await nat(4), /KUBE-/);

    agent.write('node', [node(['10.244.1.0/24', 'fd00:10:244:1::/64'])]);
    await waitFor('it serves', () => serving().length === 2, 20_000);
    assert.match(await nat(4), /! -s 10\.244\.1\.0\/24 .*-j KUBE-MARK-MASQ/);
    const before = await nat(4);

    agent.write('node', [node(['10.244.7.0/24', 'fd00:10:244:1::/64'])]);
    assert.match(await ended, /exit code 1/);
    assert.deepEqual(
      agent.logged(ENDING).map(({ level, now }) => [level, now]),
      [[50, ['10.244.7.0/24', 'fd00:10:244:1::/64']]],
    );
    assert.equal(await nat(4), before);
  });

  it('serves only IPv4 where IPv6 is disabled, and logs it', async () => {
    await lab.node.exec('sysctl', ['-q', '-w', 'net.ipv6.conf.all.disable_ipv6=1']);
    agent.launch(FLAGS);
    await waitFor('it serves', () => serving().length === 1, 20_000);
    const [left] = agent.logged('iptables is not supported for this IP family; not serving it');
    assert.deepEqual([left?.family, left?.level], ['IPv6', 40]);
    assert.match(String(left?.reason), /disable_ipv6/);
    assert.deepEqual(serving(), ['IPv4']);
    assert.doesNotMatch(await nat(6), /KUBE-/);
    const { code, status } = await healthz();
    assert.deepEqual([code, Object.keys(status as object)], [200, ['IPv4']]);
  });
});
