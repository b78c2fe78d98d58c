import assert from 'node:assert/strict';
import { waitFor } from '../../lab/lab.ts';
import { ALL_PORTS, type ServiceFields } from '../manifests.ts';
import { answered, refused, type Scenario, SHORT, type World } from './scenario.ts';

const OLD = '2026-01-01T00:00:00Z';
const YOUNG = '2026-02-01T00:00:00Z';

/** A load balancer Service on the shared address. */
function sharing(world: World, name: string, number: number, fields: Partial<ServiceFields> = {}) {
  return world.service(name, {
    created: OLD,
    ingress: [{ ip: world.vip(5) }],
    ...fields,
    spec: { type: 'LoadBalancer', clusterIPs: [world.clusterIP(number)], ...fields.spec },
  });
}

/** Names of the hosts that answer on TCP ports, or the outcomes without an answer. */
async function whoAnswers(world: World, vip: string, ports: readonly number[]): Promise<string[]> {
  const outcomes = ports.map((port) => world.client.tcp(vip, port, SHORT));
  return (await Promise.all(outcomes)).map((outcome) =>
    outcome.outcome === 'answered' ? outcome.reply.host : outcome.outcome,
  );
}

/** An older Service of another namespace with external IPs, on pod-2. */
function intruder(world: World, externalIPs: readonly string[], ports: readonly number[]) {
  const named = ports.map((port) => ({ name: `p${port}`, port }));
  return [
    world.service('intruder', {
      namespace: 'other',
      created: OLD,
      spec: { clusterIPs: [world.clusterIP(59)], externalIPs, ports: named },
    }),
    world.slice('intruder', [world.pod(1)], { namespace: 'other', ports: named }),
  ];
}

