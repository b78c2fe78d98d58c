import assert from 'node:assert/strict';
import { DNS_QUEUE } from '../../policy/compile/dns-chains.ts';
import { POLICY_TABLE } from '../../policy/compile/policy-table.ts';
import { type Child, startChild } from '../child.ts';
import { createLab, type Host, type Lab, repeatUntil, waitFor } from '../lab/lab.ts';
import { addressOf, type ServerFunctions } from '../policy/fqdn/dns-server.ts';
import { PORTWIDE } from '../portwide.ts';
import { AGENT_FLAGS, Agent, type LogLine } from './agent.ts';
import { ApiFeed } from './feed.ts';
import { serviceManifest, sliceManifest } from './manifests.ts';
import { adminPolicy, networkPolicy, policyPods } from './policy-manifests.ts';

const SERVER = new URL('../policy/fqdn/dns-server.ts', import.meta.url);
const VIPS = ['10.96.0.10', 'fd00:10:96::a'] as const;
const PORT = 443;

/** The cluster DNS is a Service with one endpoint on the other node. */
for (const mode of ['nftables', 'iptables'] as const) {
  describe(`domain names in policies, mode ${mode}`, () => {
    const ttls = ['--fqdn-ttl-floor=10m', '--fqdn-ttl-cap=20m'];
    const flags = [...AGENT_FLAGS, `--proxy-mode=${mode}`, ...ttls];
    let lab: Lab;
    let agent: Agent;
    let server: Child<ServerFunctions>;
    let pod: Host;

    before(async () => {
      lab = await createLab({ pods: 1, remotePods: 1 });
      const [first, resolver] = [lab.pods[0], lab.remotePods[0]];
      assert.ok(first !== undefined && resolver !== undefined);
      pod = first;
      server = await startChild<ServerFunctions>(resolver.namespace, SERVER);
      for (const address of ['0.0.0.0', '::']) await server.call('serve', address);
      const input = [
        'route add local 198.18.0.0/16 dev lo',
        'route add local 2001:db8:52::/48 dev lo',
        `route add 10.244.1.0/24 via ${lab.node.ipv4}`,
        `route add fd00:10:244:1::/64 via ${lab.node.ipv6}`,
        '',
      ].join('\n');
      await lab.elsewhere.exec('ip', ['-batch', '-'], { input });
      await lab.elsewhere.serve({ protocol: 'TCP', port: PORT });
      agent = new Agent(lab);
      agent.write('policies', policies());
      agent.write('dns', clusterDns());
      await agent.start([...flags, '--network-policy']);
      await queueing(true);
    });
    after(async () => {
      await agent?.destroy();
      await server?.stop();
      await lab?.destroy();
    });

    const policies = (...besides: readonly Readonly<Record<string, unknown>>[]) => {
      const ports = [{ protocol: 'UDP', port: 53 }, { port: 53 }];
      return [
        ...policyPods(lab),
        networkPolicy('dns', { podSelector: {}, policyTypes: ['Egress'], egress: [{ ports }] }),
        adminPolicy('AdminNetworkPolicy', 'names', {
          priority: 1,
          subject: { namespaces: {} },
          egress: [{ action: 'Allow', to: [{ domainNames: ['*.example.com'] }, ...besides] }],
        }),
      ];
    };
    const inKubeSystem = (object: Readonly<Record<string, unknown>>) => ({
      ...object,
      metadata: { ...(object.metadata as object), namespace: 'kube-system' },
    });
    /** The Service of the cluster DNS, with one endpoint on the other node. */
    const clusterDns = () => {
      const ports = [
        { name: 'dns', protocol: 'UDP', port: 53 },
        { name: 'dns-tcp', protocol: 'TCP', port: 53 },
      ];
      const dns = serviceManifest('kube-dns', { spec: { clusterIPs: VIPS, ports } });
      const slices = ([4, 6] as const).map((family) =>
        sliceManifest('kube-dns', family, lab.remotePods, { ports }),
      );
      return [dns, ...slices].map(inKubeSystem);
    };
    /** Number of IP families in which the kernel queues DNS packets. */
    const queues = async () => {
      const texts = await Promise.all(
        ['ip', 'ip6'].map(async (family) => {
          const args = ['list', 'set', family, POLICY_TABLE, 'dns-resolvers'];
          return (await lab.node.exec('nft', args, { reject: false })).stdout.includes('elements');
        }),
      );
      return texts.filter(Boolean).length;
    };
    const queueing = (expected: boolean) =>
      waitFor(`DNS packets are ${expected ? '' : 'not '}queued`, async () => {
        return (await queues()) === (expected ? 2 : 0);
      });
    const dig = async (name: string, type: 'A' | 'AAAA' = 'A', vip: string = VIPS[0]) => {
      const args = [`@${vip}`, name, type, '+short', '+tries=1', '+time=5'];
      return (await pod.exec('dig', args, { reject: false })).stdout.trim();
    };
    const outcome = async (address: string) =>
      (await pod.tcp(address, PORT, { timeoutMs: 500 })).outcome;

    it('allows the resolved addresses for the pod, and no others, in both families', async () => {
      for (const [number, type, vip] of [
        [1, 'A', VIPS[0]],
        [2, 'AAAA', VIPS[1]],
      ] as const) {
        const address = addressOf(number, type);
        assert.equal(await outcome(address), 'timeout');
        // The thread may still be starting; packets before that are not inspected.
        await waitFor(`${address} is known`, async () => {
          assert.ok(await dig(`a${number}.example.com`, type, vip));
          return (await outcome(address)) === 'answered';
        });
      }
      const other = addressOf(3, 'A');
      assert.equal(await dig('a3.other.test'), other);
      assert.equal(await outcome(other), 'timeout');
      assert.equal(await outcome(addressOf(1, 'AAAA')), 'timeout');
    });

    it('expires resolved addresses by --fqdn-ttl-floor and --fqdn-ttl-cap, whatever the TTL', async () => {
      const sets = async () =>
        (await lab.node.exec('nft', ['list', 'table', 'ip', POLICY_TABLE])).stdout;
      for (const [name, number, timeout] of [
        ['t60-a5', 5, '10m'],
        ['t7200-a6', 6, '20m'],
      ] as const) {
        assert.equal(await dig(`${name}.example.com`), addressOf(number, 'A'));
        // Plus a second, because resolvers round TTLs down.
        const element = `${addressOf(number, 'A')} timeout ${timeout}1s `;
        await waitFor('the address is known', async () => (await sets()).includes(element));
      }
    });

    it('allows the addresses of the first lookup after the first policy with a domain name', async () => {
      // The last policy has domain names.
      agent.write('policies', policies().slice(0, -1));
      await queueing(false);
      // The agent reads the queue before the first policy needs the queue.
      await waitFor('the queue has a reader', async () => {
        const { stdout } = await lab.node.exec('cat', ['/proc/net/netfilter/nfnetlink_queue']);
        return new RegExp(`^ *${DNS_QUEUE} `, 'm').test(stdout);
      });
      agent.write('policies', policies());
      await queueing(true);
      assert.equal(await dig('a7.example.com'), addressOf(7, 'A'));
      assert.equal(await outcome(addressOf(7, 'A')), 'answered');
    });

    it('allows the addresses that a new pod looked up before its address reached the agent', async () => {
      const map = ['list', 'map', 'ip', POLICY_TABLE, 'egress-pods'];
      const isKnown = async () => (await lab.node.exec('nft', map)).stdout.includes(pod.ipv4);
      const objects: readonly Readonly<Record<string, unknown>>[] = policies();
      agent.write(
        'policies',
        objects.map((each) => (each.kind === 'Pod' ? { ...each, status: {} } : each)),
      );
      await waitFor('the pod has no address', async () => !(await isKnown()));
      assert.equal(await dig('a9.example.com'), addressOf(9, 'A'));
      agent.write('policies', objects);
      await waitFor('the pod has an address', isKnown);
      assert.equal(await outcome(addressOf(10, 'A')), 'timeout');
      assert.equal(await outcome(addressOf(9, 'A')), 'answered');
    });

    it('keeps DNS working and known addresses allowed when the agent is killed', async () => {
      await agent.kill();
      assert.equal(await outcome(addressOf(1, 'A')), 'answered');
      assert.equal(await dig('a4.example.com'), addressOf(4, 'A'));
      assert.equal(await outcome(addressOf(4, 'A')), 'timeout');
      await agent.start();
      const enforcing = () => agent.logged('enforcing network policies').length === 2;
      await waitFor('enforcing', enforcing);
      for (const [number, type] of [
        [1, 'A'],
        [2, 'AAAA'],
      ] as const) {
        assert.equal(await outcome(addressOf(number, type)), 'answered');
      }
      await waitFor('it learns', async () => {
        await dig('a4.example.com');
        return (await outcome(addressOf(4, 'A'))) === 'answered';
      });
    });

    it('answers lookups again when the agent process is stopped, and learns when it continues', async () => {
      const { pid } = agent;
      assert.ok(pid !== undefined);
      const looked = async (seconds: number) => {
        const args = [`@${VIPS[0]}`, 'a8.example.com', '+short', '+tries=1', `+time=${seconds}`];
        const { stdout } = await pod.exec('dig', args, { reject: false });
        return stdout === addressOf(8, 'A');
      };
      process.kill(pid, 'SIGSTOP');
      try {
        await waitFor('lookups are answered again', () => looked(1));
        for (let count = 0; count < 5; count++) assert.ok(await looked(20));
        assert.equal(await outcome(addressOf(8, 'A')), 'timeout');
      } finally {
        process.kill(pid, 'SIGCONT');
      }
      await waitFor('it learns again', async () => {
        await looked(5);
        return (await outcome(addressOf(8, 'A'))) === 'answered';
      });
    });

    it('restores the DNS queue rules after nft flush ruleset', async () => {
      await lab.node.exec('nft', ['flush', 'ruleset']);
      await queueing(true);
      await waitFor('DNS works', async () => (await dig('a1.example.com')) !== '');
      await waitFor('known addresses apply', async () => {
        return (await outcome(addressOf(1, 'A'))) === 'answered';
      });
    });

    it('applies known addresses to a new policy at once', async () => {
      agent.write('more', [
        adminPolicy('AdminNetworkPolicy', 'more', {
          priority: 0,
          subject: { pods: { namespaceSelector: {}, podSelector: {} } },
          egress: [
            {
              action: 'Allow',
              to: [{ domainNames: ['a1.example.com'] }, { networks: ['198.51.100.10/32'] }],
            },
            {
              action: 'Deny',
              to: [{ networks: ['0.0.0.0/0'] }],
              ports: [{ portNumber: { port: PORT } }],
            },
          ],
        }),
      ]);
      await waitFor(
        'the policy is applied',
        async () => (await outcome(addressOf(4, 'A'))) === 'timeout',
      );
      assert.equal(await outcome(addressOf(1, 'A')), 'answered');
      agent.write('more', []);
      await waitFor(
        'the policy is removed',
        async () => (await outcome(addressOf(4, 'A'))) === 'answered',
      );
    });

    it("keeps known addresses through changes of a policy's peers", async () => {
      const [four, six] = [addressOf(1, 'A'), addressOf(2, 'AAAA')];
      await waitFor('both addresses are known', async () => {
        await dig('a1.example.com');
        await dig('a2.example.com', 'AAAA', VIPS[1]);
        return [await outcome(four), await outcome(six)].every((each) => each === 'answered');
      });
      // Less than the second after which a client retries.
      const reaches = async (address: string) =>
        (await pod.tcp(address, PORT, { timeoutMs: 900 })).outcome;
      const lost: string[] = [];
      let changing = true;
      const connecting = [four, six].map((address) =>
        repeatUntil(
          () => !changing,
          async () => {
            if ((await reaches(address)) !== 'answered') lost.push(address);
          },
        ),
      );
      try {
        for (let round = 0; round < 10; round++) {
          const added = addressOf(100 + round, 'A');
          // No lookup happened meanwhile, so no address was learned.
          agent.write('policies', policies({ networks: [`${added}/32`] }));
          await waitFor(`${added} is allowed`, async () => (await outcome(added)) === 'answered');
        }
      } finally {
        changing = false;
        await Promise.all(connecting);
      }
      agent.write('policies', policies());
      assert.deepEqual(lost, []);
    });

    /** Writes the iptables rules with which earlier versions queued DNS packets. */
    const writeEarlierRules = async () => {
      const lines = [':PORTWIDE-DNS - [0:0]', '-A FORWARD -p udp -j PORTWIDE-DNS'];
      const rule = `-A PORTWIDE-DNS -j NFQUEUE --queue-num ${DNS_QUEUE} --queue-bypass`;
      const input = ['*mangle', ...lines, rule, 'COMMIT', ''].join('\n');
      for (const each of ['iptables-nft', 'ip6tables-nft'])
        await lab.node.exec(`${each}-restore`, ['--noflush'], { input });
    };
    const earlierRules = async () => {
      const texts = ['iptables-nft', 'ip6tables-nft'].map(async (each) => {
        const { stdout } = await lab.node.exec(`${each}-save`, ['-t', 'mangle']);
        return stdout.split('\n').filter((line) => line.includes('PORTWIDE-DNS'));
      });
      return (await Promise.all(texts)).flat();
    };
    const earlierRulesRemoved = () =>
      waitFor('removal', async () => (await earlierRules()).length === 0);

    it('removes the DNS queue rules of earlier versions, and with cleanup', async () => {
      await agent.stop();
      await writeEarlierRules();
      await agent.start(flags);
      await earlierRulesRemoved();
      await waitFor('no table', async () => (await queues()) === 0);
      await agent.stop();
      await writeEarlierRules();
      await agent.start([...flags, '--network-policy']);
      await earlierRulesRemoved();
      await queueing(true);
      await agent.stop();
      await writeEarlierRules();
      await lab.node.exec(PORTWIDE, ['cleanup']);
      assert.deepEqual(await earlierRules(), []);
      assert.equal(await queues(), 0);
    });

    it('removes the DNS queue rules of earlier versions only once its own are written', async () => {
      await agent.start([...flags, '--network-policy']);
      await queueing(true);
      await agent.stop();
      await writeEarlierRules();
      const feed = await ApiFeed.start(lab);
      const upgraded = new Agent(lab, { feed });
      try {
        upgraded.write('policies', policies());
        upgraded.write('dns', clusterDns());
        await feed.written();
        await feed.double.call('fail', {
          fault: { kind: 'hold' },
          resource: 'networkpolicies',
          verb: 'list',
        });
        await upgraded.start([...flags, '--network-policy']);
        assert.equal(await dig('a13.example.com'), addressOf(13, 'A'));
        assert.equal(await outcome(addressOf(13, 'A')), 'timeout');
        assert.notDeepEqual(await earlierRules(), []);
        await feed.double.call('release');
        await earlierRulesRemoved();
        const isRemoval = ({ msg, what }: LogLine) =>
          msg === 'removed leftover state' && what === 'network-policy';
        await waitFor('the removal is logged', () => upgraded.log.some(isRemoval));
        const enforcing = upgraded.logged('enforcing network policies');
        assert.equal(enforcing.length, 2);
        assert.ok(
          enforcing.every((line) => upgraded.log.indexOf(line) < upgraded.log.findIndex(isRemoval)),
        );
        await waitFor('it learns', async () => {
          await dig('a13.example.com');
          return (await outcome(addressOf(13, 'A'))) === 'answered';
        });
      } finally {
        await upgraded.destroy();
        await feed.double.kill();
      }
    });

    it('queues no DNS packets of pods that no policy with domain names selects', async () => {
      await agent.start([...flags, '--network-policy']);
      await queueing(true);
      const set = ['list', 'set', 'ip', POLICY_TABLE, 'dns-bypass'];
      const bypasses = async () => (await lab.node.exec('nft', set)).stdout.includes(pod.ipv4);
      await waitFor('the pod is selected', async () => !(await bypasses()));
      const others = policies().slice(0, -1);
      agent.write('policies', [
        ...others,
        adminPolicy('AdminNetworkPolicy', 'names', {
          priority: 1,
          subject: { namespaces: { matchLabels: { no: 'namespace' } } },
          egress: [{ action: 'Allow', to: [{ domainNames: ['*.example.com'] }] }],
        }),
      ]);
      await waitFor('the pod is not selected', bypasses);
      agent.write('policies', policies());
      await waitFor('the pod is selected', async () => !(await bypasses()));
    });
  });
}
