import assert from 'node:assert/strict';
import { createLab, type Host, type Lab, waitFor } from '../lab/lab.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { ApiFeed } from './feed.ts';
import { holdTable } from './held-table.ts';
import { ALL_PORTS, serviceManifest, sliceManifest } from './manifests.ts';
import { networkPolicy, policyPods } from './policy-manifests.ts';

const FLAGS = [...AGENT_FLAGS, '--proxy-mode=nftables', '--network-policy'];
const VIPS = ['10.96.0.10', 'fd00:10:96::10'];
const PORT = 8080;
const PROBE = { timeoutMs: 800 };
const ENFORCING = 'enforcing network policies';
const CRDS = [
  'adminnetworkpolicies',
  'baselineadminnetworkpolicies',
  'clusternetworkpolicies',
  'cidrgroups',
];

describe('network policy with an API server', () => {
  let lab: Lab;
  let feed: ApiFeed;
  let agent: Agent;

  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 0 });
    await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
  });
  after(async () => lab?.destroy());
  beforeEach(async () => {
    feed = await ApiFeed.start(lab);
    agent = new Agent(lab, { feed });
    agent.write('pods', policyPods(lab));
  });
  afterEach(async () => {
    await agent?.destroy();
    await feed?.double.kill();
    await lab?.node.exec('nft', ['flush', 'ruleset']);
  });

  const pod = (index: number): Host => {
    const found = lab.pods[index];
    assert.ok(found !== undefined);
    return found;
  };
  const outcome = async () => (await pod(0).tcp(pod(1).ipv4, PORT, PROBE)).outcome;
  const isolated = { podSelector: { matchLabels: { pod: 'pod-2' } } };
  const bothEnforced = () =>
    waitFor('both families are enforced', () => agent.logged(ENFORCING).length === 2, 60_000);

  it('enforces NetworkPolicies without the CRDs, and logs policies that fail closed once', async () => {
    for (const resource of CRDS) await feed.double.call('uninstall', resource);
    const ingress = [{ ports: [{ endPort: 90 }] }];
    agent.write('policies', [networkPolicy('bad', { ...isolated, ingress })]);
    await agent.start(FLAGS);
    await bothEnforced();
    assert.equal(await outcome(), 'timeout');
    const logged = async () =>
      (await feed.double.call('events')).filter(({ reason }) => reason === 'FailsClosed');
    const [event] = await waitFor('an Event', async () => {
      const found = await logged();
      return found.length > 0 ? found : undefined;
    });
    const { type, action, note, regarding } = event ?? {};
    assert.deepEqual([type, action], ['Warning', 'EnforceNetworkPolicy']);
    assert.match(String(note), /^spec\.ingress\[0\]\.ports\[0\]/);
    assert.deepEqual(regarding, {
      apiVersion: 'networking.k8s.io/v1',
      kind: 'NetworkPolicy',
      namespace: 'default',
      name: 'bad',
      uid: 'default-bad',
    });
    // A new version with the same fault, then one without.
    const more = [{ ports: [{ endPort: 90 }] }, { ports: [{ port: PORT }] }];
    agent.write('policies', [networkPolicy('bad', { ...isolated, ingress: more })]);
    await waitFor('the port is open', async () => (await outcome()) === 'answered');
    agent.write('policies', [networkPolicy('bad', { ...isolated, ingress: more.slice(1) })]);
    const cleared = 'network policy no longer fails closed for this reason';
    await waitFor('the fault is cleared', () => agent.logged(cleared).length === 1);
    const [only, ...others] = await logged();
    assert.deepEqual(others, []);
    assert.equal((only as { series?: unknown } | undefined)?.series, undefined);
  });

  it('does not delay Services, and starts enforcing when everything it needs can be read', async () => {
    const forbidden = { kind: 'status', code: 403, reason: 'Forbidden' } as const;
    const rule = { fault: forbidden, verb: 'list', resource: 'pods', times: 1_000 } as const;
    await feed.double.call('fail', rule);
    agent.write('policies', [networkPolicy('deny', isolated)]);
    await agent.start(FLAGS);
    await agent.apply([
      serviceManifest('all', { annotations: ALL_PORTS, spec: { clusterIPs: VIPS } }),
      sliceManifest('all', 4, [pod(1)]),
    ]);
    assert.deepEqual(agent.logged(ENFORCING), []);
    assert.equal(await outcome(), 'answered');
    await feed.double.call('recover');
    await bothEnforced();
    assert.equal(await outcome(), 'timeout');
  });

  it('keeps enforcing while Services cannot be read', async () => {
    const forbidden = { kind: 'status', code: 403, reason: 'Forbidden' } as const;
    const rule = { fault: forbidden, verb: 'list', resource: 'services', times: 1_000 } as const;
    await feed.double.call('fail', rule);
    agent.write('policies', [networkPolicy('deny', isolated)]);
    agent.launch(FLAGS);
    await bothEnforced();
    assert.equal(await outcome(), 'timeout');
    assert.deepEqual(agent.logged('serving'), []);
  });
});

describe('network policy on a node without the requirements', () => {
  let lab: Lab;
  before(async () => {
    lab = await createLab({ pods: 0, remotePods: 0 });
    for (const family of ['ip', 'ip6'] as const)
      await holdTable(lab.node, family, 'portwide-probe');
  });
  after(() => lab?.destroy());

  it('exits at the start with the missing requirements of both families, before it serves', async () => {
    const agent = new Agent(lab);
    try {
      const { ended } = agent.launch([...AGENT_FLAGS, '--proxy-mode=iptables', '--network-policy']);
      const reason = 'the kernel refuses table portwide-probe: EPERM';
      const message = `--network-policy does not work on this node: IPv4: ${reason}; IPv6: ${reason}`;
      assert.match(await ended, new RegExp(message));
      assert.deepEqual(agent.logged('serving'), []);
    } finally {
      await agent.destroy();
    }
  });
});
