import assert from 'node:assert/strict';
import type { Host } from '../../lab/lab.ts';
import { waitFor } from '../../lab/lab.ts';
import { ALL_PORTS } from '../manifests.ts';
import { answered, type Scenario, type World } from './scenario.ts';

const DRAINING = { conditions: { ready: false, serving: true, terminating: true } };
/** One client port: to conntrack all its datagrams are one flow. */
const FLOW = { localPort: 20_500, timeoutMs: 300 };

const KINDS = {
  'all-ports': { annotations: ALL_PORTS, port: 5060, ports: [{ port: 1 }] },
  'one port': { annotations: {}, port: 53, ports: [{ port: 53, protocol: 'UDP' }] },
} as const;

function media(world: World, kind: keyof typeof KINDS, pods: Parameters<World['slice']>[1]) {
  const { annotations, ports } = KINDS[kind];
  return [
    world.service('media', { annotations, spec: { clusterIPs: [world.clusterIP(90)], ports } }),
    world.slice('media', pods, { ports: [{ name: '', port: 53, protocol: 'UDP' }] }),
  ];
}

export const udpFlowScenarios: readonly Scenario[] = (
  Object.keys(KINDS) as (keyof typeof KINDS)[]
).map((kind) => ({
  title: `${kind}: a UDP flow moves on when its endpoint goes, comes first, or all go`,
  async run(world) {
    const vip = world.clusterIP(90);
    const { port } = KINDS[kind];
    const who = async () => {
      const outcome = await world.client.udp(vip, port, FLOW);
      return outcome.outcome === 'answered' ? outcome.reply.host : outcome.outcome;
    };
    const movesTo = (expected: string) =>
      waitFor(`the flow reaches ${expected}`, async () => (await who()) === expected);
    const put = (pods: readonly (Host | readonly [Host, object])[]) =>
      world.apply(media(world, kind, pods));

    // Sent while the Service does not exist, and while it has no endpoint: nobody translates.
    await world.apply([]);
    assert.notEqual(await who(), 'pod-1');
    await put([]);
    assert.notEqual(await who(), 'pod-1');
    await put([world.pod(0)]);
    await movesTo('pod-1');

    await put([world.pod(0), world.pod(1)]);
    for (let round = 0; round < 5; round++) {
      assert.equal(answered(await world.client.udp(vip, port, FLOW)).host, 'pod-1');
    }
    await put([[world.pod(0), DRAINING], world.pod(1)]);
    assert.equal(await who(), 'pod-1', 'a pod that drains keeps its flows');
    await put([world.pod(1)]);
    await movesTo('pod-2');
    await put([]);
    await movesTo('refused');
  },
}));
