import assert from 'node:assert/strict';
import { waitFor } from '../../lab/lab.ts';
import { sliceManifest } from '../manifests.ts';
import {
  answered,
  droppedSilently,
  refused,
  type Scenario,
  SHORT,
  type World,
} from './scenario.ts';

const HTTP = [{ name: 'http', port: 8080, protocol: 'TCP' }];
const DRAINING = { conditions: { ready: false, serving: true, terminating: true } };

const web = (world: World, pods: Parameters<World['slice']>[1], spec = {}) => [
  world.service('web', {
    spec: {
      clusterIPs: [world.clusterIP(60)],
      ports: [{ name: 'http', port: 80 }],
      ...spec,
    },
  }),
  world.slice('web', pods, { ports: HTTP }),
];

const hostsOf = async (world: World, from = world.client) => {
  const { answered: by } = await from.burst(world.clusterIP(60), 80, 40);
  return Object.keys(by).sort();
};

const affinity = (timeoutSeconds: number) => ({
  sessionAffinity: 'ClientIP',
  sessionAffinityConfig: { clientIP: { timeoutSeconds } },
});

export const clusterIPScenarios: readonly Scenario[] = [
  {
    title: 'a listed port reaches the target port; other ports do not',
    async run(world) {
      await world.apply(web(world, [world.pod(0), world.remote(0)]));
      for (const host of [world.client, world.pod(1), world.node]) {
        assert.equal(answered(await host.tcp(world.clusterIP(60), 80)).localPort, 8080);
      }
      assert.deepEqual(await hostsOf(world), ['pod-1', 'remote-1']);
      const other = await world.client.tcp(world.clusterIP(60), 8080, SHORT);
      assert.notEqual(other.outcome, 'answered');
    },
  },
  {
    title: 'one port on TCP, UDP and SCTP, each with its own target port',
    async run(world) {
      const vip = world.clusterIP(61);
      const protocols = ['TCP', 'UDP', 'SCTP'];
      await world.apply([
        world.service('dns', {
          spec: {
            clusterIPs: [vip],
            ports: protocols.map((protocol) => ({
              name: protocol.toLowerCase(),
              port: 53,
              protocol,
            })),
          },
        }),
        world.slice('dns', [world.pod(0)], {
          ports: protocols.map((protocol, index) => ({
            name: protocol.toLowerCase(),
            port: 5301 + index,
            protocol,
          })),
        }),
      ]);
      assert.equal(answered(await world.client.tcp(vip, 53)).localPort, 5301);
      assert.equal(answered(await world.client.udp(vip, 53)).localPort, 5302);
      assert.equal(answered(await world.client.sctpProbe(vip, 53)).localPort, 5303);
    },
  },
  {
    title: 'a named port may differ from slice to slice',
    async run(world) {
      await world.apply([
        ...web(world, [world.pod(0)]),
        world.slice('web', [world.pod(1)], {
          name: 'web-2',
          ports: [{ name: 'http', port: 9090, protocol: 'TCP' }],
        }),
        world.slice('web', [world.remote(0)], {
          name: 'web-3',
          ports: [{ name: 'https', port: 9443, protocol: 'TCP' }],
        }),
      ]);
      assert.deepEqual(await hostsOf(world), ['pod-1', 'pod-2']);
      const ports = new Set<string>();
      await waitFor('both pods answered', async () => {
        const { host, localPort } = answered(await world.client.tcp(world.clusterIP(60), 80));
        ports.add(`${host} ${localPort}`);
        return ports.size === 2;
      });
      assert.deepEqual([...ports].sort(), ['pod-1 8080', 'pod-2 9090']);
    },
  },
  {
    title: 'no endpoint: rejected; unready ones do not count; terminating ones serve as a fallback',
    async run(world) {
      const unready = [world.pod(0), { conditions: { ready: false } }] as const;
      await world.apply(web(world, [unready]));
      for (const host of [world.client, world.pod(1), world.node]) {
        refused(await host.tcp(world.clusterIP(60), 80));
      }
      await world.apply(web(world, [unready, [world.pod(1), DRAINING]]));
      assert.deepEqual(await hostsOf(world), ['pod-2']);
      await world.apply(web(world, [world.pod(0), [world.pod(1), DRAINING]]));
      assert.deepEqual(await hostsOf(world), ['pod-1']);
    },
  },
  {
    title: 'internalTrafficPolicy Local: only pods of this node; dropped if there are none',
    async run(world) {
      const local = { internalTrafficPolicy: 'Local' };
      await world.apply(web(world, [world.pod(0), world.remote(0)], local));
      assert.deepEqual(await hostsOf(world), ['pod-1']);
      assert.deepEqual(await hostsOf(world, world.pod(1)), ['pod-1']);
      await world.apply(web(world, [world.remote(0)], local));
      droppedSilently(await world.client.tcp(world.clusterIP(60), 80, SHORT));
      await world.apply(web(world, [], local));
      refused(await world.client.tcp(world.clusterIP(60), 80));
    },
  },
  {
    title: 'topology hints, and all endpoints with trafficDistribution and no hints',
    async run(world) {
      const zones = (spec = {}, hints = true) =>
        web(
          world,
          [
            [
              world.pod(0),
              { zone: 'zone-1', ...(hints && { hints: { forZones: [{ name: 'zone-1' }] } }) },
            ],
            [
              world.remote(0),
              { zone: 'zone-2', ...(hints && { hints: { forZones: [{ name: 'zone-2' }] } }) },
            ],
          ],
          spec,
        );
      await world.apply(zones());
      assert.deepEqual(await hostsOf(world), ['pod-1']);
      await world.apply(zones({}, false));
      assert.deepEqual(await hostsOf(world), ['pod-1', 'remote-1']);
      for (const trafficDistribution of ['PreferClose', 'PreferSameZone', 'PreferSameNode']) {
        await world.apply(zones({ trafficDistribution }, false));
        assert.deepEqual(await hostsOf(world), ['pod-1', 'remote-1']);
      }
    },
  },
  {
    title: 'session affinity: a client stays on one pod',
    async run(world) {
      await world.apply(web(world, [world.pod(0), world.pod(1)], affinity(300)));
      for (const localAddress of world.client.addresses[world.family]) {
        const { answered: by } = await world.client.burst(world.clusterIP(60), 80, 30, {
          localAddress,
          concurrency: 1,
        });
        assert.equal(Object.keys(by).length, 1, localAddress);
      }
    },
  },
  {
    title: 'session affinity: ends after its timeout',
    impossible: {
      ipvs: "IPVS keeps a client's endpoint until its last connection entry expires, two minutes after the connection closed",
    },
    async run(world) {
      await world.apply(web(world, [world.pod(0), world.pod(1)], affinity(1)));
      const seen = new Set<string>();
      await waitFor(
        'another pod answers after the client was silent for a second',
        async () => {
          const last = performance.now();
          await waitFor('a second has passed', () => performance.now() - last > 1100);
          seen.add(answered(await world.client.tcp(world.clusterIP(60), 80)).host);
          return seen.size === 2;
        },
        40_000,
      );
    },
  },
  {
    title: 'two VIPs of one endpoint: a client can use one source port for both',
    impossible: {
      ipvs: 'IPVS identifies replies by client and endpoint, not by VIP: replies to both go to the later connection',
    },
    async run(world) {
      const vips = [60, 61].map((number) => world.clusterIP(number));
      await world.apply([
        ...web(world, [world.pod(0)]),
        world.service('other', {
          spec: { clusterIPs: vips.slice(1), ports: [{ name: 'http', port: 80 }] },
        }),
        world.slice('other', [world.pod(0)], { ports: HTTP }),
      ]);
      const held = [];
      for (const vip of vips) {
        held.push(await world.client.hold(vip, 80, { localPort: 20_100 + world.family }));
      }
      for (const connection of held) {
        assert.equal(await connection.exchange('still there'), 'still there');
        await connection.close();
      }
    },
  },
  {
    title: 'hairpin: a pod reaches itself, and sees the node as the source',
    async run(world) {
      await world.apply(web(world, [world.pod(0)]));
      const reply = answered(await world.pod(0).tcp(world.clusterIP(60), 80));
      assert.equal(reply.host, 'pod-1');
      assert.notEqual(reply.remoteAddress, world.address(world.pod(0)));
    },
  },
  {
    title: 'masquerade: pods keep their source address, clients outside the cluster do not',
    async run(world) {
      await world.apply(web(world, [world.pod(0)]));
      const vip = world.clusterIP(60);
      const source = async (host = world.client) => answered(await host.tcp(vip, 80)).remoteAddress;
      assert.equal(await source(world.pod(1)), world.address(world.pod(1)));
      // The lab's pods can reach the node only by per-link addresses that the node selects.
      assert.notEqual(await source(), world.address(world.client));
    },
  },
  {
    title: 'ignored: headless, ExternalName, other proxies, the headless label',
    async run(world) {
      const port = { ports: [{ name: 'http', port: 80 }] };
      const vips = [62, 63].map((number) => world.clusterIP(number));
      await world.apply([
        world.service('headless', { spec: { clusterIP: 'None', clusterIPs: ['None'], ...port } }),
        world.service('alias', {
          spec: {
            type: 'ExternalName',
            externalName: 'example.org',
            clusterIP: undefined,
            clusterIPs: [],
          },
        }),
        world.service('other', {
          labels: { 'service.kubernetes.io/service-proxy-name': 'else' },
          spec: { clusterIPs: [vips[0] ?? ''], ...port },
        }),
        world.service('labelled', {
          labels: { 'service.kubernetes.io/headless': '' },
          spec: { clusterIPs: [vips[1] ?? ''], ...port },
        }),
        ...['other', 'labelled'].map((name) => world.slice(name, [world.pod(0)], { ports: HTTP })),
        ...web(world, [world.pod(0)]),
      ]);
      for (const vip of vips) droppedSilently(await world.client.tcp(vip, 80, SHORT));
      assert.deepEqual(await hostsOf(world), ['pod-1']);
    },
  },
  {
    title: 'dual stack: one Service, both families',
    async run(world) {
      const vips = ['10.96.0.70', 'fd00:10:96::46'];
      await world.apply([
        world.service('dual', {
          spec: { clusterIPs: vips, ports: [{ name: 'http', port: 80 }] },
        }),
        sliceManifest('dual', 4, [world.pod(0)], { ports: HTTP }),
        sliceManifest('dual', 6, [world.pod(1)], { ports: HTTP }),
      ]);
      const hosts = await Promise.all(
        vips.map(async (vip) => answered(await world.client.tcp(vip, 80)).host),
      );
      assert.deepEqual(hosts, ['pod-1', 'pod-2']);
    },
  },
];
