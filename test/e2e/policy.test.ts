import assert from 'node:assert/strict';
import { createLab, type Host, type Lab, waitFor } from '../lab/lab.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import type { Manifest } from './manifests.ts';
import { networkPolicy, policyPods } from './policy-manifests.ts';

const FLAGS = [...AGENT_FLAGS, '--network-policy'];
const PORT = 8080;

for (const mode of ['nftables', 'iptables']) {
  describe(`network policy beside mode ${mode}`, () => {
    const flags = [...FLAGS, `--proxy-mode=${mode}`];
    let lab: Lab;
    let agent: Agent;

    before(async () => {
      lab = await createLab({ pods: 3, remotePods: 1 });
      await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
      agent = new Agent(lab);
      agent.write('pods', policyPods(lab));
      await agent.start(flags);
    });
    after(async () => {
      await agent?.destroy();
      await lab?.destroy();
    });

    const pod = (index: number): Host => {
      const found = lab.pods[index];
      assert.ok(found !== undefined);
      return found;
    };
    const outcomes = async (from: Host, to: Host, port = PORT): Promise<string[]> => {
      const replies = [to.ipv4, to.ipv6].map((address) =>
        from.tcp(address, port, { timeoutMs: 300 }),
      );
      return (await Promise.all(replies)).map(({ outcome }) => outcome);
    };
    const expect = (what: string, from: Host, to: Host, outcome: string, port = PORT) =>
      waitFor(what, async () => (await outcomes(from, to, port)).every((each) => each === outcome));
    const policies = (...objects: readonly Manifest[]) => agent.write('policies', objects);

    it('isolates a pod, and lets in whom a rule names', async () => {
      await expect('nothing is denied', pod(0), pod(1), 'answered');
      policies(networkPolicy('deny', { podSelector: { matchLabels: { pod: 'pod-2' } } }));
      await expect('all are denied', pod(0), pod(1), 'timeout');
      assert.deepEqual(await outcomes(lab.node, pod(1)), ['answered', 'answered']);
      policies(
        networkPolicy('deny', {
          podSelector: { matchLabels: { pod: 'pod-2' } },
          ingress: [{ from: [{ podSelector: { matchLabels: { pod: 'pod-1' } } }] }],
        }),
      );
      await expect('one is let in', pod(0), pod(1), 'answered');
      assert.deepEqual(await outcomes(pod(2), pod(1)), ['timeout', 'timeout']);
    });
  });
}