export const sharedVipScenarios: readonly Scenario[] = [
  {
    title:
      'a cluster IP is its all-ports Service alone: external IPs of another take no port of it',
    async run(world) {
      const vip = world.clusterIP(50);
      const owner = [
        world.service('owner', {
          created: YOUNG,
          annotations: ALL_PORTS,
          spec: { clusterIPs: [vip] },
        }),
        world.slice('owner', [world.pod(0)]),
      ];
      const other = intruder(world, [vip, world.vip(6)], [22, 5060]);
      await world.apply([...owner, ...other]);
      assert.deepEqual(await whoAnswers(world, vip, [22, 5060]), ['pod-1', 'pod-1']);
      assert.deepEqual(await whoAnswers(world, world.vip(6), [22]), ['pod-2']);
      await world.apply(other);
      assert.deepEqual(await whoAnswers(world, vip, [22, 5060]), ['pod-2', 'pod-2']);
      await world.apply([...owner, ...other]);
      assert.deepEqual(await whoAnswers(world, vip, [22, 5060]), ['pod-1', 'pod-1']);
    },
  },
  {
    title:
      'a cluster IP is its Service alone, also on ports that it does not list and if it is refused',
    async run(world) {
      const vip = world.clusterIP(50);
      const other = intruder(world, [vip], [81]);
      const ports = [{ name: 'http', port: 80 }];
      const listed = [
        world.service('owner', { created: YOUNG, spec: { clusterIPs: [vip], ports } }),
        world.slice('owner', [world.pod(0)], { ports }),
      ];
      const refusedAsWhole = world.service('owner', {
        created: YOUNG,
        annotations: { 'portwide.dev/ports': '99-1' },
        spec: { clusterIPs: [vip] },
      });
      await world.apply([...listed, ...other]);
      const [http, unlisted] = await whoAnswers(world, vip, [80, 81]);
      assert.equal(http, 'pod-1');
      assert.notEqual(unlisted, 'pod-2');
      await world.apply([refusedAsWhole, ...other]);
      assert.notDeepEqual(await whoAnswers(world, vip, [81]), ['pod-2']);
      assert.deepEqual(await whoAnswers(world, world.clusterIP(59), [81]), ['pod-2']);
    },
  },
  {
    title: 'one load balancer IP, several namespaces: the older Service keeps all that it claimed',
    async run(world) {
      const vip = world.vip(5);
      const oldest = [
        sharing(world, 'all', 50, { annotations: ALL_PORTS }),
        world.slice('all', [world.pod(0)]),
      ];
      const listed = (namespace: string, number: number, port: number, created: string) => {
        const ports = [{ name: 'only', port }];
        return [
          sharing(world, 'listed', number, {
            namespace,
            created,
            spec: { clusterIPs: [world.clusterIP(number)], ports },
          }),
          world.slice('listed', [world.pod(1)], { namespace, ports }),
        ];
      };
      const foreign = listed('other', 51, 8050, YOUNG);
      const own = listed('default', 52, 8060, YOUNG);
      await world.apply([...oldest, ...foreign, ...own, ...intruder(world, [vip], [22])]);
      const who = () => whoAnswers(world, vip, [22, 8050, 8060, 9000]);
      assert.deepEqual(await who(), ['pod-1', 'pod-1', 'pod-2', 'pod-1']);
      assert.deepEqual(await whoAnswers(world, world.clusterIP(51), [8050]), ['pod-2']);
      await world.apply([...oldest, ...listed('other', 51, 8050, '2025-01-01T00:00:00Z')]);
      assert.deepEqual(await who(), ['pod-1', 'pod-2', 'pod-1', 'pod-1']);
      await world.apply([...foreign, ...own]);
      assert.deepEqual((await who()).slice(1, 3), ['pod-2', 'pod-2']);
    },
  },
  {
    title: 'one VIP: exact port before range before all-ports, with or without endpoints',
    async run(world) {
      const vip = world.vip(5);
      const objects = (exactPods: readonly ReturnType<World['pod']>[]) => [
        sharing(world, 'all', 50, { annotations: ALL_PORTS }),
        world.slice('all', [world.pod(0)]),
        sharing(world, 'ranges', 51, { annotations: { 'portwide.dev/ports': '8000-8100/TCP' } }),
        world.slice('ranges', [world.pod(1)]),
        sharing(world, 'exact', 52, {
          spec: { clusterIPs: [world.clusterIP(52)], ports: [{ port: 8050 }] },
        }),
        world.slice('exact', exactPods, { ports: [{ name: '', port: 8080 }] }),
      ];
      await world.apply(objects([world.remote(0)]));
      const who = async (port: number) => answered(await world.client.tcp(vip, port)).host;
      assert.equal(await who(7000), 'pod-1');
      assert.equal(await who(8000), 'pod-2');
      assert.equal(await who(8050), 'remote-1');
      await world.apply(objects([]));
      refused(await world.client.tcp(vip, 8050));
      assert.equal(await who(8051), 'pod-2');
      assert.equal(answered(await world.client.udp(vip, 8050)).host, 'pod-1');
    },
  },
  {
    title: 'one VIP: source ranges of the Service that owns the port apply',
    async run(world) {
      const vip = world.vip(5);
      const allClients = world.pick('0.0.0.0/0', '::/0');
      const otherClients = world.pick('192.0.2.0/24', '2001:db8:77::/64');
      const objects = (ofRanges: string, ofExact: string) => [
        sharing(world, 'ranges', 51, {
          annotations: { 'portwide.dev/ports': '8000-8100/TCP' },
          spec: { clusterIPs: [world.clusterIP(51)], loadBalancerSourceRanges: [ofRanges] },
        }),
        world.slice('ranges', [world.pod(1)]),
        sharing(world, 'exact', 52, {
          spec: {
            clusterIPs: [world.clusterIP(52)],
            ports: [{ port: 8050 }],
            loadBalancerSourceRanges: [ofExact],
          },
        }),
        world.slice('exact', [world.pod(0)], { ports: [{ name: '', port: 8080 }] }),
      ];
      const who = async (port: number) => answered(await world.client.tcp(vip, port)).host;
      const shut = async (port: number) =>
        assert.equal((await world.client.tcp(vip, port, SHORT)).outcome, 'timeout');
      await world.apply(objects(allClients, allClients));
      assert.deepEqual([await who(8000), await who(8050)], ['pod-2', 'pod-1']);
      await world.apply(objects(allClients, otherClients));
      assert.equal(await who(8000), 'pod-2');
      await shut(8050);
      await world.apply(objects(otherClients, allClients));
      assert.equal(await who(8050), 'pod-1');
      await shut(8000);
    },
  },
  {
    title: 'two all-ports Services on one VIP: the older owns it, the other takes over',
    async run(world) {
      const young = [
        sharing(world, 'a-young', 53, { annotations: ALL_PORTS, created: YOUNG }),
        world.slice('a-young', [world.pod(1)]),
      ];
      const old = [
        sharing(world, 'b-old', 54, { annotations: ALL_PORTS }),
        world.slice('b-old', [world.pod(0)]),
      ];
      const who = async (vip: string) => answered(await world.client.tcp(vip, 1000)).host;
      await world.apply([...young, ...old]);
      assert.equal(await who(world.vip(5)), 'pod-1');
      assert.equal(await who(world.clusterIP(53)), 'pod-2');
      await world.apply(young);
      assert.equal(await who(world.vip(5)), 'pod-2');
      await world.apply([...young, ...old]);
      assert.equal(await who(world.vip(5)), 'pod-1');
    },
  },
  {
    title: 'a VIP that becomes a node address is released within a second, and served again later',
    async run(world) {
      const { node, client } = world;
      const vip = world.vip(5);
      await world.apply([
        sharing(world, 'all', 50, { annotations: ALL_PORTS }),
        world.slice('all', [world.pod(0)]),
      ]);
      assert.equal(answered(await client.tcp(vip, 22)).host, 'pod-1');
      await node.serve({ protocol: 'TCP', ports: [22] });
      const prefix = world.pick('/32', '/128');
      const nodad = world.family === 6 ? ['nodad'] : [];
      const who = async () => {
        const outcome = await client.tcp(vip, 22, { timeoutMs: 200 });
        return outcome.outcome === 'answered' ? outcome.reply.host : outcome.outcome;
      };
      await node.exec('ip', ['address', 'add', `${vip}${prefix}`, 'dev', 'eth0', ...nodad]);
      try {
        const second = 1000 * world.timeoutFactor;
        await waitFor('the node itself answers', async () => (await who()) === 'node', second);
        assert.equal(answered(await client.tcp(world.clusterIP(50), 22)).host, 'pod-1');
      } finally {
        await node.exec('ip', ['address', 'del', `${vip}${prefix}`, 'dev', 'eth0']);
        await node.stopServing();
      }
      await waitFor('the Service has its VIP again', async () => (await who()) === 'pod-1', 5000);
    },
  },
  {
    title: "the node's own address is never served as a VIP",
    async run(world) {
      const own = world.address(world.node);
      await world.node.serve({ protocol: 'TCP', ports: [22] });
      try {
        await world.apply([
          sharing(world, 'all', 50, { annotations: ALL_PORTS, ingress: [{ ip: own }] }),
          world.slice('all', [world.pod(0)]),
        ]);
        assert.equal(answered(await world.client.tcp(own, 22)).host, 'node');
        assert.equal(answered(await world.client.tcp(world.clusterIP(50), 22)).host, 'pod-1');
      } finally {
        await world.node.stopServing();
      }
    },
  },
];
