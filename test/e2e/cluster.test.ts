import assert from 'node:assert/strict';
import type { ResultPromise } from 'execa';
import { createLab, type Host, type Lab, waitFor } from '../lab/lab.ts';
import { AGENT_FLAGS } from './agent.ts';
import {
  ALL_PORTS,
  type Manifest,
  nodeManifest,
  serviceManifest,
  sliceManifest,
} from './manifests.ts';
import { answered, SHORT } from './scenarios/scenario.ts';

const PORTWIDE = new URL('../../portwide', import.meta.url).pathname;
const API_SERVER = new URL('./api-server.ts', import.meta.url).pathname;
const VIP = '10.96.0.10';

describe('an agent fed by a cluster', () => {
  let lab: Lab;
  let api: ResultPromise | undefined;

  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 0 });
    await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
  });
  after(async () => lab?.destroy());

  /** @returns the port that it listens on. */
  async function startApiServer(port: number): Promise<number> {
    const server = lab.node.spawn(process.execPath, [API_SERVER, String(port)], {
      stdin: 'pipe',
    });
    api = server;
    let text = '';
    server.stdout?.on('data', (chunk) => {
      text += String(chunk);
    });
    return Number(await waitFor('the API server listens', () => text.trim()));
  }

  const send = (type: string, objects: readonly Manifest[]) => {
    for (const object of objects) api?.stdin?.write(`${JSON.stringify({ type, object })}\n`);
  };
  const all = (pods: readonly Host[]) => [
    serviceManifest('all', { annotations: ALL_PORTS, spec: { clusterIPs: [VIP] } }),
    sliceManifest('all', 4, pods),
  ];
  const who = async () => {
    const outcome = await lab.client.tcp(VIP, 4000, SHORT);
    return outcome.outcome === 'answered' ? outcome.reply.host : outcome.outcome;
  };

  it('programs what it lists and watches, and keeps it while the API server is away', async () => {
    const [first, second] = lab.pods;
    assert.ok(first !== undefined && second !== undefined);
    const port = await startApiServer(0);
    send('ADDED', [nodeManifest([lab.node.ipv4]), ...all([first])]);
    lab.node.spawn(PORTWIDE, ['run', `--master=http://127.0.0.1:${port}`, ...AGENT_FLAGS]);
    await waitFor('what was listed is programmed', async () => (await who()) === 'pod-1', 20_000);

    send('MODIFIED', all([second]).slice(1));
    await waitFor('what was watched is programmed', async () => (await who()) === 'pod-2');

    const held = await lab.client.hold(VIP, 5060);
    api?.catch(() => {});
    api?.kill('SIGKILL');
    await waitFor('the API server has gone', () => api?.exitCode !== null || api.killed);
    assert.equal(await who(), 'pod-2');

    // It comes back with another world; what went meanwhile must go from the node too.
    await startApiServer(port);
    send('ADDED', [nodeManifest([lab.node.ipv4]), ...all([first])]);
    await waitFor('the new world is programmed', async () => (await who()) === 'pod-1', 30_000);
    assert.equal(answered(await lab.client.tcp(VIP, 22)).host, 'pod-1');
    assert.equal(await held.exchange('still here'), 'still here');
    await held.close();
  });
});
