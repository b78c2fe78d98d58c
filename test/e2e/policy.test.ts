import assert from 'node:assert/strict';
import { createLab, type Host, type Lab, removeRules, repeatUntil, waitFor } from '../lab/lab.ts';
import { Scrape } from '../metrics/scrape.ts';
import { PORTWIDE } from '../portwide.ts';
import { MODES, STOCK_KERNEL } from '../uml/kernels.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { ALL_PORTS, type Manifest, serviceManifest, sliceManifest } from './manifests.ts';
import {
  adminPolicy,
  cidrGroup,
  namespaceManifest,
  networkPolicy,
  podManifest,
} from './policy-manifests.ts';

const PORT = 8080;
/** Longer in an emulated kernel. */
const PROBE = { timeoutMs: STOCK_KERNEL === undefined ? 800 : 4000 };
const ALLOWED = ['answered', 'answered'];
const DENIED = ['timeout', 'timeout'];
const TABLES = ['ip', 'ip6'];

/** How often an agent is killed during churn: a start takes half a minute in an emulated kernel. */
const KILLS = STOCK_KERNEL === undefined ? 6 : 2;

for (const mode of MODES) {
  describe(`network policy, mode ${mode}`, () => {
    const flags = [...AGENT_FLAGS, `--proxy-mode=${mode}`];
    const enforcing = [...flags, '--network-policy', '--policy-log-group=7'];
    let lab: Lab;
    let agent: Agent;

    before(async () => {
      lab = await createLab({ pods: 3, remotePods: 1 });
      const servers = [...lab.pods, ...lab.remotePods, lab.client];
      await Promise.all(servers.map((host) => host.serveEveryPort()));
      agent = new Agent(lab);
    });
    after(async () => {
      await agent?.destroy();
      await lab?.destroy();
    });
    beforeEach(async () => {
      writePods();
      if (agent.runsWith(enforcing)) await waitFor('no pod is isolated', nobodyIsIsolated);
      else await agent.start(enforcing);
    });
    // An agent that still runs also serves the next test: a start takes longer than most tests.
    afterEach(async function () {
      for (const name of ['policies', 'objects', 'moved', 'namespace']) agent.write(name, []);
      if (this.currentTest?.state !== 'passed' || !agent.runsWith(enforcing)) await startOver();
      await lab.node.exec('conntrack', ['-F'], { reject: false });
    });
    /** Stops the agent and removes all rules. */
    const startOver = async () => {
      await agent.kill();
      await removeRules(lab.node);
    };
    const nobodyIsIsolated = async () => {
      const maps = TABLES.flatMap((ip) =>
        ['ingress-pods', 'egress-pods'].map((map) => ['list', 'map', ip, 'portwide-policy', map]),
      );
      const texts = await Promise.all(maps.map((map) => lab.node.exec('nft', map)));
      return texts.every(({ stdout }) => !stdout.includes('elements'));
    };

    const pod = (index: number): Host => {
      const found = lab.pods[index];
      assert.ok(found !== undefined);
      return found;
    };
    const remote = (): Host => {
      const [found] = lab.remotePods;
      assert.ok(found !== undefined);
      return found;
    };
    const THIRD = 2;
    /** The last two pods are in a separate namespace. */
    function writePods(...others: readonly Manifest[]): void {
      agent.write('pods', [
        namespaceManifest('default'),
        namespaceManifest('away', { team: 'away' }),
        podManifest(pod(0), { labels: { role: 'client' } }),
        podManifest(pod(1), { ports: [{ name: 'web', containerPort: PORT }] }),
        podManifest(pod(THIRD), { namespace: 'away' }),
        podManifest(remote(), { namespace: 'away' }),
        ...others,
      ]);
    }
    const tcp = async (from: Host, to: readonly string[], port = PORT): Promise<string[]> => {
      const outcomes = await Promise.all(to.map((address) => from.tcp(address, port, PROBE)));
      return outcomes.map(({ outcome }) => outcome);
    };
    const addresses = ({ ipv4, ipv6 }: Pick<Host, 'ipv4' | 'ipv6'>) => [ipv4, ipv6];
    const between = (from: Host, to: Host, port = PORT) => tcp(from, addresses(to), port);
    const becomes = (from: Host, to: Host, expected: readonly string[], port = PORT) =>
      waitFor(`${from.name} to ${to.name}, ${port}: ${expected}`, async () => {
        const found = await between(from, to, port);
        return found.join() === expected.join();
      });
    const write = (...policies: readonly Manifest[]) => agent.write('policies', policies);
    /** For pod 1 (pod-2), the second pod of namespace default. */
    const about = { podSelector: { matchLabels: { pod: 'pod-2' } } };
    const denyAll = () => networkPolicy('deny', about);
    const tables = async () => {
      const { stdout } = await lab.node.exec('nft', ['list', 'tables']);
      return stdout.split('\n').filter((line) => line.includes('portwide-policy')).length;
    };
    const get = async (path: string) => {
      const answer = await lab.node.httpGet(`http://127.0.0.1:${path}`);
      if ('error' in answer) throw new Error(answer.error);
      return answer.body;
    };

    it('isolates a pod of this node from all but its node', async () => {
      const held = await pod(0).hold(pod(1).ipv4, PORT);
      write(denyAll());
      await becomes(pod(0), pod(1), DENIED);
      assert.deepEqual(await between(remote(), pod(1)), DENIED);
      assert.deepEqual(await between(lab.client, pod(1)), DENIED);
      assert.deepEqual(await between(lab.node, pod(1)), ALLOWED);
      assert.deepEqual(await between(pod(1), pod(0)), ALLOWED);
      assert.deepEqual(await between(pod(0), pod(THIRD)), ALLOWED);
      assert.equal(await held.exchange('still here'), 'still here');
      await held.close();
      write();
      await becomes(pod(0), pod(1), ALLOWED);
    });

    it("allows peers of rules, by pod, namespace and address, on the rules' ports", async () => {
      write(
        networkPolicy('web', {
          ...about,
          ingress: [
            {
              from: [{ podSelector: { matchLabels: { role: 'client' } } }],
              ports: [{ port: 'web' }, { port: 9000, endPort: 9010 }],
            },
            {
              from: [{ namespaceSelector: { matchLabels: { team: 'away' } } }],
              ports: [{ port: 81 }],
            },
            {
              from: [
                { ipBlock: { cidr: '192.168.77.0/24', except: ['192.168.77.1/32'] } },
                { ipBlock: { cidr: 'fd00:77::/64', except: ['fd00:77::1/128'] } },
              ],
              ports: [{ port: 82 }],
            },
          ],
        }),
      );
      await becomes(pod(0), pod(1), DENIED, 81);
      for (const port of [PORT, 9000, 9010]) {
        assert.deepEqual(await between(pod(0), pod(1), port), ALLOWED, `${port}`);
      }
      for (const port of [8999, 9011]) {
        assert.deepEqual(await between(pod(0), pod(1), port), DENIED, `${port}`);
      }
      for (const from of [pod(THIRD), remote()]) {
        assert.deepEqual(await between(from, pod(1), 81), ALLOWED, from.name);
        assert.deepEqual(await between(from, pod(1)), DENIED, from.name);
      }
      assert.deepEqual(await between(lab.client, pod(1), 82), ALLOWED);
      assert.deepEqual(await between(lab.client, pod(1), 81), DENIED);
    });

    it('applies egress rules to pods, the node and external addresses', async () => {
      write(
        networkPolicy('out', {
          ...about,
          policyTypes: ['Egress'],
          egress: [
            { to: [{ podSelector: { matchLabels: { role: 'client' } } }] },
            { to: [{ ipBlock: { cidr: `${lab.client.ipv4}/32` } }] },
          ],
        }),
      );
      await becomes(pod(1), pod(THIRD), DENIED);
      assert.deepEqual(await between(pod(1), pod(0)), ALLOWED);
      assert.deepEqual(await between(pod(1), remote()), DENIED);
      assert.deepEqual(await between(pod(1), lab.client), ['answered', 'timeout']);
      // No server listens there: an allowed connection is refused.
      assert.deepEqual(await between(pod(1), lab.node), DENIED);
      assert.deepEqual(await between(pod(0), lab.node), ['refused', 'refused']);
    });

    it('evaluates tiers in order: Admin, NetworkPolicy, Baseline, with Pass', async () => {
      const subject = { pods: { namespaceSelector: {}, podSelector: about.podSelector } };
      const away = { namespaces: { matchLabels: { team: 'away' } } };
      const port = (number: number) => [{ portNumber: { protocol: 'TCP', port: number } }];
      write(
        denyAll(),
        adminPolicy('AdminNetworkPolicy', 'admin', {
          priority: 10,
          subject,
          ingress: [
            { action: 'Pass', from: [away], ports: port(83) },
            { action: 'Allow', from: [away] },
          ],
        }),
        adminPolicy('ClusterNetworkPolicy', 'cluster', {
          tier: 'Admin',
          priority: 5,
          subject,
          ingress: [
            {
              action: 'Deny',
              from: [away],
              protocols: [{ tcp: { destinationPort: { number: 84 } } }],
            },
          ],
        }),
        adminPolicy('BaselineAdminNetworkPolicy', 'default', {
          subject: {
            pods: { namespaceSelector: {}, podSelector: { matchLabels: { pod: 'pod-1' } } },
          },
          ingress: [{ action: 'Deny', from: [away] }],
        }),
      );
      await becomes(pod(THIRD), pod(1), DENIED, 84);
      assert.deepEqual(await between(pod(THIRD), pod(1)), ALLOWED);
      assert.deepEqual(await between(pod(THIRD), pod(1), 83), DENIED);
      assert.deepEqual(await between(pod(0), pod(1)), DENIED);
      assert.deepEqual(await between(pod(THIRD), pod(0)), DENIED);
      assert.deepEqual(await between(pod(1), pod(0)), ALLOWED);
    });

    it('applies changes of a CIDRGroup', async () => {
      const policy = adminPolicy('AdminNetworkPolicy', 'groups', {
        priority: 1,
        subject: { pods: { namespaceSelector: {}, podSelector: about.podSelector } },
        egress: [
          {
            action: 'Deny',
            to: [{ networks: [{ cidrGroups: { matchLabels: { name: 'bad' } } }] }],
          },
        ],
      });
      write(policy, cidrGroup('bad', [`${lab.client.ipv4}/32`, `${lab.client.ipv6}/128`]));
      await becomes(pod(1), lab.client, DENIED);
      write(policy, cidrGroup('bad', [`${pod(0).ipv4}/32`, `${pod(0).ipv6}/128`]));
      await becomes(pod(1), lab.client, ALLOWED);
      assert.deepEqual(await between(pod(1), pod(0)), DENIED);
    });

    it('evaluates connections to Services, listed and all-ports, by the backend pod', async () => {
      const [listed, all] = [
        ['10.96.0.10', 'fd00:10:96::10'],
        ['10.96.0.11', 'fd00:10:96::11'],
      ] as const;
      write(
        networkPolicy('web', {
          ...about,
          ingress: [
            {
              from: [{ podSelector: { matchLabels: { role: 'client' } } }],
              ports: [{ port: PORT }],
            },
          ],
        }),
      );
      await agent.apply([
        serviceManifest('web', { spec: { clusterIPs: listed, ports: [{ port: 80 }] } }),
        serviceManifest('all', { annotations: ALL_PORTS, spec: { clusterIPs: all } }),
        ...([4, 6] as const).flatMap((family) => [
          sliceManifest('web', family, [pod(1)], { ports: [{ name: '', port: PORT }] }),
          sliceManifest('all', family, [pod(1)]),
        ]),
      ]);
      await becomes(pod(THIRD), pod(1), DENIED);
      assert.deepEqual(await tcp(pod(0), listed, 80), ALLOWED);
      assert.deepEqual(await tcp(pod(THIRD), listed, 80), DENIED);
      assert.deepEqual(await tcp(pod(0), all), ALLOWED);
      assert.deepEqual(await tcp(pod(0), all, 8081), DENIED);
      assert.deepEqual(await tcp(pod(THIRD), all), DENIED);
      // Hairpin through the Service.
      assert.deepEqual(await tcp(pod(1), listed, 80), ALLOWED);
    });

    it('applies a relabelling to one pod only, under traffic', async () => {
      const role = { matchLabels: { role: 'client' } };
      const ingress = [{ from: [{ namespaceSelector: {}, podSelector: role }] }];
      write(networkPolicy('web', { ...about, ingress }));
      const moved = (labels: Record<string, string>) =>
        agent.write('moved', [
          podManifest({ ...remote(), name: 'remote-1' }, { namespace: 'moved', labels }),
        ]);
      agent.write('namespace', [namespaceManifest('moved')]);
      agent.write('pods', [
        namespaceManifest('default'),
        podManifest(pod(0), { labels: { role: 'client' } }),
        podManifest(pod(1)),
        podManifest(pod(THIRD)),
      ]);
      moved({});
      await becomes(remote(), pod(1), DENIED);
      await throughout(
        [
          [() => between(pod(0), pod(1)), ALLOWED],
          [() => between(pod(THIRD), pod(1)), DENIED],
        ],
        async () => {
          for (let round = 0; round < 5; round++) {
            moved({ role: 'client' });
            await becomes(remote(), pod(1), ALLOWED);
            moved({});
            await becomes(remote(), pod(1), DENIED);
          }
        },
      );
    });

    it('applies an existing policy to a pod as soon as it has an address', async () => {
      const others = [namespaceManifest('default'), podManifest(pod(0))];
      agent.write('pods', [...others, podManifest(pod(1), { pending: true })]);
      write(denyAll());
      // Before the API reports the address, its pod is unknown; see docs/guide/network-policy.md.
      await becomes(pod(0), pod(1), ALLOWED);
      const found: string[] = [];
      agent.write('pods', [...others, podManifest(pod(1))]);
      await waitFor('the pod is isolated', async () => {
        found.push((await tcp(pod(0), [pod(1).ipv4])).join());
        return found.length > 5 && found.at(-1) === 'timeout';
      });
      const first = found.indexOf('timeout');
      assert.ok(
        found.slice(first).every((outcome) => outcome === 'timeout'),
        found.join(),
      );
    });

    it('allows no more than the old or the new policies when killed during churn, and no less', async () => {
      const churn = (round: number) =>
        write(
          denyAll(),
          networkPolicy('other', {
            podSelector: { matchLabels: { pod: round % 2 === 0 ? 'pod-1' : 'pod-2' } },
            policyTypes: ['Ingress', 'Egress'],
            ingress: [{ ports: [{ port: 7000 + round }] }],
            egress: [{}],
          }),
          networkPolicy('open', { podSelector: {}, ingress: [{}] }, 'away'),
        );
      churn(0);
      await becomes(pod(0), pod(1), DENIED);
      // The number of allowed probes determines when the agent is killed, at an arbitrary point of
      // its work.
      let answers = 0;
      const passed = (count: number) => {
        const goal = answers + count;
        return waitFor('clients continued', () => answers >= goal);
      };
      const enforced = () =>
        waitFor(
          'both families are enforced again',
          () => agent.logged('enforcing network policies').length === 2,
          60_000,
        );
      await throughout(
        [
          [() => answeredOf(pod(0), pod(1)), ['0', '0']],
          [
            async () => {
              const found = await between(pod(1), pod(THIRD));
              answers += 1;
              return found;
            },
            ALLOWED,
          ],
        ],
        async () => {
          for (let round = 1; round <= KILLS; round++) {
            for (let change = 0; change < 3; change++) {
              churn(round + change);
              await passed(1 + ((round * 7 + change * 5) % 11));
            }
            await agent.kill();
            assert.deepEqual(await answeredOf(pod(0), pod(1)), ['0', '0'], 'while no agent runs');
            churn(round);
            agent.launch();
            // Some agents are killed while they start.
            if (round % 4 === 1) await passed(20 * round);
            else await enforced();
          }
          await enforced();
        },
      );
      assert.deepEqual(await between(pod(0), pod(1)), DENIED);
    });

    /**
     * Number of allowed probes of a burst, per family. All are sent at once, and no SYN is
     * retransmitted within the time: many short bursts detect more than few large ones.
     */
    async function answeredOf(from: Host, to: Host): Promise<string[]> {
      const bursts = addresses(to).map((address) =>
        from.burst(address, PORT, 4, { timeoutMs: 50, concurrency: 4 }),
      );
      return (await Promise.all(bursts)).map(({ answered }) => `${answered[to.name] ?? 0}`);
    }

    it('restores its table after an external flush or delete; the proxy mode does not treat it as its own', async () => {
      write(denyAll());
      await becomes(pod(0), pod(1), DENIED);
      const logged = (what: string) => agent.log.filter(({ msg }) => msg.startsWith(what));
      const ofPolicy = () => logged('network policy rules differ');
      const ofServices = () => logged('rules were changed by another program');
      assert.deepEqual([...ofPolicy(), ...ofServices()], []);
      await lab.node.exec('nft', ['delete', 'table', 'ip', 'portwide-policy']);
      await becomes(pod(0), pod(1), DENIED);
      await waitFor('the external change is logged', () => ofPolicy().length > 0);
      assert.deepEqual(ofServices(), []);
      await lab.node.exec('nft', ['flush', 'ruleset']);
      await becomes(pod(0), pod(1), DENIED);
      assert.equal(await tables(), 2);
    });

    it('counts and logs denied packets, and exports metrics', async () => {
      // The counters start with the table.
      await startOver();
      await agent.start(enforcing);
      write(denyAll(), networkPolicy('bad', { ...about, ingress: [{ ports: [{ endPort: 9 }] }] }));
      await becomes(pod(0), pod(1), DENIED);
      // Rules are in force slightly before the metrics show them.
      const scrape = await waitFor('both families are reported', async () => {
        const scraped = new Scrape(await get('10249/metrics'));
        const elements = (ip_family: string) =>
          scraped.value('portwide_policy_elements', { set: 'ingress-pods', ip_family });
        return elements('IPv4') === 1 && elements('IPv6') === 1 ? scraped : undefined;
      });
      for (const ip_family of ['IPv4', 'IPv6']) {
        const labels = { tier: 'network-policy', direction: 'ingress', ip_family };
        const denied = scrape.value('portwide_policy_denied_packets_total', labels) ?? 0;
        assert.ok(denied > 0, ip_family);
        const other = { ...labels, tier: 'admin' };
        assert.equal(scrape.value('portwide_policy_denied_packets_total', other), 0);
      }
      const kind = 'NetworkPolicy';
      assert.equal(scrape.value('portwide_policies', { kind, state: 'sound' }), 1);
      assert.equal(scrape.value('portwide_policies', { kind, state: 'faulty' }), 1);
      assert.equal(scrape.value('portwide_policy_sets', { direction: 'ingress' }), 1);
      await waitFor('the agent is healthy', async () =>
        /"healthy":true/.test(await get('10256/healthz')),
      );
      const chain = ['list', 'chain', 'ip', 'portwide-policy', 'deny-network-policy-ingress'];
      assert.match((await lab.node.exec('nft', chain)).stdout, /log prefix .* group 7/);
      const message = 'part of the network policy cannot be enforced and fails closed';
      const [fault, ...more] = agent.logged(message);
      assert.deepEqual(more, []);
      assert.equal(fault?.policy, 'NetworkPolicy default/bad');
    });

    it('keeps policies in force when the agent exits; an agent without --network-policy removes them', async () => {
      write(denyAll());
      await becomes(pod(0), pod(1), DENIED);
      await agent.stop();
      assert.deepEqual(await between(pod(0), pod(1)), DENIED);
      await agent.start(flags);
      await becomes(pod(0), pod(1), ALLOWED);
      assert.equal(await tables(), 0);
      const removed = () =>
        agent.logged('removed leftover state').filter(({ what }) => what === 'network-policy');
      await waitFor('it logs that', () => removed().length === 1);
    });

    it('removes the policy table with cleanup', async () => {
      write(denyAll());
      await becomes(pod(0), pod(1), DENIED);
      assert.equal(await tables(), TABLES.length);
      await agent.stop();
      await lab.node.exec(PORTWIDE, ['cleanup']);
      assert.equal(await tables(), 0);
      assert.deepEqual(await between(pod(0), pod(1)), ALLOWED);
    });

    /** Clients that connect continuously, each with its expected result. */
    async function throughout(
      probes: readonly (readonly [() => Promise<string[]>, readonly string[]])[],
      work: () => Promise<void>,
    ): Promise<void> {
      const state = { working: true };
      const failures: string[] = [];
      const clients = probes.map(([probe, expected]) =>
        repeatUntil(
          () => !state.working,
          async () => {
            const found = await probe();
            if (found.join() !== expected.join()) failures.push(`${found} instead of ${expected}`);
          },
        ),
      );
      try {
        await work();
      } finally {
        state.working = false;
        await Promise.all(clients);
      }
      assert.deepEqual(failures, []);
    }
  });
}
