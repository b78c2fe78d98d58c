import assert from 'node:assert/strict';
import { crashingNft } from '../crashing-nft.ts';
import { createLab, type Host, type Lab, removeRules, waitFor } from '../lab/lab.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { type Manifest, serviceManifest, sliceManifest } from './manifests.ts';
import { networkPolicy, policyPods } from './policy-manifests.ts';

const [FIRST, SECOND, RANGES] = ['10.96.0.10', '10.96.0.11', '10.96.0.12'] as const;
const PORT = 8080;
const RANGE_PORT = 5000;
const START_MS = 60_000;
/** A table with a map of another type than the agent's, such as an earlier version may have written. */
const OTHER_VERSION = `
table ip portwide {
  map service-ports { type mark : verdict; }
}
`;

describe('an agent on a node whose nft crashes', () => {
  let lab: Lab;
  let agent: Agent;
  const nft = crashingNft();

  before(async () => {
    lab = await createLab({ pods: 3, remotePods: 0 });
    await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
  });
  after(async () => {
    await agent?.destroy();
    await removeRules(lab.node);
    await lab?.destroy();
    nft.remove();
  });

  const pod = (index: number): Host => {
    const found = lab.pods[index];
    assert.ok(found !== undefined);
    return found;
  };
  const service = (name: string, vip: string, ranges?: string): Manifest[] => [
    serviceManifest(name, {
      ...(ranges === undefined ? {} : { annotations: { 'portwide.dev/ports': ranges } }),
      spec: { clusterIPs: [vip], ports: [{ port: PORT }] },
    }),
    sliceManifest(name, 4, [pod(2)], { ports: [{ name: '', port: PORT }] }),
  ];
  const answers = async (vip: string, port = PORT) =>
    (await lab.client.tcp(vip, port, { timeoutMs: 500 })).outcome === 'answered';
  const isDenied = async () =>
    (await pod(0).tcp(pod(1).ipv4, PORT, { timeoutMs: 500 })).outcome !== 'answered';
  const works = async () => {
    await waitFor('the Service is served', () => answers(FIRST), START_MS);
    await waitFor('the policy denies', isDenied, START_MS);
  };

  it('serves, enforces, changes, repairs and replaces tables, and runs no nft', async () => {
    agent = new Agent(lab, { env: { PATH: nft.path } });
    agent.write('pods', policyPods(lab));
    const objects = [
      ...service('first', FIRST),
      networkPolicy('deny', { podSelector: { matchLabels: { pod: 'pod-2' } } }),
    ];
    agent.write('objects', objects);
    const start = () => agent.launch([...AGENT_FLAGS, '--network-policy']);
    start();
    await works();

    agent.write('objects', [
      ...objects,
      ...service('second', SECOND),
      ...service('ranges', RANGES, `${RANGE_PORT}-5999/TCP`),
    ]);
    await waitFor('the new Service is served', () => answers(SECOND));
    await waitFor('its first ranges are served', () => answers(RANGES, RANGE_PORT));
    assert.equal(await answers(RANGES, RANGE_PORT - 1), false);

    await lab.node.exec('nft', ['delete table ip portwide; delete table ip portwide-policy']);
    await works();

    await agent.kill();
    await lab.node.exec('nft', ['delete table ip portwide']);
    await lab.node.exec('nft', ['-f', '-'], { input: OTHER_VERSION });
    start();
    await works();
    await waitFor('ranges are served again', () => answers(RANGES, RANGE_PORT));

    await agent.stop();
    assert.equal(nft.hasRun(), false);
  });
});
