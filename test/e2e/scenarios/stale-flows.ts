import assert from 'node:assert/strict';
import type { Host } from '../../lab/lab.ts';
import { PATIENCE, waitFor } from '../../lab/lab.ts';
import { ALL_PORTS } from '../manifests.ts';
import { answered, type Scenario, type World } from './scenario.ts';

const DRAINING = { conditions: { ready: false, serving: true, terminating: true } };
/**
 * One source port: for conntrack all its packets are one flow, including a new SCTP association.
 */
const FLOW = { localPort: 20_500, timeoutMs: 300 * PATIENCE };

const PROBES = { UDP: 'udp', SCTP: 'sctpProbe' } as const;
type FlowProtocol = keyof typeof PROBES;

interface Kind {
  readonly protocol: FlowProtocol;
  readonly annotations: Readonly<Record<string, string>>;
  readonly port: number;
  readonly listed: { readonly port: number; readonly protocol?: FlowProtocol };
}

const allPorts = (protocol: FlowProtocol): Kind => {
  return { protocol, annotations: ALL_PORTS, port: 5060, listed: { port: 1 } };
};
const onePort = (protocol: FlowProtocol): Kind => {
  return { protocol, annotations: {}, port: 53, listed: { port: 53, protocol } };
};
const KINDS: Readonly<Record<string, Kind>> = {
  'all-ports: a UDP flow': allPorts('UDP'),
  'one port: a UDP flow': onePort('UDP'),
  'all-ports: SCTP between fixed ports': allPorts('SCTP'),
  'one port: SCTP between fixed ports': onePort('SCTP'),
};

function media(world: World, kind: Kind, pods: Parameters<World['slice']>[1]) {
  const { annotations, listed, protocol } = kind;
  const spec = { clusterIPs: [world.clusterIP(90)], ports: [listed] };
  return [
    world.service('media', { annotations, spec }),
    world.slice('media', pods, { ports: [{ name: '', port: 53, protocol }] }),
  ];
}

export const staleFlowScenarios: readonly Scenario[] = Object.entries(KINDS).map(
  ([title, kind]) => ({
    title: `${title} moves when its endpoint is deleted, when endpoints are added, and when all are deleted`,
    async run(world) {
      const vip = world.clusterIP(90);
      const { port, protocol } = kind;
      const probe = () => world.client[PROBES[protocol]](vip, port, FLOW);
      const who = async () => {
        const outcome = await probe();
        return outcome.outcome === 'answered' ? outcome.reply.host : outcome.outcome;
      };
      const movesTo = (expected: string) =>
        waitFor(`the flow reaches ${expected}`, async () => (await who()) === expected);
      const put = (pods: readonly (Host | readonly [Host, object])[]) =>
        world.apply(media(world, kind, pods));

      // The kernel would forget an INIT after 3 s, before a slow agent has changed its rules.
      const sysctl = 'net.netfilter.nf_conntrack_sctp_timeout_cookie_wait=60';
      if (protocol === 'SCTP') await world.node.exec('sysctl', ['-q', '-w', sysctl]);
      // The client sends these packets while the Service does not exist or has no endpoint, so no
      // rule translates the packets.
      await world.apply([]);
      assert.notEqual(await who(), 'pod-1');
      await put([]);
      assert.notEqual(await who(), 'pod-1');
      await put([world.pod(0)]);
      await movesTo('pod-1');

      await put([world.pod(0), world.pod(1)]);
      for (let round = 0; round < 5; round++) {
        assert.equal(answered(await probe()).host, 'pod-1');
      }
      await put([[world.pod(0), DRAINING], world.pod(1)]);
      // Each INIT requests a new association, which IPVS correctly sends to an endpoint that is not
      // draining.
      if (protocol === 'UDP') {
        assert.equal(await who(), 'pod-1', 'a draining pod keeps its flows');
      }
      await put([world.pod(1)]);
      await movesTo('pod-2');
      await put([]);
      await movesTo('refused');
    },
  }),
);
