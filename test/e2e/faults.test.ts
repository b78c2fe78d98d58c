/** Faults of Services and policies: packets show the fault, and one command and the page name its cause. */
import assert from 'node:assert/strict';
import { type Child, startChild } from '../child.ts';
import { type Host, waitFor } from '../lab/lab.ts';
import { addressOf, type ServerFunctions } from '../policy/fqdn/dns-server.ts';
import { startBrowser, type TestBrowser } from '../status/page/browser.ts';
import { SERVICE_CAUSES as CAUSES, titleOf } from './fault-causes.ts';
import { FaultLab } from './fault-lab.ts';
import { ALL_PORTS, type Manifest, serviceManifest, sliceManifest } from './manifests.ts';
import { adminPolicy, networkPolicy, policyPods } from './policy-manifests.ts';
import {
  defineServiceFaults,
  outcome,
  PORTS,
  serveWeb,
  UDP_PORTS,
  VIP,
  web,
} from './service-faults.ts';

const VIP6 = 'fd00:10:96::10';
const DNS_SERVER = new URL('../policy/fqdn/dns-server.ts', import.meta.url);
const DNS_VIP = '10.96.0.53';

const inKubeSystem = (object: Manifest): Manifest => ({
  ...object,
  metadata: { ...(object.metadata as object), namespace: 'kube-system' },
});

