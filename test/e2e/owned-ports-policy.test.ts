/** Network policy for UDP packets of owned ports, which are not tracked: two nodes with an agent each. */

import assert from 'node:assert/strict';
import { createLab, type Host, type Lab } from '../lab/lab.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import type { Manifest } from './manifests.ts';
import { namespaceManifest, networkPolicy, podManifest } from './policy-manifests.ts';
import { Barrier } from './policy-random/barrier.ts';
import { answered, droppedSilently, SHORT, World } from './scenarios/scenario.ts';

const OWNED = {
  'portwide.dev/owned-ports': '20000-20999/UDP,30000-30999/TCP',
  'portwide.dev/ports-per-pod': '100',
};
/** A UDP port that the client and the node serve. */
const SERVED = 9000;
/** A port of the client that no socket serves. */
const CALLER = 9100;

describe('network policy for owned ports', () => {
  let lab: Lab;
  let agents: readonly Agent[] = [];
  let barriers: readonly Barrier[] = [];
  /** Ports that no other test has used: recorded answers outlive a test. */
  let nextPort = 0;
  const fresh = (first: number) => first + (nextPort++ % 100);

  before(async () => {
    lab = await createLab({ pods: 4, remotePods: 3 });
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
    for (const host of [lab.client, lab.node]) await host.serve({ protocol: 'UDP', port: SERVED });
    const [here, there] = [
      new Agent(lab, { syncs: 2 }),
      new Agent({ ...lab, node: lab.node2 }, { syncs: 2 }),
    ];
    agents = [here, there];
    const [last, remoteLast] = [lab.pods.at(-1), lab.remotePods.at(-1)];
    assert.ok(last !== undefined && remoteLast !== undefined);
    barriers = [new Barrier(lab, here, last), new Barrier(lab, there, remoteLast)];
    for (const barrier of barriers) barrier.write(pods());
    const flags = [...AGENT_FLAGS, '--proxy-mode=nftables', '--network-policy'];
    await Promise.all([here.start(flags), there.start([...flags, '--hostname-override=node2'])]);
  });

  after(async () => {
    await Promise.all(agents.map((agent) => agent.destroy()));
    await lab?.destroy();
  });

  const pods = (): Manifest[] => [
    namespaceManifest('default'),
    ...[...lab.pods.slice(0, -1), ...lab.remotePods.slice(0, -1)].map((pod) => podManifest(pod)),
  ];
  const enforce = (...policies: readonly Manifest[]) =>
    Promise.all(barriers.map((barrier) => barrier.apply([...pods(), ...policies])));
  const named = (...hosts: readonly Host[]) => ({
    matchExpressions: [{ key: 'pod', operator: 'In', values: hosts.map(({ name }) => name) }],
  });

  for (const family of [4, 6] as const) {
    describe(`IPv${family}`, () => {
      let world: World;
      let vip: string;
      /** Owners of 20000-20099, 20100-20199 and 20300-20399. */
      let [owner, far, near]: Host[] = [];
      let [app, remoteApp]: Host[] = [];

      before(async () => {
        const [agent] = agents;
        assert.ok(agent !== undefined);
        world = new World(lab, agent, family);
        vip = world.clusterIP(20);
        [owner, near, app] = lab.pods;
        [far, remoteApp] = lab.remotePods;
        const endpoints = [
          [host(owner), { targetRef: { kind: 'Pod', name: 'media-0' } }],
          [host(far), { targetRef: { kind: 'Pod', name: 'media-1' } }],
          [host(near), { targetRef: { kind: 'Pod', name: 'media-3' } }],
        ] as const;
        const media = world.service('media', { annotations: OWNED, spec: { clusterIPs: [vip] } });
        await Promise.all(
          agents.map((each) => each.apply([media, world.slice('media', endpoints)])),
        );
      });

      const host = (found: Host | undefined): Host => {
        assert.ok(found !== undefined);
        return found;
      };
      const block = (address: string) => ({
        ipBlock: { cidr: `${address}/${world.pick('32', '128')}` },
      });
      const udp = [{ protocol: 'UDP', port: 20000, endPort: 20999 }];
      const isolated = (types: readonly string[], rules: Record<string, unknown> = {}) =>
        networkPolicy('media', {
          podSelector: named(host(owner), host(far), host(near)),
          policyTypes: types,
          ...rules,
        });
      const both = ['Ingress', 'Egress'];
      const address = (of: Host | undefined) => world.address(host(of));
      const owners = () =>
        [
          [host(owner), 20000],
          [host(far), 20100],
        ] as const;

      it('a packet that ingress allows reaches the owner, and its answer passes', async () => {
        const from = [block(address(world.client))];
        await enforce(isolated(both, { ingress: [{ from, ports: udp }] }));
        const [, second = ''] = world.client.addresses[family];
        for (const [pod, first] of owners()) {
          const port = fresh(first);
          const reply = answered(await world.client.udp(vip, port));
          assert.deepEqual([reply.host, reply.remoteAddress], [pod.name, address(world.client)]);
          droppedSilently(await world.client.udp(vip, port, { ...SHORT, localAddress: second }));
          droppedSilently(await host(app).udp(vip, port, SHORT));
          droppedSilently(await host(remoteApp).udp(vip, port, SHORT));
          // An owner that speaks first needs a rule for egress.
          const localPort = fresh(first);
          droppedSilently(await pod.udp(address(world.client), SERVED, { ...SHORT, localPort }));
        }
      });

      it('an owner speaks first if egress allows it, and only the answer passes ingress', async () => {
        await enforce(isolated(['Ingress']));
        for (const [pod, first] of owners()) {
          const localPort = fresh(first);
          droppedSilently(await world.client.udp(vip, localPort, SHORT));
          const reply = answered(await pod.udp(address(world.client), SERVED, { localPort }));
          assert.equal(reply.remoteAddress, vip);
          droppedSilently(await world.client.udp(vip, localPort, SHORT));
          droppedSilently(await host(app).udp(vip, localPort, SHORT));
        }
      });

      it('egress rules hold for owners that speak first', async () => {
        const to = [block(address(world.client))];
        await enforce(
          isolated(both, { egress: [{ to, ports: [{ protocol: 'UDP', port: SERVED }] }] }),
        );
        for (const [pod, first] of owners()) {
          answered(await pod.udp(address(world.client), SERVED, { localPort: fresh(first) }));
          for (const target of [address(app), address(remoteApp), address(world.node)]) {
            const localPort = fresh(first);
            droppedSilently(await pod.udp(target, SERVED, { ...SHORT, localPort }));
          }
        }
      });

      it('an owner answers its own node, which policies never deny', async () => {
        await enforce(isolated(both));
        const port = fresh(20000);
        answered(await world.node.udp(vip, port));
        droppedSilently(await world.client.udp(vip, port, SHORT));
      });

      it('a pod that ingress isolates gets answers from owners of both nodes, and nothing else', async () => {
        const spec = { podSelector: named(host(app), host(remoteApp)), policyTypes: ['Ingress'] };
        await enforce(networkPolicy('apps', spec));
        for (const client of [host(app), host(remoteApp)]) {
          for (const [pod, first] of owners()) {
            const [port, localPort] = [fresh(first), 43_000 + fresh(0)];
            droppedSilently(
              await pod.udp(address(client), localPort, { ...SHORT, localPort: port }),
            );
            const reply = answered(await client.udp(vip, port, { localPort }));
            assert.equal(reply.host, pod.name);
            const other = fresh(first);
            droppedSilently(
              await pod.udp(address(client), localPort, { ...SHORT, localPort: other }),
            );
            droppedSilently(
              await pod.udp(address(client), localPort + 500, { ...SHORT, localPort: port }),
            );
          }
        }
      });

      it('owners of one node see each other as pods', async () => {
        const peers = [{ podSelector: named(host(owner), host(near)) }];
        await enforce(isolated(both, { ingress: [{ from: peers, ports: udp }] }));
        droppedSilently(
          await host(owner).udp(vip, fresh(20300), { ...SHORT, localPort: fresh(20000) }),
        );
        const rules = {
          ingress: [{ from: peers, ports: udp }],
          egress: [{ to: peers, ports: udp }],
        };
        await enforce(isolated(both, rules));
        const localPort = fresh(20000);
        const reply = answered(await host(owner).udp(vip, fresh(20300), { localPort }));
        assert.deepEqual([reply.host, reply.remoteAddress], [host(near).name, vip]);
      });

      it('an owner of another node is the VIP to ingress, and a pod to egress', async () => {
        const peers = [{ podSelector: named(host(owner), host(far)) }];
        const rulesFor = (from: readonly object[]) => ({
          ingress: [{ from, ports: udp }],
          egress: [{ to: peers, ports: udp }],
        });
        const pairs = [
          [host(owner), 20000, 20100],
          [host(far), 20100, 20000],
        ] as const;
        await enforce(isolated(both, rulesFor(peers)));
        for (const [pod, own, other] of pairs) {
          const options = { ...SHORT, localPort: fresh(own) };
          droppedSilently(await pod.udp(vip, fresh(other), options));
        }
        await enforce(isolated(both, rulesFor([...peers, block(vip)])));
        for (const [pod, own, other] of pairs) {
          const localPort = fresh(own);
          const reply = answered(await pod.udp(vip, fresh(other), { localPort }));
          assert.deepEqual([reply.remoteAddress, reply.remotePort], [vip, localPort]);
        }
      });

      it('connections of owned TCP ports need the rule of their direction only', async () => {
        const from = [block(address(world.client))];
        const ports = [{ protocol: 'TCP', port: 30000, endPort: 30999 }];
        await enforce(isolated(both, { ingress: [{ from, ports }] }));
        assert.equal(answered(await world.client.tcp(vip, 30000)).host, host(owner).name);
        droppedSilently(await host(app).tcp(vip, 30000, SHORT));
      });

      it('a restart of the agent does not stop answers', async () => {
        await enforce(isolated(['Ingress']));
        const localPort = fresh(20000);
        const call = () => world.client.udp(vip, localPort, { ...SHORT, localPort: CALLER });
        droppedSilently(await call());
        await host(owner).udp(address(world.client), CALLER, { ...SHORT, localPort });
        answered(await call());
        const [agent] = agents;
        await agent?.stop();
        answered(await call());
        await agent?.start();
        await enforce(
          isolated(['Ingress']),
          networkPolicy('other', { podSelector: named(host(app)) }),
        );
        answered(await call());
        droppedSilently(
          await world.client.udp(vip, localPort, { ...SHORT, localPort: CALLER + 1 }),
        );
      });
    });
  }
});
