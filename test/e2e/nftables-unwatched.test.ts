/** Changes that another program makes while the agent does not receive notifications of nf_tables. */
import assert from 'node:assert/strict';
import { createLab, type Host, type Lab, removeRules, waitFor } from '../lab/lab.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { holdTable } from './held-table.ts';
import { serviceManifest, sliceManifest } from './manifests.ts';
import { networkPolicy, policyPods } from './policy-manifests.ts';

const VIP = '10.96.0.10';
const PORT = 8080;
const PROBE = { timeoutMs: 500 };
/** An hour, so that no periodic resync repairs anything. */
const FLAGS = [
  ...AGENT_FLAGS,
  '--proxy-mode=nftables',
  '--network-policy',
  '--nftables-sync-period=1h',
];
const START_MS = 60_000;

describe('changes of nf_tables without notifications', () => {
  let lab: Lab;
  let agent: Agent;
  /** A table that the agent cannot write. */
  let held: Awaited<ReturnType<typeof holdTable>> | undefined;

  before(async () => {
    lab = await createLab({ pods: 3, remotePods: 0 });
    await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
  });
  after(() => lab?.destroy());
  afterEach(async () => {
    await agent?.destroy();
    await held?.release();
    held = undefined;
    await removeRules(lab.node);
  });

  const pod = (index: number): Host => {
    const found = lab.pods[index];
    assert.ok(found !== undefined);
    return found;
  };
  const nft = (command: string) => lab.node.exec('nft', [command]);
  const service = async () => (await lab.client.tcp(VIP, PORT, PROBE)).outcome;
  const policy = async () => (await pod(0).tcp(pod(1).ipv4, PORT, PROBE)).outcome;
  /** Whether the Service answers and the policy denies. */
  const state = async () => ({
    serves: (await service()) === 'answered',
    enforces: (await policy()) !== 'answered',
  });
  const becomes = async (expected: boolean, deadline?: number) => {
    for (const which of ['serves', 'enforces'] as const) {
      const isReached = async () => (await state())[which] === expected;
      await waitFor(`${which}: ${expected}`, isReached, deadline);
    }
  };
  const DAMAGES = [
    [
      'deletes rules',
      'flush chain ip portwide nat-prerouting; flush chain ip portwide-policy forward',
    ],
    [
      'deletes elements',
      'flush map ip portwide service-ports; flush map ip portwide-policy ingress-pods',
    ],
    ['deletes the tables', 'delete table ip portwide; delete table ip portwide-policy'],
  ] as const;
  const start = () => {
    agent = new Agent(lab);
    agent.write('pods', policyPods(lab));
    agent.write('objects', [
      serviceManifest('web', { spec: { clusterIPs: [VIP], ports: [{ port: PORT }] } }),
      sliceManifest('web', 4, [pod(2)], { ports: [{ name: '', port: PORT }] }),
      networkPolicy('deny', { podSelector: { matchLabels: { pod: 'pod-2' } } }),
    ]);
    agent.launch(FLAGS);
  };

  for (const [what, damage] of DAMAGES) {
    it(`are repaired when another program ${what} after the first sync`, async () => {
      // The agent subscribes ten seconds after the first sync while a family cannot be written.
      held = await holdTable(lab.node, 'ip6', 'portwide');
      start();
      await becomes(true, START_MS);
      await nft(damage);
      await becomes(false);
      await becomes(true, 30_000);
    });
  }

  it('are repaired when notifications were lost', async () => {
    start();
    await becomes(true, START_MS);
    await nft('add table ip other');
    await nft('add set ip other many { type mark; }');
    // Repaired only once the agent receives notifications.
    await nft('delete table ip portwide-policy');
    await becomes(true);
    const { pid } = agent;
    assert.ok(pid !== undefined);
    process.kill(pid, 'SIGSTOP');
    try {
      const marks = Array.from({ length: 20_000 }, (_, index) => index + 1).join(', ');
      await lab.node.exec('nft', ['-f', '-'], { input: `add element ip other many { ${marks} }` });
      await nft(DAMAGES[0][1]);
      await becomes(false);
    } finally {
      process.kill(pid, 'SIGCONT');
    }
    await becomes(true);
  });
});
