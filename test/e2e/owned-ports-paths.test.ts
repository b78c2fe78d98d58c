/** Packets of owned ports on their way: checksums, hops, VIPs that move, traffic policies and health checks. */
import assert from 'node:assert/strict';
import { createLab, type Host, type Lab, repeatUntil, waitFor } from '../lab/lab.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { addressedPod, type EndpointFields, type Manifest, withPods } from './manifests.ts';
import { answered, droppedSilently, refused, SHORT, World } from './scenarios/scenario.ts';

const OWNED = {
  'portwide.dev/owned-ports': '20000-20999/UDP,30000-30999/TCP',
  'portwide.dev/ports-per-pod': '100',
};
/** A UDP port that the client serves. */
const SERVED = 9000;
/** The first hop limit of Linux hosts. */
const HOPS = 64;
/** A health check node port among the owned TCP ports of pod 0. */
const HEALTH = 30_050;
const NOT_READY = { conditions: { ready: false, serving: false, terminating: true } };

describe('owned ports: packets on their way', () => {
  let lab: Lab;
  let agent: Agent;
  let other: Agent;

  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 2 });
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
    await lab.client.serve({ protocol: 'UDP', port: SERVED });
    const flags = [...AGENT_FLAGS, '--proxy-mode=nftables'];
    agent = new Agent(lab, { syncs: 2 });
    other = new Agent({ ...lab, node: lab.node2, client: lab.node2 }, { syncs: 2 });
    await Promise.all([agent.start(flags), other.start([...flags, '--hostname-override=node2'])]);
  });

  after(async () => {
    await Promise.all([agent?.destroy(), other?.destroy()]);
    await lab?.destroy();
  });

  const owner = (host: Host, ordinal: number, fields: EndpointFields = {}) =>
    [host, { targetRef: { kind: 'Pod', name: `media-${ordinal}` }, ...fields }] as const;
  const applyOnly = async (objects: readonly Manifest[]) => {
    await Promise.all([agent.apply(objects), other.apply(objects)]);
  };
  const apply = (objects: readonly Manifest[]) => applyOnly(withPods(objects));

  for (const family of [4, 6] as const) {
    describe(`IPv${family}`, () => {
      let world: World;
      let vip: string;
      const ip = family === 4 ? 'ip' : 'ip6';
      const icmp = family === 4 ? 'icmp' : 'icmpv6';
      const hopField = family === 4 ? 'ip ttl' : 'ip6 hoplimit';
      /** Owners of the first two slices, on this node and on the other, with the first port of each. */
      const owners = () =>
        [
          [world.pod(0), 20_000],
          [world.remote(0), 20_100],
        ] as const;
      const pods = () => owners().map(([pod], ordinal) => owner(pod, ordinal));

      /** A load balancer Service for local traffic only. @param ranges addresses that may use it. */
      const balanced = (ranges: readonly string[] = []) =>
        world.service('media', {
          annotations: OWNED,
          ingress: [{ ip: world.vip(20), ipMode: 'VIP' }],
          spec: {
            type: 'LoadBalancer',
            clusterIPs: [vip],
            externalTrafficPolicy: 'Local',
            healthCheckNodePort: HEALTH,
            loadBalancerSourceRanges: ranges.map(
              (address) => `${address}/${world.pick('32', '128')}`,
            ),
          },
        });

      beforeEach(async () => {
        world = new World(lab, agent, family);
        vip = world.clusterIP(20);
        const media = world.service('media', { annotations: OWNED, spec: { clusterIPs: [vip] } });
        await apply([media, world.slice('media', pods())]);
      });

      /** Counts packets that a host receives, by conditions in nft syntax, while `run` sends them. */
      const counting = async (
        host: Host,
        conditions: readonly string[],
        run: () => Promise<unknown>,
      ): Promise<number[]> => {
        const rules = conditions.map((condition) => `${condition} counter;`).join(' ');
        await host.exec('nft', ['-f', '-'], {
          input: `table ${ip} seen { chain in { type filter hook prerouting priority -450; ${rules} }; }`,
        });
        try {
          await run();
          const { stdout } = await host.exec('nft', ['list', 'table', ip, 'seen']);
          return [...stdout.matchAll(/counter packets (\d+)/g)].map(([, count]) => Number(count));
        } finally {
          await host.exec('nft', ['delete', 'table', ip, 'seen']);
        }
      };

      if (family === 4) {
        it('a UDP packet without checksum arrives without one, and its answer too', async () => {
          for (const [pod, first] of owners()) {
            const port = first + 1;
            const options = { localPort: 21_000, hasChecksum: false };
            const atOwner = [`udp dport ${port} udp checksum 0`, `udp dport ${port}`];
            const atClient = [`ip saddr ${vip} udp sport ${port} udp checksum 0`];
            let atBoth: number[] = [];
            const seen = await counting(pod, atOwner, async () => {
              atBoth = await counting(world.client, atClient, async () => {
                answered(await world.client.udp(vip, port, options));
              });
            });
            assert.deepEqual([...seen, ...atBoth], [1, 1, 1], pod.name);
          }
        });

        it('an owner that speaks first without checksum is heard as the VIP without one', async () => {
          for (const [pod, first] of owners()) {
            const options = { localPort: first + 2, hasChecksum: false };
            const atClient = [`ip saddr ${vip} udp sport ${first + 2} udp checksum 0`];
            const seen = await counting(world.client, atClient, async () => {
              answered(await pod.udp(world.address(world.client), SERVED, options));
            });
            assert.deepEqual(seen, [1], pod.name);
          }
        });
      }

      it('each node decrements the hop limit once', async () => {
        for (const [index, [pod, first]] of owners().entries()) {
          const port = first + 3;
          const answer = `${ip} saddr ${vip} udp sport ${port} ${hopField} ${HOPS - 1}`;
          // A packet to the other node passes this node, and its answer only the other node.
          const request = `udp dport ${port} ${hopField} ${HOPS - 1 - index}`;
          let answers: number[] = [];
          const requests = await counting(pod, [request], async () => {
            answers = await counting(world.client, [answer], async () => {
              answered(await world.client.udp(vip, port));
            });
          });
          assert.deepEqual([requests, answers], [[1], [1]], pod.name);
        }
      });

      it('errors about hops name the owner to clients, and reach owners from their own node only', async () => {
        const exceeded = `${icmp} type time-exceeded`;
        const client = { ...SHORT, hops: 1, localPort: 21_001 };
        const seen = await counting(world.client, [exceeded], async () => {
          // The error is about a packet to the owner, so the socket of the client ignores it.
          for (const [, first] of owners())
            droppedSilently(await world.client.udp(vip, first + 4, client));
        });
        assert.deepEqual(seen, [2]);
        const type = world.pick('ICMP_11_0', 'ICMP_3_0');
        for (const [pod, first] of owners()) {
          const localPort = first + 5;
          const outcome = await pod.udp(world.address(world.client), SERVED, {
            hops: 1,
            localPort,
          });
          assert.deepEqual(outcome, { outcome: 'error', code: type }, pod.name);
        }
        // The packet has left the node of its owner as the VIP.
        const [pod, remote] = [world.pod(0), world.remote(0)];
        for (const [from, at, localPort, port] of [
          [pod, lab.node, 20_006, 20_106],
          [remote, lab.node2, 20_107, 20_007],
        ] as const) {
          let atOwner: number[] = [];
          const atNode = await counting(at, [exceeded], async () => {
            atOwner = await counting(from, [exceeded], async () => {
              droppedSilently(await from.udp(vip, port, { ...SHORT, hops: 2, localPort }));
            });
          });
          assert.deepEqual([atNode, atOwner], [[0], [0]], from.name);
        }
      });

      it('a VIP that moves from one node to the other loses no packet', async () => {
        const nodes = [lab.node2, lab.node];
        const options = { localPort: 21_002 };
        const ports = owners().map(([, first]) => first + 8);
        const lost = { refused: 0, timeout: 0, errors: 0 };
        let isOver = false;
        const routeBy = (node: Host) =>
          world.client.exec('ip', ['route', 'replace', vip, 'via', world.address(node)]);
        const traffic = repeatUntil(
          () => isOver,
          async () => {
            const tally = await world.client.burst(vip, ports, 100, {
              protocol: 'UDP',
              concurrency: 4,
              timeoutMs: 2000,
            });
            lost.refused += tally.refused;
            lost.timeout += tally.timeout;
            lost.errors += Object.keys(tally.errors).length;
          },
        );
        try {
          for (const node of [...nodes, ...nodes, ...nodes]) {
            await routeBy(node);
            for (const [pod, first] of owners()) {
              // The same call, before and after the move.
              const condition = `${ip} daddr ${vip} udp sport 21002`;
              const seen = await counting(node, [condition], async () => {
                const reply = answered(await world.client.udp(vip, first + 9, options));
                assert.deepEqual(
                  [reply.host, reply.remoteAddress],
                  [pod.name, world.address(world.client)],
                );
              });
              assert.deepEqual(seen, [1], `${pod.name} by ${node.name}`);
            }
          }
        } finally {
          isOver = true;
          await traffic;
          await world.client.exec('ip', ['route', 'del', vip]);
        }
        assert.deepEqual(lost, { refused: 0, timeout: 0, errors: 0 });
      });

      it('a pod on the host network owns nothing', async () => {
        const media = world.service('media', { annotations: OWNED, spec: { clusterIPs: [vip] } });
        const onHost = owner(lab.node2, 1, { nodeName: 'node2' });
        const [first, node2] = [world.pod(0), lab.node2].map((host) => world.address(host));
        await applyOnly([
          media,
          world.slice('media', [owner(world.pod(0), 0), onHost]),
          addressedPod('media-0', [first ?? '']),
          addressedPod('media-1', [node2 ?? ''], { hostNetwork: true }),
        ]);
        refused(await world.client.udp(vip, 20_112));
        assert.equal(answered(await world.client.udp(vip, 20_012)).host, world.pod(0).name);
      });

      /** The code of a health check; 0 without an answer. */
      const health = async (address: string, localAddress = world.address(world.client)) => {
        const request = { host: address, port: HEALTH, localAddress, timeout: 2000 };
        const script = `require('node:http').get(${JSON.stringify(request)}, ({ statusCode }) => {
            console.log(statusCode); process.exit();
          }).on('timeout', function () { this.destroy(); }).on('error', () => console.log(0));`;
        const { stdout } = await world.client.exec(process.execPath, ['-e', script]);
        return Number(stdout);
      };
      const expectHealth = async (codes: readonly [node: number, node2: number]) => {
        for (const [index, node] of [lab.node, lab.node2].entries()) {
          await waitFor(
            `health of ${node.name} is ${codes[index]}`,
            async () => (await health(world.address(node))) === codes[index],
          );
        }
      };

      it('externalTrafficPolicy Local: health checks count owners of the node, and every owner gets its packets', async () => {
        const [[here], [there]] = owners();
        const lb = world.vip(20);
        await apply([balanced(), world.slice('media', pods())]);
        await expectHealth([200, 200]);
        const call = async (port: number) => answered(await world.client.udp(lb, port));
        for (const [pod, first] of owners()) {
          const reply = await call(first + 10);
          assert.deepEqual(
            [reply.host, reply.remoteAddress],
            [pod.name, world.address(world.client)],
          );
        }
        assert.equal(answered(await world.client.tcp(lb, 30_000)).host, here.name);
        assert.equal(answered(await world.client.tcp(lb, 30_100)).host, there.name);

        await apply([
          balanced(),
          world.slice('media', [owner(here, 0, NOT_READY), owner(there, 1)]),
        ]);
        await expectHealth([503, 200]);
        refused(await world.client.udp(lb, 20_010));
        assert.equal((await call(20_110)).host, there.name);

        await apply([balanced(), world.slice('media', [owner(here, 0)])]);
        await expectHealth([200, 503]);
        refused(await world.client.udp(lb, 20_110));
      });

      it('the health check node port on the VIP answers every source, and owned ports the allowed ones', async () => {
        const lb = world.vip(20);
        const [first, second = ''] = world.client.addresses[family];
        await apply([balanced([first ?? '']), world.slice('media', pods())]);
        await world.routeToNode('add', lb);
        try {
          await waitFor('the VIP answers', async () => (await health(lb)) === 200);
          assert.equal(await health(lb, second), 200);
          assert.equal(await health(world.address(lab.node), second), 200);
          for (const [pod, port] of owners())
            assert.equal(answered(await world.client.udp(lb, port + 11)).host, pod.name);
          // Ports beside the health check node port have an owner.
          assert.equal(answered(await world.client.tcp(lb, HEALTH + 1)).host, world.pod(0).name);
          const from = { ...SHORT, localAddress: second };
          for (const [, port] of owners()) {
            droppedSilently(await world.client.udp(lb, port + 11, from));
            droppedSilently(await world.client.tcp(lb, port + 10_011, from));
          }
        } finally {
          await world.routeToNode('del', lb);
        }
      });
    });
  }
});
