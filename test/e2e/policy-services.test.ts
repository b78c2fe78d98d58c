/** Guarantees of the documentation and the API, with real packets, including Services. */
import assert from 'node:assert/strict';
import { createLab, type Host, type Lab, type Outcome, repeatUntil, waitFor } from '../lab/lab.ts';
import { MODES, STOCK_KERNEL } from '../uml/kernels.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { ALL_PORTS, type Manifest, serviceManifest, sliceManifest } from './manifests.ts';
import { namespaceManifest, networkPolicy, podManifest } from './policy-manifests.ts';
import { Barrier } from './policy-random/barrier.ts';

/** Longer in an emulated kernel. */
const PROBE = { timeoutMs: STOCK_KERNEL === undefined ? 800 : 4000 };
const NODE_PORT = 30_080;
const VIPS = ['10.96.0.50', 'fd00:10:96::50'] as const;
const ALL_VIPS = ['10.96.0.51', 'fd00:10:96::51'] as const;

const outcomesOf = (outcomes: readonly Outcome[]) => outcomes.map(({ outcome }) => outcome);

for (const mode of MODES) {
  describe(`guarantees of network policy, mode ${mode}`, () => {
    let lab: Lab;
    let agent: Agent;
    let barrier: Barrier;
    let [app, peer, third, remote]: readonly Host[] = [];

    before(async () => {
      lab = await createLab({ pods: 4, remotePods: 1 });
      const servers = [...lab.pods, ...lab.remotePods, lab.client];
      await Promise.all(servers.map((host) => host.serveEveryPort()));
      [app, peer, third] = lab.pods;
      [remote] = lab.remotePods;
      agent = new Agent(lab);
      const [, , , last] = lab.pods;
      assert.ok(last !== undefined);
      barrier = new Barrier(lab, agent, last);
      barrier.write(pods());
      await agent.start([...AGENT_FLAGS, `--proxy-mode=${mode}`, '--network-policy']);
    });
    after(async () => {
      await agent?.destroy();
      await lab?.destroy();
    });
    beforeEach(async () => {
      await agent.apply([]);
      await lab.node.exec('conntrack', ['-F']);
    });

    const host = (found: Host | undefined): Host => {
      assert.ok(found !== undefined);
      return found;
    };
    /** All pods in one namespace, labelled by name. */
    const pods = (): Manifest[] => [
      namespaceManifest('default'),
      ...[app, peer, third, remote].map((each) => podManifest(host(each))),
    ];
    const enforce = (...policies: readonly Manifest[]) => barrier.apply([...pods(), ...policies]);
    const about = (pod: Host | undefined) => ({
      podSelector: { matchLabels: { pod: host(pod).name } },
    });
    const denyAll = () =>
      networkPolicy('deny', { podSelector: {}, policyTypes: ['Ingress', 'Egress'] });
    const both = ({ ipv4, ipv6 }: Host) => [ipv4, ipv6];
    /**
     * Probes each port at both addresses. Returns the ports answered at both, and those answered at
     * neither.
     */
    async function answers(
      from: Host | undefined,
      to: readonly string[],
      ports: readonly number[],
      protocol: 'tcp' | 'udp' | 'sctpProbe' = 'tcp',
    ) {
      const found = await Promise.all(
        ports.map(async (port) => {
          const probes = to.map((address) => host(from)[protocol](address, port, PROBE));
          return [port, outcomesOf(await Promise.all(probes))] as const;
        }),
      );
      const where = (wanted: string) =>
        found.filter(([, all]) => all.every((each) => each === wanted)).map(([port]) => port);
      return { open: where('answered'), closed: where('timeout') };
    }

    if (mode === 'nftables') {
      it('KEP-2079, story 1: allows egress only to the node ports of another cluster', async () => {
        await enforce(
          networkPolicy('node-ports', {
            ...about(app),
            policyTypes: ['Egress'],
            egress: [
              {
                to: ['192.168.77.0/24', 'fd00:77::/64'].map((cidr) => ({ ipBlock: { cidr } })),
                ports: [{ protocol: 'TCP', port: 30_000, endPort: 32_767 }],
              },
            ],
          }),
        );
        const ports = [29_999, 30_000, 31_234, 32_767, 32_768, 80];
        assert.deepEqual(await answers(app, both(lab.client), ports), {
          open: [30_000, 31_234, 32_767],
          closed: [29_999, 32_768, 80],
        });
        assert.deepEqual((await answers(app, both(host(peer)), [30_000])).closed, [30_000]);
        const udp = await answers(app, both(lab.client), [31_234], 'udp');
        assert.deepEqual(udp.closed, [31_234]);
      });

      it('KEP-2079, story 2: allows egress to every port except two, by ranges', async () => {
        const ranges = [
          { port: 1, endPort: 110 },
          { port: 112, endPort: 444 },
          { port: 446, endPort: 65_535 },
        ];
        await enforce(
          networkPolicy('all-but-two', {
            ...about(app),
            policyTypes: ['Egress'],
            egress: [{ ports: ranges }],
          }),
        );
        assert.deepEqual(
          await answers(app, both(host(remote)), [1, 110, 111, 112, 444, 445, 446, 65_535]),
          { open: [1, 110, 112, 444, 446, 65_535], closed: [111, 445] },
        );
      });

      it('KEP-2079, story 3: allows a passive FTP server behind a default deny', async () => {
        await enforce(
          networkPolicy('default-deny', { podSelector: {} }),
          networkPolicy('ftp', {
            ...about(app),
            ingress: [{ ports: [{ port: 21 }, { port: 49_152, endPort: 65_535 }] }],
          }),
        );
        const ports = [20, 21, 22, 49_151, 49_152, 60_000, 65_535];
        const expected = { open: [21, 49_152, 60_000, 65_535], closed: [20, 22, 49_151] };
        for (const from of [lab.client, peer, remote]) {
          assert.deepEqual(await answers(from, both(host(app)), ports), expected);
        }
      });

      it('merges ranges that overlap, touch or contain each other; 1 to 65535 is every port', async () => {
        const rules = (...ports: readonly object[]) => ({
          ...about(app),
          ingress: [{ ports }],
        });
        await enforce(
          networkPolicy(
            'ranges',
            rules(
              { port: 100, endPort: 200 },
              { port: 150, endPort: 250 },
              { port: 251, endPort: 300 },
              { port: 120, endPort: 130 },
              { port: 302, endPort: 302 },
              { protocol: 'UDP', port: 299, endPort: 301 },
            ),
          ),
        );
        const ports = [99, 100, 125, 200, 201, 250, 251, 300, 301, 302, 303];
        assert.deepEqual(await answers(peer, both(host(app)), ports), {
          open: [100, 125, 200, 201, 250, 251, 300, 302],
          closed: [99, 301, 303],
        });
        assert.deepEqual(await answers(peer, both(host(app)), [298, 299, 301, 302], 'udp'), {
          open: [299, 301],
          closed: [298, 302],
        });
        // Few removals among many kept, and the reverse.
        await enforce(
          networkPolicy('ranges', rules({ protocol: 'SCTP', port: 1, endPort: 65_535 })),
        );
        const all = [1, 2, 301, 65_534, 65_535];
        assert.deepEqual((await answers(peer, both(host(app)), all, 'sctpProbe')).open, all);
        assert.deepEqual((await answers(peer, both(host(app)), all)).closed, all);
        await enforce(networkPolicy('ranges', rules({ port: 1, endPort: 65_535 })));
        assert.deepEqual((await answers(peer, both(host(app)), all)).open, all);
        assert.deepEqual((await answers(peer, both(host(app)), all, 'sctpProbe')).closed, all);
      });

      it('allows nothing for a range that ends before it starts or has no start', async () => {
        for (const ports of [[{ port: 90, endPort: 80 }], [{ endPort: 80 }]]) {
          await enforce(networkPolicy('faulty', { ...about(app), ingress: [{ ports }] }));
          assert.deepEqual((await answers(peer, both(host(app)), [79, 80, 90])).open, []);
        }
      });

      it('identifies an address by the pod that has it now', async () => {
        const [a, b, client] = [host(app), host(peer), host(third)];
        const policies = [
          networkPolicy('deny', about(a)),
          networkPolicy('from', {
            ...about(client),
            ingress: [{ from: [about(b)] }],
          }),
        ];
        const swapped = [
          podManifest({ ...a, ipv4: b.ipv4, ipv6: b.ipv6 }),
          podManifest({ ...b, ipv4: a.ipv4, ipv6: a.ipv6 }),
        ];
        const others = [third, remote].map((each) => podManifest(host(each)));
        const expect = async (denied: Host, allowed: Host) => {
          assert.deepEqual((await answers(client, both(denied), [80])).closed, [80]);
          assert.deepEqual((await answers(client, both(allowed), [80])).open, [80]);
          assert.deepEqual((await answers(denied, both(client), [80])).closed, [80]);
          assert.deepEqual((await answers(allowed, both(client), [80])).open, [80]);
        };
        await enforce(...policies);
        await expect(a, b);
        await barrier.apply([namespaceManifest('default'), ...swapped, ...others, ...policies]);
        await expect(b, a);
        // One pod is deleted, and a pod without policies gets its address.
        const heir = { ...podManifest(b), metadata: { name: 'heir', namespace: 'default' } };
        const left = [podManifest(a), heir, ...others];
        await barrier.apply([namespaceManifest('default'), ...left, ...policies]);
        assert.deepEqual((await answers(client, both(a), [80])).closed, [80]);
        assert.deepEqual((await answers(client, both(b), [80])).open, [80]);
        assert.deepEqual((await answers(b, both(client), [80])).closed, [80]);
      });

      it('applies either the old or the new state to connections during changes of labels and policies', async () => {
        const rule = (label: string, ports: readonly number[]) =>
          networkPolicy(label, {
            podSelector: { matchLabels: { state: label } },
            ingress: [{ from: [about(peer)], ports: ports.map((port) => ({ port })) }],
          });
        const labelled = (state: string) => [
          namespaceManifest('default'),
          podManifest(host(app), { labels: { state } }),
          ...[peer, third, remote].map((each) => podManifest(host(each))),
        ];
        const states = [
          [...labelled('one'), rule('one', [80, 81]), rule('two', [80])],
          [...labelled('two'), rule('one', [80, 81]), rule('two', [80])],
          [...labelled('two'), rule('one', [81]), rule('two', [79, 80])],
          [...labelled('one'), rule('one', [80]), rule('two', [80])],
        ];
        const at = async (state: number) => barrier.apply(states[state % states.length] ?? []);
        await at(0);
        let isOver = false;
        let count = 0;
        const wrong: string[] = [];
        const client = async (from: Host, port: number, expected: string) => {
          const timeoutMs = expected === 'timeout' ? 100 : 3000;
          const connect = async () => {
            for (const address of both(host(app))) {
              const { outcome } = await from.tcp(address, port, { timeoutMs });
              count += 1;
              if (outcome !== expected) wrong.push(`${from.name}, ${address} ${port}: ${outcome}`);
            }
          };
          await repeatUntil(() => isOver, connect);
        };
        const clients = [
          client(host(peer), 80, 'answered'),
          client(host(peer), 82, 'timeout'),
          client(host(third), 80, 'timeout'),
        ];
        try {
          for (let state = 1; state <= 12; state++) await at(state);
          const goal = count + 20;
          await waitFor('clients continued', () => count >= goal);
        } finally {
          isOver = true;
          await Promise.all(clients);
        }
        assert.deepEqual(wrong, []);
      });
    }

    describe('with Services', () => {
      const slices = (name: string, endpoints: readonly Host[], ports: readonly object[] = []) =>
        ([4, 6] as const).map((family) =>
          sliceManifest(name, family, endpoints, {
            ports: ports as Readonly<Record<string, unknown>>[],
          }),
        );
      /** Port 80 maps to port 8080 of the endpoints; the other Service is all-ports. */
      const services = (
        endpoints: readonly Host[],
        spec: Readonly<Record<string, unknown>> = {},
      ) => [
        serviceManifest('web', {
          spec: {
            clusterIPs: VIPS,
            ports: [{ name: 'http', port: 80, targetPort: 8080 }],
            ...spec,
          },
        }),
        ...slices('web', endpoints, [{ name: 'http', port: 8080 }]),
        serviceManifest('all', { annotations: ALL_PORTS, spec: { clusterIPs: ALL_VIPS } }),
        ...slices('all', endpoints),
      ];
      const allow = (ports: readonly number[], from?: readonly object[]) =>
        networkPolicy('allow', {
          ...about(app),
          ingress: [{ ...(from && { from }), ports: ports.map((port) => ({ port })) }],
        });

      it("matches the pod's port, not the Service's", async () => {
        await agent.apply(services([host(app)]));
        await enforce(allow([80]));
        assert.deepEqual((await answers(peer, VIPS, [80])).closed, [80]);
        assert.deepEqual(await answers(peer, ALL_VIPS, [80, 8080]), { open: [80], closed: [8080] });
        await enforce(allow([8080]));
        for (const from of [peer, lab.client]) {
          assert.deepEqual((await answers(from, VIPS, [80])).open, [80]);
          const all = await answers(from, ALL_VIPS, [80, 8080]);
          assert.deepEqual(all, { open: [8080], closed: [80] });
        }
        // Also for egress: neither the VIP nor its port is evaluated for the client.
        await enforce(
          networkPolicy('out', {
            ...about(peer),
            policyTypes: ['Egress'],
            egress: [{ to: [about(app)], ports: [{ port: 8080 }] }],
          }),
        );
        assert.deepEqual((await answers(peer, VIPS, [80])).open, [80]);
        assert.deepEqual(await answers(peer, ALL_VIPS, [80, 8080]), { open: [8080], closed: [80] });
      });

      it('allows a pod to reach itself through its Services (hairpin), despite default deny', async () => {
        await agent.apply(services([host(app)]));
        await enforce(denyAll());
        assert.deepEqual((await answers(app, VIPS, [80])).open, [80]);
        assert.deepEqual((await answers(app, ALL_VIPS, [81, 8080])).open, [81, 8080]);
        assert.deepEqual((await answers(peer, VIPS, [80])).closed, [80]);
        // Another pod is not a hairpin.
        await agent.apply(services([host(peer)]));
        assert.deepEqual((await answers(app, VIPS, [80])).closed, [80]);
      });

      it('allows the node to reach its own pods through Services, despite default deny', async () => {
        await agent.apply(services([host(app)]));
        await enforce(denyAll());
        assert.deepEqual((await answers(lab.node, VIPS, [80])).open, [80]);
        assert.deepEqual((await answers(lab.node, both(host(app)), [80, 8080])).open, [80, 8080]);
      });

      it('matches clients of a node port by their own addresses, with policies Cluster and Local', async () => {
        const from = ['192.168.77.100/32', 'fd00:77::100/128'].map((cidr) => ({
          ipBlock: { cidr },
        }));
        for (const externalTrafficPolicy of ['Cluster', 'Local']) {
          const ports = [{ name: 'http', port: 80, targetPort: 8080, nodePort: NODE_PORT }];
          const spec = { type: 'NodePort', externalTrafficPolicy, ports };
          await agent.apply(services([host(app)], spec));
          await enforce(allow([8080], from));
          const address = both(lab.node);
          assert.deepEqual((await answers(lab.client, address, [NODE_PORT])).open, [NODE_PORT]);
          assert.deepEqual((await answers(lab.node2, address, [NODE_PORT])).closed, [NODE_PORT]);
          await enforce(allow([NODE_PORT, 80], from));
          assert.deepEqual((await answers(lab.client, address, [NODE_PORT])).closed, [NODE_PORT]);
        }
      });

      it('keeps session affinity to an endpoint that denies the client', async () => {
        const endpoints = [host(app), host(peer)];
        await agent.apply(services(endpoints, { sessionAffinity: 'ClientIP' }));
        await enforce();
        const [vip] = VIPS;
        const first = await host(third).tcp(vip, 80, PROBE);
        assert.ok(first.outcome === 'answered');
        const stuck = endpoints.find(({ name }) => name === first.reply.host);
        const held = await host(third).hold(vip, 80);
        assert.equal(held.reply.host, stuck?.name);
        await enforce(networkPolicy('deny', about(stuck)));
        for (let attempt = 0; attempt < 3; attempt++) {
          const { outcome } = await host(third).tcp(vip, 80, { timeoutMs: 200 });
          assert.equal(outcome, 'timeout');
        }
        // Established connections stay open.
        assert.equal(await held.exchange('still here'), 'still here');
        await held.close();
        await enforce();
        const again = await host(third).tcp(vip, 80, PROBE);
        assert.ok(again.outcome === 'answered' && again.reply.host === stuck?.name);
      });
    });
  });
}
