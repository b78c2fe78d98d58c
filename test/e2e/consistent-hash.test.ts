import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { HashInput } from '../../api/load-balancing.ts';
import { clientSlot, slotTable } from '../../traffic/consistent-hash.ts';
import { createLab, type Host, type Lab } from '../lab/lab.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { answered, World } from './scenarios/scenario.ts';
import { TraceApi } from './trace-api.ts';

const CLIENTS = 48;
const ANNOTATION = 'portwide.dev/load-balancing';
const PORT = 5060;

/** Ports on which a Service is served: annotations and ports of the Service, and the port of the slice. */
const KINDS = {
  'a listed port': { annotations: {}, port: PORT, slicePort: 8080 },
  'all ports': { annotations: { 'portwide.dev/ports': 'all' }, port: 1, slicePort: 1 },
  'port ranges': { annotations: { 'portwide.dev/ports': '5000-5100' }, port: 1, slicePort: 1 },
} as const;

describe('consistent hashing on two nodes', () => {
  let lab: Lab;
  let agent: Agent;
  let other: Agent;
  let api: TraceApi;
  let directory: string;
  /** Number of calls of `newSources`. */
  let tests = 0;

  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 2 });
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
    const addresses = Array.from({ length: CLIENTS }, (_, index) => [
      `address add 192.168.77.${128 + index}/24 dev eth0`,
      `address add fd00:77::${(0x1000 + index * 37).toString(16)}/64 dev eth0 nodad preferred_lft 0`,
    ]).flat();
    await lab.client.exec('ip', ['-batch', '-'], { input: addresses.join('\n') });
    directory = mkdtempSync(join(tmpdir(), 'portwide-hash-'));
    const socket = join(directory, 'agent.sock');
    api = new TraceApi(socket);
    const flags = [...AGENT_FLAGS, '--proxy-mode=nftables'];
    agent = new Agent(lab, { syncs: 2 });
    other = new Agent({ ...lab, node: lab.node2, client: lab.node2 }, { syncs: 2 });
    await Promise.all([
      agent.start([...flags, `--status-socket=${socket}`]),
      other.start([...flags, '--hostname-override=node2']),
    ]);
  });

  after(async () => {
    await Promise.all([agent?.destroy(), other?.destroy()]);
    await lab?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  const apply = async (objects: Parameters<Agent['apply']>[0]) => {
    await Promise.all([agent.apply(objects), other.apply(objects)]);
  };

  for (const family of [4, 6] as const) {
    describe(`IPv${family}`, () => {
      let world: World;
      beforeEach(() => {
        world = new World(lab, agent, family);
      });

      const addressOf = (index: number) =>
        family === 4
          ? `192.168.77.${128 + index}`
          : `fd00:77::${(0x1000 + index * 37).toString(16)}`;

      /** Sends packets to the VIP through a node, as after a failover of the VIP. */
      const routeThrough = async (node: Host) => {
        const route = ['route', 'replace', world.vip(10), 'via', world.address(node)];
        await lab.client.exec('ip', [world.pick('-4', '-6'), ...route]);
      };

      const allPods = () => [...lab.pods, ...lab.remotePods];

      const objects = (value: string, kind: keyof typeof KINDS, pods: readonly Host[]) => {
        const { annotations, port, slicePort } = KINDS[kind];
        const ports = (['UDP', 'TCP'] as const).map((protocol) => ({
          name: protocol.toLowerCase(),
          protocol,
          port,
        }));
        return [
          world.service('web', {
            annotations: { [ANNOTATION]: value, ...annotations },
            ingress: [{ ip: world.vip(10) }],
            spec: { type: 'LoadBalancer', clusterIPs: [world.clusterIP(10)], ports },
          }),
          world.slice('web', pods, { ports: ports.map((each) => ({ ...each, port: slicePort })) }),
        ];
      };

      /** Sources with new ports: conntrack sends known flows where they went before. */
      const newSources = () => {
        tests += 1;
        const first = 20_000 + 100 * tests;
        return Array.from({ length: CLIENTS }, (_, index) => ({
          localAddress: addressOf(index),
          localPort: first + index,
        }));
      };
      type Sources = ReturnType<typeof newSources>;

      /** The name of the pod that answers each source. */
      const answers = async (sources: Sources) => {
        const names: string[] = [];
        for (const source of sources)
          names.push(answered(await lab.client.udp(world.vip(10), PORT, source)).host);
        return names;
      };
      /** The name of the pod that has the slot of each source. */
      const reckoned = (input: HashInput, sources: Sources, pods: readonly Host[]) => {
        const endpoints = pods.map((pod) => ({ address: world.address(pod), port: undefined }));
        const table = slotTable('default/web', endpoints);
        return sources.map(({ localAddress, localPort }) => {
          const endpoint = table[clientSlot(input, localAddress, localPort)];
          return pods.find((pod) => world.address(pod) === endpoint?.address)?.name;
        });
      };

      /** The name of the pod that `portwide trace` names for each source. */
      const traced = async (sources: Sources) => {
        const names: (string | undefined)[] = [];
        for (const { localAddress, localPort } of sources) {
          const ends = { from: localAddress, to: world.vip(10), protocol: 'UDP', port: PORT };
          const [path] = await api.trace({ ...ends, sourcePort: localPort });
          assert.equal(path?.endpoints.length, 1);
          const [{ address } = {}] = path.endpoints;
          names.push(allPods().find((pod) => world.address(pod) === address)?.name);
        }
        return names;
      };

      for (const kind of Object.keys(KINDS) as (keyof typeof KINDS)[]) {
        for (const [value, input] of [
          ['consistent-hash', 'client-address'],
          ['consistent-hash-client-port', 'client-address-and-port'],
        ] as const) {
          it(`${value}, ${kind}: both nodes send each client to the endpoint of its slot`, async () => {
            await apply(objects(value, kind, allPods()));
            const sources = newSources();
            await routeThrough(lab.node);
            const byNode = await answers(sources);
            assert.equal(new Set(byNode).size, 4, String(byNode));
            await routeThrough(lab.node2);
            assert.deepEqual(await answers(sources), byNode);
            assert.deepEqual(byNode, reckoned(input, sources, allPods()));
            assert.deepEqual(byNode, await traced(sources));
          });
        }
      }

      it('only clients of an endpoint that goes move, and open connections to others stay', async () => {
        await apply(objects('consistent-hash', 'a listed port', allPods()));
        await routeThrough(lab.node);
        const sources = newSources();
        const before = await answers(sources);
        const gone = lab.remotePods.slice(0, 1);
        const held = await Promise.all(
          sources.map((source) => lab.client.hold(world.vip(10), PORT, source)),
        );
        assert.deepEqual(
          held.map(({ reply }) => reply.host),
          before,
        );
        const rest = allPods().filter((pod) => !gone.includes(pod));
        await apply(objects('consistent-hash', 'a listed port', rest));
        const later = newSources();
        const after = await answers(later);
        assert.deepEqual(after, reckoned('client-address', later, rest));
        const moved = before.filter((name, index) => name !== after[index]);
        assert.deepEqual(new Set(moved), new Set(gone.map(({ name }) => name)));
        for (const [index, connection] of held.entries()) {
          if (before[index] !== gone[0]?.name) assert.equal(await connection.exchange('on'), 'on');
          await connection.close();
        }
        await routeThrough(lab.node2);
        assert.deepEqual(await answers(newSources()), after);
      });
    });
  }
});
