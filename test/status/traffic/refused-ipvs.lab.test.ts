/**
 * Packets that mode ipvs refuses. An agent in mode ipvs runs only in a stock kernel. Elsewhere addresses on `lo` stand for the
 * VIPs on kube-ipvs0. Packets to both pass the same hooks.
 */
import assert from 'node:assert/strict';
import { IPVS_TRAFFIC } from '../../../ipvs/plan.ts';
import type { FlowEvent, FlowLine } from '../../../status/api/traffic.ts';
import { AGENT_FLAGS, Agent } from '../../e2e/agent.ts';
import { ALL_PORTS, type Manifest, serviceManifest, sliceManifest } from '../../e2e/manifests.ts';
import { createLab, type Lab, waitFor } from '../../lab/lab.ts';
import { STOCK_KERNEL } from '../../uml/kernels.ts';
import { TrafficClient } from './traffic-client.ts';

const SOURCES = { 4: '192.0.2.200/32', 6: '2001:db8::200/128' } as const;
const vip = (family: 4 | 6, number: number) =>
  family === 4 ? `10.96.0.${number}` : `fd00:10:96::${number}`;
const NUMBERS = [10, 20, 30, 40, 50];
const PORTS = [
  { name: 'http', port: 80 },
  { name: 'dns', port: 53, protocol: 'UDP' },
];

describe('flows in mode ipvs: refused packets', () => {
  let lab: Lab;
  let agent: Agent | undefined;
  let client: TrafficClient;
  let objects: Manifest[];

  before(async () => {
    lab = await createLab({ pods: 1, remotePods: 0 });
    const clusterIPs = (number: number) => [vip(4, number), vip(6, number)];
    objects = [
      serviceManifest('web', { spec: { clusterIPs: clusterIPs(10), ports: PORTS } }),
      serviceManifest('all', { annotations: ALL_PORTS, spec: { clusterIPs: clusterIPs(20) } }),
      serviceManifest('empty', { spec: { clusterIPs: clusterIPs(30), ports: PORTS } }),
      serviceManifest('restricted', {
        ingress: [{ ip: vip(4, 40) }, { ip: vip(6, 40) }],
        spec: {
          clusterIPs: clusterIPs(41),
          type: 'LoadBalancer',
          loadBalancerSourceRanges: Object.values(SOURCES),
          ports: PORTS,
        },
      }),
      ...([4, 6] as const).flatMap((family) =>
        ['web', 'all', 'restricted'].map((name) =>
          sliceManifest(name, family, lab.pods, {
            ports: name === 'all' ? [] : PORTS,
          }),
        ),
      ),
    ];
    if (STOCK_KERNEL === undefined) {
      for (const number of NUMBERS) {
        await lab.node.exec('ip', ['address', 'add', `${vip(4, number)}/32`, 'dev', 'lo']);
        await lab.node.exec('ip', ['address', 'add', `${vip(6, number)}/128`, 'dev', 'lo']);
      }
      // Where mode ipvs drops.
      for (const family of [4, 6] as const) {
        const drop = ['PREROUTING', '-d', vip(family, 40), '-j', 'DROP'];
        const tool = family === 4 ? 'iptables-nft' : 'ip6tables-nft';
        await lab.node.exec(tool, ['-t', 'mangle', '-A', ...drop]);
      }
    } else {
      await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
      agent = new Agent(lab, { syncs: 2 });
      await agent.start([...AGENT_FLAGS, '--proxy-mode=ipvs']);
      await agent.apply(objects);
    }
    // Where mode ipvs drops.
    for (const family of [4, 6] as const) {
      const drop = ['PREROUTING', '-d', vip(family, 40), '-j', 'DROP'];
      const tool = family === 4 ? 'iptables-nft' : 'ip6tables-nft';
      await lab.node.exec(tool, ['-t', 'mangle', '-A', ...drop]);
    }
    client = new TrafficClient();
    await client.start(lab, objects, { modeTraffic: IPVS_TRAFFIC });
  });
  after(async () => {
    await client?.destroy();
    await agent?.destroy();
    await lab?.destroy();
  });

  const isRefusal = (line: FlowLine): line is FlowEvent =>
    line.event === 'rejected' || line.event === 'dropped';

  for (const family of [4, 6] as const) {
    it(`IPv${family}: names the Service and the reason, and no packet to a served port`, async () => {
      const stream = await client.flows('');
      const address = lab.client.addresses[family][0] ?? '';
      const probes = [
        // IPVS would translate these.
        [10, 80, undefined],
        [20, 4000, undefined],
        [10, 81, 'rejected default/web: no Service port 81/TCP'],
        [30, 80, 'rejected default/empty: no endpoint'],
        [30, 81, 'rejected default/empty: no Service port 81/TCP'],
        [
          40,
          80,
          `dropped default/restricted: source ${address} is not in loadBalancerSourceRanges`,
        ],
      ] as const;
      for (const [number, port] of probes) {
        await lab.client.tcp(vip(family, number), port, { timeoutMs: 500 });
      }
      await lab.client.udp(vip(family, 10), 53, { timeoutMs: 100 });
      await lab.client.udp(vip(family, 10), 54, { timeoutMs: 100 });
      const found = await waitFor('the last packet is reported', () => {
        const refusals = stream.lines.filter(isRefusal);
        return refusals.some(({ flow }) => flow.destinationPort === 54) ? refusals : undefined;
      });
      stream.close();
      const reported = found.map(
        ({ flow, event, service, reason }) => `${flow.destination} ${event} ${service}: ${reason}`,
      );
      assert.deepEqual(
        [...new Set(reported)],
        [
          ...probes.flatMap(([number, , text]) =>
            text === undefined ? [] : [`${vip(family, number)} ${text}`],
          ),
          `${vip(family, 10)} rejected default/web: no Service port 54/UDP`,
        ],
      );
    });
  }

  it('reports packets of the node itself, and follows changes of Services', async () => {
    const stream = await client.flows('event=rejected');
    await lab.node.tcp(vip(4, 10), 99, { timeoutMs: 500 });
    await waitFor('the packet is reported', () =>
      stream.lines.some((line) => 'flow' in line && line.flow.destinationPort === 99),
    );
    // A Service that is added while a client looks.
    const late = { spec: { clusterIPs: [vip(4, 50)], ports: PORTS } };
    const slice = sliceManifest('late', 4, lab.pods, { ports: PORTS });
    const changed = [...objects, serviceManifest('late', late), slice];
    await client.apply(changed);
    await agent?.apply(changed);
    await waitFor('packets to another port of the Service are reported', async () => {
      await lab.client.tcp(vip(4, 50), 80, { timeoutMs: 500 });
      await lab.client.tcp(vip(4, 50), 81, { timeoutMs: 500 });
      return stream.lines.some((line) => 'flow' in line && line.service === 'default/late');
    });
    const reported = stream.lines.filter(isRefusal);
    assert.ok(reported.every(({ flow }) => flow.destinationPort !== 80));
    stream.close();
  });
});
