import assert from 'node:assert/strict';
import { ALL_PORTS } from '../manifests.ts';
import {
  answered,
  droppedSilently,
  refused,
  type Scenario,
  SHORT,
  type World,
} from './scenario.ts';

const HTTP = [{ name: 'http', port: 8080, protocol: 'TCP' }];
const NODE_PORT = 30_080;
const HEALTH_PORT = 32_000;

/** A LoadBalancer Service, all-ports or with one port. */
function balanced(
  world: World,
  kind: 'all' | 'listed',
  pods: Parameters<World['slice']>[1],
  spec: Readonly<Record<string, unknown>> = {},
  ingress: readonly { ip: string; ipMode?: string }[] = [{ ip: world.vip(7) }],
) {
  const ports = [{ name: 'http', port: 80, nodePort: NODE_PORT }];
  return [
    world.service('lb', {
      ...(kind === 'all' && { annotations: ALL_PORTS }),
      ingress,
      spec: { type: 'LoadBalancer', clusterIPs: [world.clusterIP(80)], ports, ...spec },
    }),
    world.slice('lb', pods, { ports: HTTP }),
  ];
}

const KINDS = ['all', 'listed'] as const;

const forBothKinds = (
  title: string,
  run: (world: World, kind: (typeof KINDS)[number]) => Promise<void>,
): Scenario[] =>
  KINDS.map((kind) => ({
    title: `${kind === 'all' ? 'all-ports' : 'one port'}: ${title}`,
    run: (world) => run(world, kind),
  }));

function onNodePort(world: World, pods: Parameters<World['slice']>[1], spec = {}) {
  return [
    world.service('np', {
      spec: {
        type: 'NodePort',
        clusterIPs: [world.clusterIP(81)],
        ports: [{ name: 'http', port: 80, nodePort: NODE_PORT }],
        ...spec,
      },
    }),
    world.slice('np', pods, { ports: HTTP }),
  ];
}

