import assert from 'node:assert/strict';
import { createLab, type HeldConnection, type Host, type Lab, waitFor } from '../lab/lab.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { ALL_PORTS } from './manifests.ts';
import { World } from './scenarios/scenario.ts';

const TCP = { ports: [{ name: '', port: 8080, protocol: 'TCP' }] };
const NODE_PORT = 30_180;
const DRAINING = { conditions: { ready: false, serving: true, terminating: true } };
const NOT_READY = { conditions: { ready: false, serving: false, terminating: false } };

type Endpoints = Parameters<World['slice']>[1];

/** Connects until each of the pods has a connection of the client. */
async function holdToEach(
  from: Host,
  vip: string,
  port: number,
  pods: readonly Host[],
): Promise<HeldConnection[]> {
  const held = new Map<string, HeldConnection>();
  await waitFor(`${from.name} has connections to all pods`, async () => {
    const connection = await from.hold(vip, port);
    if (held.has(connection.reply.host)) await connection.close();
    else held.set(connection.reply.host, connection);
    return pods.every(({ name }) => held.has(name));
  });
  return pods.flatMap(({ name }) => held.get(name) ?? []);
}

/** The lab's pods keep answering, so only a reset closes a connection. */
async function isReset(connection: HeldConnection): Promise<void> {
  await waitFor('the next packet is answered with a reset', async () => {
    await connection.exchange('still there?').catch(() => undefined);
    return !connection.alive;
  });
}

async function staysOpen(connection: HeldConnection): Promise<void> {
  assert.match(await connection.exchange('still there?'), /still there/);
}

describe('TCP connections to deleted endpoints', () => {
  let lab: Lab;
  let agent: Agent;

  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 1 });
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
  });

  after(() => lab?.destroy());

  for (const mode of ['nftables', 'iptables'] as const) {
    describe(mode, () => {
      before(async () => {
        agent = new Agent(lab);
        const flags = [`--proxy-mode=${mode}`, '--nodeport-addresses=0.0.0.0/0,::/0'];
        await agent.start([...AGENT_FLAGS, ...flags, '--reset-deleted-endpoint-connections']);
      });

      after(() => agent?.destroy());

      for (const family of [4, 6] as const) {
        const setUp = () => {
          const world = new World(lab, agent, family);
          const vip = world.clusterIP(91);
          const apply = (pods: Endpoints, spec = {}) =>
            world.apply([
              world.service('web', { spec: { clusterIPs: [vip], ports: [{ port: 80 }], ...spec } }),
              world.slice('web', pods, TCP),
            ]);
          return { world, vip, apply };
        };

        it(`IPv${family}: resets connections to a deleted endpoint at once; others stay open, also to draining pods`, async () => {
          const { world, vip, apply } = setUp();
          const pods = [world.pod(0), world.pod(1), world.remote(0)];
          await apply(pods);
          const [one, two, remote] = await holdToEach(lab.client, vip, 80, pods);
          const [ofNode] = await holdToEach(lab.node, vip, 80, pods.slice(0, 1));
          assert.ok(one && two && remote && ofNode);

          await apply([[world.pod(0), DRAINING], [world.pod(1), NOT_READY], world.remote(0)]);
          for (const connection of [one, two, remote, ofNode]) await staysOpen(connection);
          await apply([[world.pod(1), NOT_READY], world.remote(0)]);
          await Promise.all([isReset(one), isReset(ofNode)]);
          for (const connection of [two, remote]) await staysOpen(connection);
          await remote.close();
        });

        it(`IPv${family}: resets connections when the last endpoint is deleted`, async () => {
          const { world, vip, apply } = setUp();
          await apply([world.pod(0)]);
          const held = await Promise.all([
            holdToEach(lab.client, vip, 80, [world.pod(0)]),
            holdToEach(lab.node, vip, 80, [world.pod(0)]),
          ]);
          await apply([]);
          await Promise.all(held.flat().map(isReset));
          const { outcome } = await lab.client.tcp(vip, 80);
          assert.equal(outcome, 'refused', 'a new connection');
        });

        it(`IPv${family}: resets connections on any port of an all-ports Service`, async () => {
          const { world, vip } = setUp();
          const apply = (pods: Endpoints) =>
            world.apply([
              world.service('web', { annotations: ALL_PORTS, spec: { clusterIPs: [vip] } }),
              world.slice('web', pods),
            ]);
          await apply([world.pod(0)]);
          const [toDeleted] = await holdToEach(lab.client, vip, 7000, [world.pod(0)]);
          assert.ok(toDeleted);
          await apply([]);
          await isReset(toDeleted);
        });

        it(`IPv${family}: resets connections on node ports when only other nodes have endpoints`, async () => {
          const { world, apply } = setUp();
          const spec = {
            type: 'NodePort',
            ports: [{ port: 80, nodePort: NODE_PORT }],
            externalTrafficPolicy: 'Local',
          };
          const node = world.address(world.node);
          await apply([world.pod(0), world.remote(0)], spec);
          const [toDeleted] = await holdToEach(lab.client, node, NODE_PORT, [world.pod(0)]);
          assert.ok(toDeleted);
          await apply([world.remote(0)], spec);
          await isReset(toDeleted);
          const { outcome } = await lab.client.tcp(node, NODE_PORT, { timeoutMs: 500 });
          assert.equal(outcome, 'timeout', 'a new connection is dropped, as in kube-proxy');
        });
      }

      it('writes nothing when a restarted agent finds its rules unchanged', async () => {
        const world = new World(lab, agent, 4);
        const spec = { clusterIPs: [world.clusterIP(91)], ports: [{ port: 80 }] };
        await world.apply([world.service('web', { spec })]);
        await agent.stop();
        await agent.start();
        const first = agent.logged('synced').filter(({ full }) => full === true);
        assert.deepEqual(first.map(({ family, written }) => [family, written]).sort(), [
          ['IPv4', 0],
          ['IPv6', 0],
        ]);
      });

      it('resets connections at the next start if the endpoint was deleted while no agent ran', async () => {
        const world = new World(lab, agent, 4);
        const vip = world.clusterIP(91);
        const service = world.service('web', {
          spec: { clusterIPs: [vip], ports: [{ port: 80 }] },
        });
        await world.apply([service, world.slice('web', [world.pod(0)], TCP)]);
        const [toDeleted] = await holdToEach(lab.client, vip, 80, [world.pod(0)]);
        assert.ok(toDeleted);
        await agent.stop();
        agent.write('objects', [service, world.slice('web', [world.pod(1)], TCP)]);
        await staysOpen(toDeleted);
        await agent.start();
        await isReset(toDeleted);
      });
    });
  }
});