describe('faults of Services and policies: one command and the page name the cause', () => {
  let browser: TestBrowser;
  let faults: FaultLab;
  let client: Host;

  before(async () => {
    browser = await startBrowser();
    const flags = ['--proxy-mode=nftables', '--network-policy'];
    faults = await FaultLab.start({ flags, browser });
    ({ client } = faults.lab);
  });
  after(async () => {
    await faults?.destroy();
    await browser?.close();
  });

  const healthy = () => serveWeb(faults);

  it(titleOf(CAUSES.noneReady), async () => {
    await healthy();
    const notReady = [faults.pod(0), { conditions: { ready: false } }] as const;
    await faults.agent.apply([web(), sliceManifest('web', 4, [notReady], PORTS)]);
    assert.equal(await outcome(client, VIP), 'refused');
    const text = await faults.name(CAUSES.noneReady);
    // The connection of the test before the fault is closed.
    assert.match(text, / (?:TIME_WAIT|CLOSE) +no$/m);
    assert.doesNotMatch(text, /StaleConnections/);
  });

  it(titleOf(CAUSES.oneNotReady), async () => {
    await healthy();
    const notReady = [faults.pod(0), { conditions: { ready: false } }] as const;
    const slice = sliceManifest('web', 4, [notReady, faults.pod(1)], PORTS);
    await faults.agent.apply([web(), slice]);
    const result = await client.tcp(VIP, 80);
    assert.equal(result.outcome === 'answered' && result.reply.host, 'pod-2');
    await faults.name(CAUSES.oneNotReady);
  });

  it(titleOf(CAUSES.unreadable), async () => {
    const spec = { clusterIPs: ['10.96.0.77'], ports: [{ port: 80 }], sessionAffinity: 'Client' };
    faults.agent.write('faulty', [serviceManifest('faulty', { spec })]);
    const status = async () => (await faults.ask('status')).text;
    await waitFor('it is read', async () => (await status()).includes('Unreadable'));
    await faults.name(CAUSES.unreadable);
    faults.agent.write('faulty', []);
    await waitFor('it is gone', async () => !(await status()).includes('Unreadable'));
  });

  it(titleOf(CAUSES.partial), async () => {
    await faults.agent.apply([
      web({ clusterIPs: [VIP, VIP6] }),
      sliceManifest('web', 4, [faults.pod(0)], PORTS),
    ]);
    assert.equal(await outcome(client, VIP), 'answered');
    assert.equal(await outcome(client, VIP6), 'refused');
    await faults.name(CAUSES.partial);
  });

  for (const [cause, table] of [
    [CAUSES.deletedTable, 'portwide'],
    [CAUSES.deletedPolicy, 'portwide-policy'],
  ] as const) {
    it(titleOf(cause), async () => {
      await healthy();
      await faults.lab.node.exec('nft', ['delete', 'table', 'ip', table]);
      await waitFor('it is restored', async () => {
        const list = ['list', 'table', 'ip', table];
        return (await faults.lab.node.exec('nft', list, { reject: false })).exitCode === 0;
      });
      // The table exists before its elements do.
      await waitFor('it answers', async () => (await outcome(client, VIP)) === 'answered');
      await faults.name(cause);
    });
  }

  it(titleOf(CAUSES.zoneHints), async () => {
    await healthy();
    const hinted = (zone: string) => ({ zone, hints: { forZones: [{ name: zone }] } });
    // The endpoint for this zone hangs, and hints keep clients from the other one.
    const broken = { name: 'pod-9', ipv4: '10.244.1.99', ipv6: 'fd00:10:244:1::99' };
    await faults.agent.apply([
      web({ trafficDistribution: 'PreferClose' }),
      sliceManifest(
        'web',
        4,
        [
          [faults.remote, hinted('zone-2')],
          [broken, hinted('zone-1')],
        ],
        PORTS,
      ),
    ]);
    for (let probe = 0; probe < 4; probe++) assert.notEqual(await outcome(client, VIP), 'answered');
    const text = await faults.name(CAUSES.zoneHints);
    assert.match(text, /10\.244\.1\.99.* yes +ready/);
  });

  it(titleOf(CAUSES.nodeAddress), async () => {
    const { node } = faults.lab;
    await faults.agent.apply([
      serviceManifest('media', {
        annotations: ALL_PORTS,
        ingress: [{ ip: node.ipv4 }],
        spec: {
          clusterIPs: [VIP],
          type: 'LoadBalancer',
          allocateLoadBalancerNodePorts: false,
        },
      }),
      sliceManifest('media', 4, [faults.pod(0)]),
    ]);
    assert.equal(await outcome(client, node.ipv4, 7000), 'refused');
    await faults.name(CAUSES.nodeAddress);
  });

  it(titleOf(CAUSES.overlap), async () => {
    const media = (name: string, created: string, pod: Host) => [
      serviceManifest(name, { annotations: ALL_PORTS, created, spec: { clusterIPs: [VIP] } }),
      sliceManifest(name, 4, [pod]),
    ];
    await faults.agent.apply([
      ...media('first', '2026-01-01T00:00:00Z', faults.pod(0)),
      ...media('second', '2026-01-02T00:00:00Z', faults.pod(1)),
    ]);
    const result = await client.tcp(VIP, 7000);
    assert.equal(result.outcome === 'answered' && result.reply.host, 'pod-1');
    assert.match(await faults.name(CAUSES.overlap), /^State: +refused$/m);
  });

  defineServiceFaults(() => faults);

  /** Applies rules of another program until the test ends. */
  const withTable = async (rules: string, run: () => Promise<void>) => {
    await faults.lab.node.exec('nft', ['-f', '-'], { input: `table inet firewall {\n${rules}\n}` });
    try {
      await run();
    } finally {
      await faults.lab.node.exec('nft', ['delete', 'table', 'inet', 'firewall']);
    }
  };

  it(titleOf(CAUSES.foreignDrop), async () => {
    await healthy();
    const drop = 'chain guard { type filter hook forward priority 5; tcp dport 8080 drop; }';
    await withTable(drop, async () => {
      await faults.readsRules(CAUSES.foreignDrop);
      await faults.name(CAUSES.foreignDrop);
      const { text, exitCode } = await faults.traceLive(CAUSES.foreignDrop.command, async () => {
        assert.equal(await outcome(client, VIP), 'timeout');
      });
      assert.equal(exitCode, 1);
      assert.match(
        text,
        /was dropped by rule 1 of chain guard in table inet firewall \(handle \d+: tcp dport 8080 drop\)/,
      );
      assert.match(text, /Kernel and computed path agree/);
    });
  });

  it(titleOf(CAUSES.foreignMasquerade), async () => {
    await healthy();
    const pod = faults.pod(1);
    const seenBy = async () => {
      const result = await pod.tcp(VIP, 80);
      return result.outcome === 'answered' ? result.reply.remoteAddress : result.outcome;
    };
    assert.equal(await seenBy(), pod.ipv4);
    const masquerade =
      'chain post { type nat hook postrouting priority srcnat - 5; ip saddr 10.244.0.0/16 masquerade; }';
    await withTable(masquerade, async () => {
      assert.notEqual(await seenBy(), pod.ipv4);
      await faults.readsRules(CAUSES.foreignMasquerade);
      await faults.name(CAUSES.foreignMasquerade);
      const { command } = CAUSES.foreignMasquerade;
      const { text, exitCode } = await faults.traceLive(command, () => pod.tcp(VIP, 80));
      assert.equal(exitCode, 0, text);
      assert.match(text, /inet firewall post rule 1: .*\(another program\)/);
      assert.match(text, /masqueraded as 192\.168\.77\.10\nKernel and computed path agree/);
      await faults.name(CAUSES.checkedMasquerade);
    });
  });

  const enforce = async (policies: readonly Manifest[], until: () => Promise<boolean>) => {
    faults.agent.write('policies', [...policyPods(faults.lab), ...policies]);
    await waitFor('the policies are in force', until);
  };
  const about = (pod: string, type: 'Ingress' | 'Egress') => ({
    podSelector: { matchLabels: { pod } },
    policyTypes: [type],
  });

  for (const [direction, pod, cause] of [
    ['Ingress', 'pod-1', CAUSES.ingressPolicy],
    ['Egress', 'pod-2', CAUSES.egressPolicy],
  ] as const) {
    it(`${titleOf(cause)}: ${direction}`, async () => {
      await healthy();
      const from = faults.pod(1);
      const isAnswered = async () => (await outcome(from, VIP)) === 'answered';
      assert.equal(await isAnswered(), true);
      await enforce(
        [networkPolicy('shut', about(pod, direction))],
        async () => !(await isAnswered()),
      );
      await faults.name(cause);
      await enforce([], isAnswered);
    });
  }

  it(`${titleOf(CAUSES.policyRule)}: rule`, async () => {
    await healthy();
    const isAnswered = async () => (await outcome(faults.pod(1), VIP)) === 'answered';
    const rule = { name: 'no-web', action: 'Deny', to: [{ namespaces: {} }] };
    const policy = { priority: 1, subject: { namespaces: {} }, egress: [rule] };
    await enforce(
      [adminPolicy('AdminNetworkPolicy', 'strict', policy)],
      async () => !(await isAnswered()),
    );
    await faults.name(CAUSES.policyRule);
    await enforce([], isAnswered);
  });

  describe('domain names in policies', () => {
    const address = addressOf(1, 'A');
    const isAnswered = async () => (await outcome(faults.pod(0), address, 443)) === 'answered';
    let server: Child<ServerFunctions>;

    before(async () => {
      const { elsewhere, node } = faults.lab;
      await elsewhere.exec('ip', ['route', 'add', '10.244.1.0/24', 'via', node.ipv4]);
      await elsewhere.exec('ip', ['route', 'add', 'local', '198.18.0.0/16', 'dev', 'lo']);
      await elsewhere.serve({ protocol: 'TCP', port: 443 });
      // A host that serves every UDP port takes the answers to its own queries.
      await faults.remote.stopServingEveryPort();
      await faults.pod(0).stopServingEveryPort();
      server = await startChild<ServerFunctions>(faults.remote.namespace, DNS_SERVER);
      await server.call('serve', '0.0.0.0');
      assert.equal(await isAnswered(), true);
      const ports = [{ protocol: 'UDP', port: 53 }];
      const allowed = [{ action: 'Allow', to: [{ domainNames: ['*.example.com'] }] }];
      await enforce(
        [
          networkPolicy('isolated', { ...about('pod-1', 'Egress'), egress: [{ ports }] }),
          adminPolicy('AdminNetworkPolicy', 'names', {
            priority: 1,
            subject: { namespaces: {} },
            egress: allowed,
          }),
        ],
        async () => !(await isAnswered()),
      );
    });
    after(async () => {
      await server?.stop();
      faults.agent.write('dns', []);
      await enforce([], isAnswered);
    });

    it(titleOf(CAUSES.notInspected), async () => {
      await faults.name(CAUSES.notInspected);
    });

    it(titleOf(CAUSES.notLearned), async () => {
      const dns = [
        serviceManifest('kube-dns', {
          spec: { clusterIPs: [DNS_VIP], ports: [{ protocol: 'UDP', port: 53 }] },
        }),
        sliceManifest('kube-dns', 4, [faults.remote], UDP_PORTS),
      ];
      faults.agent.write('dns', dns.map(inKubeSystem));
      await waitFor('DNS answers are inspected', async () => {
        const { text } = await faults.ask('status');
        return !text.includes('DnsNotInspected');
      });
      assert.equal(await isAnswered(), false);
      const text = await faults.name(CAUSES.notLearned);
      assert.doesNotMatch(text, /uncertain/);
      const query = [`@${DNS_VIP}`, 'a1.example.com', 'A', '+short', '+tries=1', '+time=2'];
      await waitFor('the address is learned', async () => {
        await faults.pod(0).exec('dig', query, { reject: false });
        return isAnswered();
      });
      const learned = await faults.ask(...CAUSES.notLearned.command);
      assert.equal(learned.exitCode, 0, learned.text);
      assert.match(learned.text, /AdminNetworkPolicy names spec\.egress\[0\] allows it/);
    });
  });
});