export const externalScenarios: readonly Scenario[] = [
  {
    title:
      'leading zeros are decimal, IPv4-mapped IPv6 is IPv4, and an unreadable external IP stops no other',
    async run(world) {
      const [external, balancer, mapped] = [world.vip(6), world.vip(5), world.vip(7)];
      const sloppy = (address: string) => address.replace(/\.(\d)$/, '.00$1');
      const ports = [{ name: 'http', port: 80 }];
      await world.apply([
        world.service('sloppy', {
          ingress: [{ ip: 'nonsense' }, { ip: sloppy(balancer) }],
          spec: {
            type: 'LoadBalancer',
            clusterIPs: [world.clusterIP(60)],
            externalIPs: ['10.0.0.300', sloppy(external), world.pick(`::ffff:${mapped}`, mapped)],
            loadBalancerSourceRanges: world
              .pick('000.000.000.000/0 ::/0', '::/0 0.0.0.0/00')
              .split(' '),
            ports,
          },
        }),
        world.slice('sloppy', [world.pod(0)], { ports }),
      ]);
      for (const vip of [world.clusterIP(60), external, balancer, mapped])
        assert.equal(answered(await world.client.tcp(vip, 80)).host, 'pod-1', vip);
    },
  },
  {
    title: 'an unreadable source range closes the load balancer IP, and not the cluster IP',
    async run(world) {
      const balancer = world.vip(5);
      const ports = [{ name: 'http', port: 80 }];
      await world.apply([
        world.service('closed', {
          ingress: [{ ip: balancer }],
          spec: {
            type: 'LoadBalancer',
            clusterIPs: [world.clusterIP(60)],
            loadBalancerSourceRanges: ['nonsense'],
            ports,
          },
        }),
        world.slice('closed', [world.pod(0)], { ports }),
      ]);
      assert.equal(answered(await world.client.tcp(world.clusterIP(60), 80)).host, 'pod-1');
      const outcome = await world.client.tcp(balancer, 80, SHORT);
      assert.notEqual(outcome.outcome, 'answered');
    },
  },
  {
    title: 'node port: answers on the node address, from outside and from the node, masqueraded',
    async run(world) {
      const nodePort = (pods: Parameters<World['slice']>[1], spec = {}) =>
        onNodePort(world, pods, spec);
      const own = world.address(world.node);
      const local = { externalTrafficPolicy: 'Local' };

      await world.apply(nodePort([world.remote(0)]));
      const reply = answered(await world.client.tcp(own, NODE_PORT));
      assert.deepEqual([reply.host, reply.localPort, reply.remoteAddress], ['remote-1', 8080, own]);
      for (const host of [world.node, world.pod(0)]) answered(await host.tcp(own, NODE_PORT));
      await world.apply(nodePort([world.pod(0), world.remote(0)], local));
      const { answered: by } = await world.client.burst(own, NODE_PORT, 20);
      assert.deepEqual(Object.keys(by), ['pod-1']);
      const kept = answered(await world.client.tcp(own, NODE_PORT));
      assert.equal(kept.remoteAddress, world.address(world.client));

      await world.apply(nodePort([world.remote(0)], local));
      droppedSilently(await world.client.tcp(own, NODE_PORT, SHORT));
      // Pods and the node are internal clients, to which externalTrafficPolicy does not apply.
      for (const host of [world.node, world.pod(0)]) answered(await host.tcp(own, NODE_PORT));

      await world.apply(nodePort([]));
      refused(await world.client.tcp(own, NODE_PORT));
    },
  },
  {
    title: 'node port: answers on 127.0.0.1 (the kernel does not route from ::1 to other hosts)',
    impossible: {
      ipvs: 'IPVS does not forward packets from a loopback address to another host',
      nftables: 'as in kube-proxy: node ports are served on the primary address',
    },
    async run(world) {
      await world.apply(onNodePort(world, [world.pod(0)]));
      const loopback = world.pick('127.0.0.1', '::1');
      const { outcome } = await world.node.tcp(loopback, NODE_PORT, SHORT);
      assert.equal(outcome, world.pick('answered', 'refused'));
    },
  },
  {
    title: 'external IPs: answer like load balancer addresses',
    async run(world) {
      await world.apply([
        world.service('ext', {
          spec: {
            clusterIPs: [world.clusterIP(82)],
            externalIPs: [world.vip(8)],
            ports: [{ name: 'http', port: 80 }],
          },
        }),
        world.slice('ext', [world.pod(0)], { ports: HTTP }),
      ]);
      for (const host of [world.client, world.node, world.pod(1)]) {
        assert.equal(answered(await host.tcp(world.vip(8), 80)).host, 'pod-1');
      }
    },
  },
  ...forBothKinds(
    'load balancer address: answers all clients, masqueraded',
    async (world, kind) => {
      await world.apply(balanced(world, kind, [world.remote(0)]));
      const reply = answered(await world.client.tcp(world.vip(7), 80));
      assert.equal(reply.localPort, kind === 'all' ? 80 : 8080);
      assert.equal(reply.remoteAddress, world.address(world.node));
      for (const host of [world.node, world.pod(0)]) answered(await host.tcp(world.vip(7), 80));
      await world.apply(balanced(world, kind, []));
      for (const host of [world.client, world.node]) refused(await host.tcp(world.vip(7), 80));
    },
  ),
  ...forBothKinds('ipMode Proxy: leaves the address to the load balancer', async (world, kind) => {
    const proxied = [{ ip: world.vip(7), ipMode: 'Proxy' }];
    await world.apply(balanced(world, kind, [world.pod(0)], {}, proxied));
    droppedSilently(await world.client.tcp(world.vip(7), 80, SHORT));
    answered(await world.client.tcp(world.clusterIP(80), 80));
  }),
  ...forBothKinds('externalTrafficPolicy Local: keeps the client address', async (world, kind) => {
    const local = { externalTrafficPolicy: 'Local', healthCheckNodePort: HEALTH_PORT };
    await world.apply(balanced(world, kind, [world.pod(0), world.remote(0)], local));
    const { answered: by } = await world.client.burst(world.vip(7), 80, 20);
    assert.deepEqual(Object.keys(by), ['pod-1']);
    const reply = answered(await world.client.tcp(world.vip(7), 80));
    assert.equal(reply.remoteAddress, world.address(world.client));

    await world.apply(balanced(world, kind, [world.remote(0)], local));
    droppedSilently(await world.client.tcp(world.vip(7), 80, SHORT));
    for (const host of [world.node, world.pod(0)]) {
      assert.equal(answered(await host.tcp(world.vip(7), 80)).host, 'remote-1');
    }
  }),
  ...forBothKinds('source ranges: other clients are dropped', async (world, kind) => {
    const [main = '', second = ''] = world.client.addresses[world.family];
    const spec = { loadBalancerSourceRanges: [` ${main}${world.pick('/32', '/128')} `] };
    await world.apply(balanced(world, kind, [world.pod(0)], spec));
    answered(await world.client.tcp(world.vip(7), 80, { localAddress: main }));
    droppedSilently(await world.node.tcp(world.vip(7), 80, SHORT));
    droppedSilently(await world.client.tcp(world.vip(7), 80, { ...SHORT, localAddress: second }));
    // They protect only the load balancer address.
    answered(await world.client.tcp(world.clusterIP(80), 80, { localAddress: second }));
    const lan = { loadBalancerSourceRanges: [world.pick('192.168.77.0/24', 'fd00:77::/64')] };
    await world.apply(balanced(world, kind, [world.pod(0)], lan));
    answered(await world.node.tcp(world.vip(7), 80));
    const open = { loadBalancerSourceRanges: [world.pick('0.0.0.0/0', '::/0')] };
    await world.apply(balanced(world, kind, [world.pod(0)], open));
    answered(await world.client.tcp(world.vip(7), 80, { localAddress: second }));
  }),
  {
    title: 'all-ports: no node port is programmed, even if one is allocated',
    async run(world) {
      await world.apply(balanced(world, 'all', [world.pod(0)]));
      const outcome = await world.client.tcp(world.address(world.node), NODE_PORT, SHORT);
      assert.deepEqual(outcome, { outcome: 'refused', by: 'rst' });
    },
  },
  {
    title: 'all-ports: the health check port of the VIP stays with the node',
    async run(world) {
      const { node, client } = world;
      const vip = world.vip(7);
      // Pass-through load balancers keep the VIP as destination; nodes have a route for it.
      await world.routeToNode('add', vip);
      await node.serve({ protocol: 'TCP', ports: [HEALTH_PORT, HEALTH_PORT + 1] });
      try {
        const local = { externalTrafficPolicy: 'Local', healthCheckNodePort: HEALTH_PORT };
        const ranges = [`192.0.2.0/24`, '2001:db8:99::/64'];
        for (const spec of [local, { ...local, loadBalancerSourceRanges: ranges }]) {
          await world.apply(balanced(world, 'all', [world.pod(0)], spec));
          assert.equal(answered(await client.tcp(vip, HEALTH_PORT)).host, 'node');
        }
        await world.apply(balanced(world, 'all', [world.pod(0)], local));
        assert.equal(answered(await client.tcp(vip, HEALTH_PORT + 1)).host, 'pod-1');
        assert.equal(answered(await client.udp(vip, HEALTH_PORT)).host, 'pod-1');
        await world.apply(balanced(world, 'all', [], local));
        assert.equal(answered(await client.tcp(vip, HEALTH_PORT)).host, 'node');
        refused(await client.tcp(vip, HEALTH_PORT + 1));
      } finally {
        await node.stopServing();
        await world.routeToNode('del', vip);
      }
    },
  },
  {
    title: 'all-ports: a node port never answers on a VIP that the node holds',
    async run(world) {
      const { client } = world;
      const vip = world.vip(7);
      const nodePort = [
        world.service('np', {
          spec: {
            type: 'NodePort',
            clusterIPs: [world.clusterIP(81)],
            ports: [{ name: 'http', port: 80, nodePort: NODE_PORT + 1 }],
          },
        }),
        world.slice('np', [world.pod(1)], { ports: HTTP }),
      ];
      await world.routeToNode('add', vip);
      try {
        await world.apply([...nodePort, ...balanced(world, 'all', [world.pod(0)])]);
        assert.equal(answered(await client.tcp(vip, NODE_PORT + 1)).host, 'pod-1');
        await world.apply([...nodePort, ...balanced(world, 'all', [])]);
        refused(await client.tcp(vip, NODE_PORT + 1));
        const ranges = [world.pick('192.0.2.0/24', '2001:db8:99::/64')];
        const spec = { loadBalancerSourceRanges: ranges };
        await world.apply([...nodePort, ...balanced(world, 'all', [world.pod(0)], spec)]);
        droppedSilently(await client.tcp(vip, NODE_PORT + 1, SHORT));
      } finally {
        await world.routeToNode('del', vip);
      }
    },
  },
];
