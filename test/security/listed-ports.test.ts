/** A tenant gets so many listed ports × addresses only, and holds up no other Service with more. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { AGENT_FLAGS, Agent } from '../e2e/agent.ts';
import type { Manifest } from '../e2e/manifests.ts';
import { World } from '../e2e/scenarios/scenario.ts';
import { createLab, type Lab, waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';

const NAMESPACE = 'evil';
const WAIT = 120_000;
/** Far more than an ordinary change takes, and far less than a wait for all that a tenant may request. */
const ORDINARY_MS = 10_000;
/** Ports of a Service with 20,100 entries, and its external IPs besides the cluster IP. */
const [PORTS, EXTERNAL_IPS] = [100, 200];

describe('listed ports and external IPs of a hostile tenant', function () {
  this.timeout(2 * WAIT);
  let lab: Lab;
  let agent: Agent;
  let world: World;
  let directory: string;
  let socket: string;

  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-listed-'));
    socket = join(directory, 'agent.sock');
    lab = await createLab({ pods: 3, remotePods: 0 });
    await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
    agent = new Agent(lab);
    world = new World(lab, agent, 4);
    await agent.start([...AGENT_FLAGS, '--proxy-mode=nftables', `--status-socket=${socket}`]);
  });
  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  const large = (index: number, ports: number): Manifest[] => {
    const name = `large-${index}`;
    const numbers = Array.from({ length: ports }, (_, at) => at + 1);
    return [
      world.service(name, {
        namespace: NAMESPACE,
        created: new Date(Date.UTC(2026, 0, 1, 0, index)).toISOString(),
        spec: {
          clusterIPs: [world.clusterIP(100 + index)],
          externalIPs: Array.from(
            { length: EXTERNAL_IPS },
            (_, at) => `198.51.${100 + index}.${at + 1}`,
          ),
          ports: numbers.map((port) => ({ name: `p${port}`, port, protocol: 'TCP' })),
        },
      }),
      world.slice(name, [world.pod(2)], {
        namespace: NAMESPACE,
        ports: numbers.map((port) => ({ name: `p${port}`, port: 8080, protocol: 'TCP' })),
      }),
    ];
  };
  const ordinary = (pod: number): Manifest[] => [
    world.service('shop', {
      namespace: 'shop',
      spec: { clusterIPs: [world.clusterIP(10)], ports: [{ name: '', port: 80 }] },
    }),
    world.slice('shop', [world.pod(pod)], {
      namespace: 'shop',
      ports: [{ name: '', port: 8080 }],
    }),
  ];
  const hostAt = async (address: string, port: number) => {
    const result = await lab.client.tcp(address, port, { timeoutMs: 500 });
    return result.outcome === 'answered' ? result.reply.host : undefined;
  };
  const isServed = async (index: number) =>
    (await hostAt(world.clusterIP(100 + index), PORTS / 2)) === 'pod-3';

  it('the younger Service beyond the budget is refused with the reason, until there is room', async () => {
    agent.write('shop', ordinary(0));
    agent.write('large', [...large(0, PORTS), ...large(1, PORTS)]);
    await waitFor('the older Service is served', () => isServed(0), WAIT);
    agent.write('shop', ordinary(1));
    const isChanged = async () => (await hostAt(world.clusterIP(10), 80)) === 'pod-2';
    await waitFor('an ordinary Service is changed', isChanged, ORDINARY_MS);
    assert.equal(await isServed(1), false);
    const message = `20100 entries (listed ports times addresses and their source ranges) are more than older Services leave of the 32768 for namespace ${NAMESPACE} on a node`;
    const { stdout } = await lab.node.exec(PORTWIDE, [
      ...['describe', 'service', `${NAMESPACE}/large-1`, '--status-socket', socket],
    ]);
    assert.ok(stdout.includes(message), stdout);
    const refusals = agent.logged('Service is not served');
    assert.deepEqual(
      refusals.map(({ service, reason, field }) => [service, reason, field]),
      [[`${NAMESPACE}/large-1`, 'Budget', 'spec.ports']],
    );
    agent.write('large', [...large(0, PORTS / 2), ...large(1, PORTS)]);
    await waitFor('the younger Service is served', () => isServed(1), WAIT);
    assert.equal(await isServed(0), true, 'a Service that shrinks');
  });
});
