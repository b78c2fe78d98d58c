import assert from 'node:assert/strict';
import { createLab, type Host, type Lab } from '../lab/lab.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { type EndpointFields, type Manifest, withPods } from './manifests.ts';
import { answered, droppedSilently, refused, SHORT, World } from './scenarios/scenario.ts';

/** An endpoint of the pod with this ordinal. */
const owner = (host: Host, ordinal: number, fields: EndpointFields = {}) =>
  [host, { targetRef: { kind: 'Pod', name: `media-${ordinal}` }, ...fields }] as const;

/** Slices that are ranges, and slices that one exact lookup finds, see nftables/exact-slice-chains.ts. */
const SHAPES = [
  { perPod: 100, first: 20_000, firstTcp: 30_000 },
  { perPod: 128, first: 20_480, firstTcp: 30_080 },
] as const;

for (const { perPod, first, firstTcp } of SHAPES) {
  const at = (ordinal: number, offset: number) => first + ordinal * perPod + offset;
  const tcpAt = (ordinal: number, offset: number) => firstTcp + ordinal * perPod + offset;
  const [last, lastTcp] = [at(9, perPod - 1), tcpAt(9, perPod - 1)];
  const OWNED = {
    'portwide.dev/owned-ports': `${first}-${last}/UDP,${firstTcp}-${lastTcp}/TCP,${firstTcp}-${lastTcp}/SCTP`,
    'portwide.dev/ports-per-pod': String(perPod),
  };

  describe(`owned ports, ${perPod} for each pod`, () => {
    let lab: Lab;
    let agent: Agent;
    let other: Agent;

    before(async () => {
      lab = await createLab({ pods: 2, remotePods: 2 });
      await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
      await lab.client.serve({ protocol: 'UDP', port: 9000 });
      const flags = [...AGENT_FLAGS, '--proxy-mode=nftables'];
      agent = new Agent(lab, { syncs: 2 });
      // Its own node shows what it has applied: the client's packets pass the other node.
      other = new Agent({ ...lab, node: lab.node2, client: lab.node2 }, { syncs: 2 });
      await Promise.all([agent.start(flags), other.start([...flags, '--hostname-override=node2'])]);
    });

    after(async () => {
      await Promise.all([agent?.destroy(), other?.destroy()]);
      await lab?.destroy();
    });

    for (const family of [4, 6] as const) {
      describe(`IPv${family}`, () => {
        let world: World;
        const apply = async (objects: readonly Manifest[]) => {
          const all = withPods(objects);
          await Promise.all([agent.apply(all), other.apply(all)]);
        };
        const media = (annotations: Record<string, string> = OWNED, spec = {}) =>
          world.service('media', {
            annotations,
            spec: { clusterIPs: [world.clusterIP(20)], ...spec },
          });
        const pods = () => [
          owner(world.pod(0), 0),
          owner(world.remote(0), 1),
          owner(world.pod(1), 3),
        ];

        beforeEach(() => {
          world = new World(lab, agent, family);
        });

        it('a UDP packet reaches the owner of its port at the same port, and the answer comes from the VIP', async () => {
          await apply([media(), world.slice('media', pods())]);
          const vip = world.clusterIP(20);
          for (const from of [world.client, world.node, world.pod(1), world.remote(1)]) {
            for (const [port, host] of [
              [at(0, 0), 'pod-1'],
              [at(0, 99), 'pod-1'],
              [at(1, 0), 'remote-1'],
              [at(1, 99), 'remote-1'],
            ] as const) {
              const reply = answered(await from.udp(vip, port));
              assert.deepEqual([reply.host, reply.localPort], [host, port], from.name);
            }
          }
          const seen = answered(await world.client.udp(vip, at(1, 50)));
          assert.equal(seen.remoteAddress, world.address(world.client));
        });

        it('a port without owner is rejected', async () => {
          await apply([media(), world.slice('media', pods())]);
          for (const port of [at(2, 0), at(9, 99), last + 1, first - 1])
            refused(await world.client.udp(world.clusterIP(20), port));
          refused(await world.client.tcp(world.clusterIP(20), tcpAt(2, 0)));
          const fromOwner = await world
            .pod(0)
            .udp(world.clusterIP(20), at(2, 0), { localPort: at(0, 8) });
          refused(fromOwner);
        });

        it('nothing to the VIP leaves the node: no packet of an owner, and no error of a client', async () => {
          await apply([media(), world.slice('media', pods())]);
          const [ip, vip] = [world.pick('ip', 'ip6'), world.clusterIP(20)];
          await lab.node.exec('nft', ['-f', '-'], {
            input: `table ${ip} leaving { counter gone { }
            chain post { type filter hook postrouting priority 300; ${ip} daddr ${vip} counter name gone; }; }`,
          });
          try {
            refused(await world.pod(0).udp(vip, at(2, 0), { localPort: at(0, 8) }));
            // The client has no socket there, so it answers with an ICMP error to the VIP.
            droppedSilently(
              await world
                .pod(0)
                .udp(world.address(world.client), 9111, { ...SHORT, localPort: at(0, 9) }),
            );
            const { stdout } = await lab.node.exec('nft', [
              'list',
              'counter',
              ip,
              'leaving',
              'gone',
            ]);
            assert.match(stdout, /packets 0 /);
          } finally {
            await lab.node.exec('nft', ['delete', 'table', ip, 'leaving']);
          }
        });

        it('a TCP connection reaches the owner of its port', async () => {
          await apply([media(), world.slice('media', pods())]);
          for (const from of [world.client, world.node, world.pod(1)]) {
            for (const [port, host] of [
              [tcpAt(0, 0), 'pod-1'],
              [tcpAt(1, 0), 'remote-1'],
              [tcpAt(3, 99), 'pod-2'],
            ] as const) {
              const reply = answered(await from.tcp(world.clusterIP(20), port));
              assert.deepEqual([reply.host, reply.localPort], [host, port], from.name);
            }
          }
        });

        it('an SCTP packet reaches the owner of its port', async () => {
          await apply([media(), world.slice('media', pods())]);
          for (const [port, host] of [
            [tcpAt(0, 0), 'pod-1'],
            [tcpAt(1, 99), 'remote-1'],
          ] as const) {
            const reply = answered(await world.client.sctpProbe(world.clusterIP(20), port));
            assert.deepEqual([reply.host, reply.localPort], [host, port]);
          }
          refused(await world.client.sctpProbe(world.clusterIP(20), tcpAt(2, 0)));
        });

        it('a TCP connection reaches an owner whose node the EndpointSlice does not name', async () => {
          const nodeName = undefined;
          const unnamed = [
            owner(world.pod(0), 0, { nodeName }),
            owner(world.remote(0), 1, { nodeName }),
          ];
          await apply([media(), world.slice('media', unnamed)]);
          for (const from of [world.client, world.node, world.pod(1), world.pod(0)]) {
            for (const [port, host] of [
              [tcpAt(0, 0), 'pod-1'],
              [tcpAt(1, 0), 'remote-1'],
            ] as const)
              assert.equal(
                answered(await from.tcp(world.clusterIP(20), port)).host,
                host,
                from.name,
              );
          }
        });

        it('an owner speaks as the VIP, also first, and to another owner', async () => {
          await apply([media(), world.slice('media', pods())]);
          const vip = world.clusterIP(20);
          for (const [pod, localPort] of [
            [world.pod(0), at(0, 5)],
            [world.remote(0), at(1, 5)],
          ] as const) {
            const reply = answered(await pod.udp(world.address(world.client), 9000, { localPort }));
            assert.deepEqual([reply.remoteAddress, reply.remotePort], [vip, localPort]);
          }
          for (const [pod, localPort, port, host] of [
            [world.pod(0), at(0, 7), at(1, 7), 'remote-1'],
            [world.remote(0), at(1, 8), at(0, 8), 'pod-1'],
            [world.pod(0), at(0, 9), at(3, 9), 'pod-2'],
          ] as const) {
            const reply = answered(await pod.udp(vip, port, { localPort }));
            assert.deepEqual(
              [reply.host, reply.remoteAddress, reply.remotePort],
              [host, vip, localPort],
            );
          }
        });

        it('UDP packets of owned ports are not tracked', async () => {
          await apply([media(), world.slice('media', pods())]);
          for (const node of [lab.node, lab.node2]) await node.exec('conntrack', ['-F']);
          for (const port of [at(0, 10), at(1, 10), at(3, 10)]) {
            for (const from of [world.client, world.node, world.remote(1)])
              answered(await from.udp(world.clusterIP(20), port));
          }
          for (const node of [lab.node, lab.node2]) {
            const { stdout } = await node.exec('conntrack', ['-L', '-p', 'udp']);
            const entries = stdout.split('\n').filter((line) => /=2[01][0-9]{3}\b/.test(line));
            assert.deepEqual(entries, [], node.name);
          }
        });

        it('fragmented packets reach the owner, and its fragmented answers the client', async () => {
          await apply([media(), world.slice('media', pods())]);
          const payload = 'x'.repeat(4000);
          for (const port of [at(0, 20), at(1, 20)]) {
            const reply = answered(await world.client.udp(world.clusterIP(20), port, { payload }));
            assert.equal(reply.payload, payload);
          }
        });

        it('an owner that does not serve gets nothing, and still speaks as the VIP', async () => {
          const conditions = { ready: false, serving: false, terminating: true };
          const ended = [owner(world.pod(0), 0, { conditions }), owner(world.remote(0), 1)];
          await apply([media(), world.slice('media', ended)]);
          refused(await world.client.udp(world.clusterIP(20), at(0, 0)));
          // Its answer is rejected, so that only the client sees who spoke.
          const ip = world.pick('ip', 'ip6');
          const source = `${ip} saddr ${world.clusterIP(20)} udp sport ${at(0, 30)} counter`;
          const script = `table ${ip} seen { chain in { type filter hook input priority 0; ${source}; }; }`;
          await world.client.exec('nft', ['-f', '-'], { input: script });
          try {
            await world
              .pod(0)
              .udp(world.address(world.client), 9000, { ...SHORT, localPort: at(0, 30) });
            const { stdout } = await world.client.exec('nft', ['list', 'table', ip, 'seen']);
            assert.match(stdout, /counter packets 1 /);
          } finally {
            await world.client.exec('nft', ['delete', 'table', ip, 'seen']);
          }
        });

        it('ICMP errors of an owner about owned ports do not leave with its address', async () => {
          await apply([media(), world.slice('media', pods())]);
          const icmp = world.pick('icmp', 'icmpv6');
          const ip = world.pick('ip', 'ip6');
          const rules = [world.pod(1), world.remote(0)].map(
            (pod) => `${ip} saddr ${world.address(pod)} meta l4proto ${icmp} counter;`,
          );
          const script = `table ${ip} seen { chain in { type filter hook input priority 0; ${rules.join(' ')} }; }`;
          const closed = [world.pod(1), world.remote(0)];
          await Promise.all(closed.map((pod) => pod.stopServingEveryPort()));
          await world.client.exec('nft', ['-f', '-'], { input: script });
          try {
            const seen = async () => {
              const { stdout } = await world.client.exec('nft', ['list', 'table', ip, 'seen']);
              return [...stdout.matchAll(/counter packets (\d+)/g)].map(([, count]) =>
                Number(count),
              );
            };
            for (const port of [at(0, 40), at(1, 40), at(3, 40)])
              await world.client.udp(world.clusterIP(20), port, SHORT);
            assert.deepEqual(await seen(), [0, 0]);
            // Errors about tracked packets pass.
            for (const pod of closed) refused(await world.client.udp(world.address(pod), 40));
            assert.deepEqual(await seen(), [1, 1]);
          } finally {
            await world.client.exec('nft', ['delete', 'table', ip, 'seen']);
            await Promise.all(closed.map((pod) => pod.serveEveryPort()));
          }
        });

        it('an exact port of another Service wins over an owned port', async () => {
          const vip = world.vip(5);
          const ingress = [{ ip: vip }];
          const owning = world.service('media', {
            annotations: OWNED,
            ingress,
            spec: { type: 'LoadBalancer', clusterIPs: [world.clusterIP(20)] },
          });
          const dns = world.service('dns', {
            ingress,
            spec: {
              type: 'LoadBalancer',
              clusterIPs: [world.clusterIP(21)],
              ports: [{ port: at(0, 50), protocol: 'UDP', targetPort: 53 }],
            },
          });
          const ports = [{ name: '', port: 53, protocol: 'UDP' }];
          const owned = [owning, world.slice('media', pods())];
          await apply([...owned, dns, world.slice('dns', [world.pod(1)], { ports })]);
          const reply = answered(await world.client.udp(vip, at(0, 50)));
          assert.deepEqual([reply.host, reply.localPort], ['pod-2', 53]);
          for (const port of [at(0, 49), at(0, 51)])
            assert.equal(answered(await world.client.udp(vip, port)).host, 'pod-1');
          await apply(owned);
          assert.equal(answered(await world.client.udp(vip, at(0, 50))).host, 'pod-1');
        });

        it('UDP is served on the load balancer IP only, from the allowed sources only', async () => {
          const lb = world.service('media', {
            annotations: OWNED,
            ingress: [{ ip: world.vip(20), ipMode: 'VIP' }],
            spec: {
              type: 'LoadBalancer',
              clusterIPs: [world.clusterIP(20)],
              loadBalancerSourceRanges: [world.client, world.pod(0), world.remote(0)].map(
                (host) => `${world.address(host)}/${world.pick('32', '128')}`,
              ),
            },
          });
          await apply([lb, world.slice('media', pods())]);
          assert.equal(answered(await world.client.udp(world.vip(20), at(0, 0))).host, 'pod-1');
          refused(await world.client.udp(world.vip(20), at(2, 0)));
          refused(await world.client.udp(world.clusterIP(20), at(0, 0)));
          assert.equal(
            answered(await world.client.tcp(world.clusterIP(20), tcpAt(0, 0))).host,
            'pod-1',
          );
          const [, second = ''] = world.client.addresses[family];
          for (const port of [at(0, 0), at(2, 0)])
            droppedSilently(
              await world.client.udp(world.vip(20), port, { ...SHORT, localAddress: second }),
            );
          const reply = answered(
            await world.pod(0).udp(world.vip(20), at(1, 7), { localPort: at(0, 7) }),
          );
          assert.deepEqual(
            [reply.host, reply.remoteAddress, reply.remotePort],
            ['remote-1', world.vip(20), at(0, 7)],
          );
          refused(await world.pod(0).udp(world.clusterIP(20), at(1, 7), { localPort: at(0, 7) }));
        });

        it('turns from spread to owned and back', async () => {
          const spread = {
            'portwide.dev/ports': `${first}-${last}/UDP,${firstTcp}-${lastTcp}/TCP`,
          };
          await apply([media(spread), world.slice('media', pods())]);
          const vip = world.clusterIP(20);
          const localPort = 41000;
          answered(await world.client.udp(vip, at(0, 60), { localPort }));
          await apply([media(), world.slice('media', pods())]);
          for (let packet = 0; packet < 5; packet++)
            assert.equal(
              answered(await world.client.udp(vip, at(0, 60), { localPort })).host,
              'pod-1',
            );
          const { stdout } = await lab.node.exec('conntrack', ['-L', '-p', 'udp']);
          assert.doesNotMatch(stdout, new RegExp(`dport=${at(0, 60)}`));
          await apply([media(spread), world.slice('media', pods())]);
          const { answered: by } = await world.client.burst(vip, at(0, 60), 60, {
            protocol: 'UDP',
          });
          assert.equal(Object.keys(by).length, 3);
        });
      });
    }
  });
}
