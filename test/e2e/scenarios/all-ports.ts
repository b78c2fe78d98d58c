import assert from 'node:assert/strict';
import { waitFor } from '../../lab/lab.ts';
import { ALL_PORTS, PLACEHOLDER } from '../manifests.ts';
import {
  answered,
  droppedSilently,
  refused,
  type Scenario,
  SHORT,
  type World,
} from './scenario.ts';

/** Ports that no Service here lists; the node listens on 22 too. */
const SOME_PORTS = [1, 22, 80, 5060, 31234, 65535];

const allPorts = (world: World, pods = [world.pod(0), world.pod(1)], spec = {}) => [
  world.service('all', {
    annotations: ALL_PORTS,
    spec: { clusterIPs: [world.clusterIP(10)], ...spec },
  }),
  world.slice('all', pods),
];

export const allPortsScenarios: readonly Scenario[] = [
  {
    title: 'all-ports: every TCP, UDP and SCTP port of the VIP reaches a pod on the same port',
    async run(world) {
      await world.apply(allPorts(world));
      const vip = world.clusterIP(10);
      for (const host of [world.client, world.pod(1), world.node]) {
        for (const port of SOME_PORTS) {
          const tcp = answered(await host.tcp(vip, port));
          const udp = answered(await host.udp(vip, port));
          for (const reply of [tcp, udp]) {
            assert.equal(reply.localPort, port);
            assert.match(reply.host, /^pod-/);
          }
        }
      }
      const sctp = answered(await world.client.sctpProbe(vip, 2905));
      assert.deepEqual([sctp.localPort, sctp.host.startsWith('pod-')], [2905, true]);
    },
  },
  {
    title: 'all-ports: ping to the VIP reaches a pod',
    impossible: { ipvs: 'IPVS schedules only TCP, UDP and SCTP; the node answers' },
    async run(world) {
      await world.apply(allPorts(world));
      assert.equal(await world.client.ping(world.clusterIP(10)), true);
    },
  },
  {
    title: 'all-ports: by spec.allPorts (KEP-2610), and explicitly false',
    async run(world) {
      const vip = world.clusterIP(11);
      const objects = (spec: object) => [
        world.service('field', { spec: { clusterIPs: [vip], ...spec } }),
        world.slice('field', [world.pod(0)], {
          ports: [{ name: '', port: 8080, protocol: 'TCP' }],
        }),
      ];
      await world.apply(objects({ allPorts: true, ports: [] }));
      assert.equal(answered(await world.client.tcp(vip, 4321)).localPort, 4321);
      await world.apply(objects({ allPorts: false, ports: [{ port: 80 }] }));
      assert.equal(answered(await world.client.tcp(vip, 80)).localPort, 8080);
      assert.notEqual((await world.client.tcp(vip, 4321, SHORT)).outcome, 'answered');
    },
  },
  {
    title:
      'all-ports: connections of one client are distributed over endpoints, on many ports and on one',
    async run(world) {
      await world.apply(allPorts(world, [world.pod(0), world.pod(1), world.remote(0)]));
      const many = Array.from({ length: 50 }, (_, index) => 20_000 + index);
      for (const ports of [many, 5060]) {
        const { answered: by } = await world.client.burst(world.clusterIP(10), ports, 200);
        // Fewer than 30 of 200 with a third each: once in some 10^9 runs.
        for (const host of ['pod-1', 'pod-2', 'remote-1']) assert.ok((by[host] ?? 0) >= 30);
      }
    },
  },
  {
    title: 'all-ports: session affinity keeps a client on one pod across ports and protocols',
    async run(world) {
      await world.apply(
        allPorts(world, [world.pod(0), world.pod(1)], { sessionAffinity: 'ClientIP' }),
      );
      const vip = world.clusterIP(10);
      const hosts = new Set<string>();
      for (const port of SOME_PORTS) {
        hosts.add(answered(await world.client.tcp(vip, port)).host);
        hosts.add(answered(await world.client.udp(vip, port)).host);
      }
      assert.equal(hosts.size, 1);
    },
  },
  {
    title: 'port ranges: a pod answers inside, connections outside are rejected',
    async run(world) {
      const vip = world.clusterIP(12);
      await world.apply([
        world.service('ranges', {
          annotations: { 'portwide.dev/ports': '5060/UDP,20000-20010/UDP,8000-8100' },
          spec: { clusterIPs: [vip] },
        }),
        world.slice('ranges', [world.pod(0), world.pod(1)]),
      ]);
      for (const port of [5060, 20_000, 20_010, 8000, 8100]) {
        assert.equal(answered(await world.client.udp(vip, port)).localPort, port);
      }
      for (const port of [8000, 8050, 8100]) {
        assert.equal(answered(await world.client.tcp(vip, port)).localPort, port);
      }
      assert.equal(answered(await world.client.sctpProbe(vip, 8001)).localPort, 8001);
      for (const port of [5060, 7999, 8101, 20_000]) refused(await world.client.tcp(vip, port));
      for (const port of [5059, 20_011]) refused(await world.client.udp(vip, port));
      for (const host of [world.node, world.pod(1)]) refused(await host.tcp(vip, 22));
      assert.equal(await world.client.ping(vip), false);
    },
  },
  {
    title: 'port ranges: as many as a Service may have',
    async run(world) {
      const vip = world.clusterIP(12);
      const service = (first: number) =>
        world.service('many', {
          annotations: {
            'portwide.dev/ports': Array.from({ length: 1024 }, (_, index) => {
              const from = first + 10 * index;
              return index % 3 === 0 ? `${from}-${from + 1}/UDP` : `${from}/UDP`;
            }).join(),
          },
          spec: { clusterIPs: [vip] },
        });
      const served = [0, 1, 10, 20, 30, 31, 90, 91, 100, 5000, 10_200, 10_201, 10_210, 10_230];
      const others = [-3, 2, 11, 21, 32, 101, 5001, 10_202, 10_211, 10_240];
      for (const first of [20_000, 20_003]) {
        await world.apply([service(first), world.slice('many', [world.pod(0)])]);
        // A Service with so many ranges is written after the others.
        await waitFor('the Service is served', async () => {
          const { outcome } = await world.client.udp(vip, first + 10_230, SHORT);
          return outcome === 'answered';
        });
        for (const offset of served) {
          const port = first + offset;
          assert.equal(answered(await world.client.udp(vip, port)).localPort, port);
        }
        for (const offset of others) {
          await waitFor(`port ${first + offset} is rejected`, async () => {
            const { outcome } = await world.client.udp(vip, first + offset, SHORT);
            return outcome === 'refused';
          });
        }
        refused(await world.client.tcp(vip, first));
      }
    },
  },
  {
    title: 'all-ports: without a ready endpoint every port is rejected, and the node never answers',
    async run(world) {
      const { node, client } = world;
      await node.serve({ protocol: 'TCP', ports: [22] });
      await node.serve({ protocol: 'UDP', ports: [22] });
      const vip = world.clusterIP(10);
      // The node has the VIP as a local address, as with agents that bind VIPs.
      await world.routeToNode('add', vip);
      try {
        await world.apply(allPorts(world, []));
        for (const port of SOME_PORTS) {
          refused(await client.tcp(vip, port));
          refused(await client.udp(vip, port));
          refused(await node.tcp(vip, port));
        }
        assert.equal(await client.ping(vip), false);
        await world.apply(allPorts(world));
        for (const host of [client, node]) {
          assert.match(answered(await host.tcp(vip, 22)).host, /^pod-/);
        }
      } finally {
        await world.routeToNode('del', vip);
        await node.stopServing();
      }
    },
  },
  {
    title: 'all-ports: slices without ports, with a null port or with the placeholder work',
    async run(world) {
      const vip = world.clusterIP(10);
      await world.apply([
        ...allPorts(world, [world.pod(0)]),
        world.slice('all', [world.pod(1)], { name: 'null', ports: [{ name: 'a', port: null }] }),
        world.slice('all', [world.remote(0)], { name: 'one', ports: [{ name: '', port: 1 }] }),
      ]);
      const { answered: by } = await world.client.burst(vip, 7777, 120);
      assert.deepEqual(Object.keys(by).sort(), ['pod-1', 'pod-2', 'remote-1']);
    },
  },
  {
    title: 'all-ports: connections stay open when it is set on a live Service and unset',
    async run(world) {
      const vip = world.clusterIP(10);
      const listed = [
        world.service('all', { spec: { clusterIPs: [vip], ports: [{ port: 80 }] } }),
        world.slice('all', [world.pod(0)], { ports: [{ name: '', port: 8080 }] }),
      ];
      await world.apply(listed);
      const early = await world.client.hold(vip, 80);
      await world.apply(allPorts(world, [world.pod(0)]));
      assert.equal(answered(await world.client.tcp(vip, 4444)).localPort, 4444);
      assert.equal(answered(await world.client.tcp(vip, 80)).localPort, 80);
      const late = await world.client.hold(vip, 5555);
      await world.apply(listed);
      assert.equal(answered(await world.client.tcp(vip, 80)).localPort, 8080);
      assert.notEqual((await world.client.tcp(vip, 4444, SHORT)).outcome, 'answered');
      for (const connection of [early, late]) {
        assert.equal(await connection.exchange('still there'), 'still there');
        await connection.close();
      }
    },
  },
  {
    title: 'all-ports: hairpin: a pod reaches itself through the VIP',
    async run(world) {
      await world.apply(allPorts(world, [world.pod(0)]));
      const reply = answered(await world.pod(0).tcp(world.clusterIP(10), 9999));
      assert.deepEqual([reply.host, reply.localPort], ['pod-1', 9999]);
      assert.notEqual(reply.remoteAddress, world.address(world.pod(0)));
      answered(await world.pod(0).udp(world.clusterIP(10), 9998));
    },
  },
  {
    title: 'all-ports: fragments reach the same pod, and port 0 is rejected',
    async run(world) {
      await world.apply(allPorts(world));
      const payload = 'x'.repeat(4000);
      const reply = answered(await world.client.udp(world.clusterIP(10), 5060, { payload }));
      assert.equal(reply.payload?.length, payload.length);
      droppedSilently(await world.client.sctpProbe(world.clusterIP(10), 0, SHORT));
    },
  },
  {
    title: 'all-ports: a client port can use two VIPs of one pod at a time',
    async run(world) {
      const second = world.clusterIP(11);
      await world.apply([
        ...allPorts(world, [world.pod(0)]),
        world.service('twin', { annotations: ALL_PORTS, spec: { clusterIPs: [second] } }),
        world.slice('twin', [world.pod(0)]),
      ]);
      for (const vip of [world.clusterIP(10), second]) {
        answered(await world.client.udp(vip, 5060, { localPort: 21_000 }));
      }
    },
  },
  {
    title: 'all-ports: neighbour discovery for a VIP on the LAN works, with and without endpoints',
    async run(world) {
      const { node, client } = world;
      const vip = world.pick('192.168.77.200', 'fd00:77::200');
      const ip = world.pick('-4', '-6');
      const neighbour = ['neighbour', 'show', vip, 'dev', 'eth0'];
      // Like an announcer of load balancer addresses: the node answers for the VIP.
      await node.exec('sysctl', ['-q', 'net.ipv6.conf.eth0.proxy_ndp=1']);
      await world.routeToNode('add', vip);
      await node.exec('ip', [ip, 'neighbour', 'add', 'proxy', vip, 'dev', 'eth0']);
      try {
        const lb = (pods: Parameters<typeof allPorts>[1]) => [
          world.service('all', {
            annotations: ALL_PORTS,
            ingress: [{ ip: vip }],
            spec: { type: 'LoadBalancer', clusterIPs: [world.clusterIP(10)] },
          }),
          world.slice('all', pods ?? []),
        ];
        for (const pods of [[world.pod(0)], []]) {
          await world.apply(lb(pods));
          const { outcome } = await client.tcp(vip, 5060);
          assert.equal(outcome, pods.length > 0 ? 'answered' : 'refused');
          // Sends another unicast solicitation from the client to the VIP.
          const { stdout } = await client.exec('ip', [ip, ...neighbour]);
          const lladdr = /lladdr (\S+)/.exec(stdout)?.[1] ?? '';
          const probe = [
            'neighbour',
            'replace',
            vip,
            'dev',
            'eth0',
            'lladdr',
            lladdr,
            'nud',
            'probe',
          ];
          await client.exec('ip', [ip, ...probe]);
          await waitFor('the node answers for its VIP', async () =>
            (await client.exec('ip', [ip, ...neighbour])).stdout.includes('REACHABLE'),
          );
        }
      } finally {
        await node.exec('ip', [ip, 'neighbour', 'del', 'proxy', vip, 'dev', 'eth0']);
        await world.routeToNode('del', vip);
      }
    },
  },
  {
    title: 'all-ports: a thousand listed ports beside an all-ports Service',
    async run(world) {
      const ports = Array.from({ length: 1000 }, (_, index) => ({
        name: `p${index}`,
        port: 10_000 + index,
      }));
      await world.apply([
        ...allPorts(world, [world.pod(1)]),
        world.service('many', { spec: { clusterIPs: [world.clusterIP(20)], ports } }),
        world.slice('many', [world.pod(0)], { ports }),
      ]);
      for (const port of [10_000, 10_500, 10_999]) {
        const listed = answered(await world.client.tcp(world.clusterIP(20), port));
        assert.deepEqual([listed.host, listed.localPort], ['pod-1', port]);
        const wide = answered(await world.client.tcp(world.clusterIP(10), port));
        assert.deepEqual([wide.host, wide.localPort], ['pod-2', port]);
      }
      assert.notEqual(
        (await world.client.tcp(world.clusterIP(20), 11_000, SHORT)).outcome,
        'answered',
      );
    },
  },
  {
    title:
      'all-ports: refused Services are not programmed, including the placeholder, and do not affect others',
    async run(world) {
      const refusedSpecs = [
        { type: 'NodePort' },
        { externalIPs: [world.vip(40)] },
        { allPorts: true, ports: PLACEHOLDER },
      ];
      const bad = refusedSpecs.flatMap((spec, index) => [
        world.service(`bad-${index}`, {
          annotations: ALL_PORTS,
          spec: { clusterIPs: [world.clusterIP(30 + index)], ...spec },
        }),
        world.slice(`bad-${index}`, [world.pod(0)], { ports: [{ name: '', port: 1 }] }),
      ]);
      const unreadable = world.service('bad-3', {
        annotations: { 'portwide.dev/ports': '80-70' },
        spec: { clusterIPs: [world.clusterIP(33)] },
      });
      await world.apply([...bad, unreadable, ...allPorts(world)]);
      for (const number of [30, 31, 32, 33]) {
        for (const port of [1, 80]) {
          const { outcome } = await world.client.tcp(world.clusterIP(number), port, SHORT);
          assert.equal(outcome, 'timeout');
        }
      }
      answered(await world.client.tcp(world.clusterIP(10), 1234));
      const fetchMetrics =
        "fetch('http://127.0.0.1:10249/metrics').then((answer) => answer.text()).then(console.log)";
      const { stdout } = await world.node.exec(process.execPath, ['-e', fetchMetrics]);
      for (const reason of ['NodePort', 'ExternalIPs', 'Ports', 'Annotation']) {
        assert.match(stdout, new RegExp(`portwide_refused_services{reason="${reason}"} 1`));
      }
    },
  },
];
