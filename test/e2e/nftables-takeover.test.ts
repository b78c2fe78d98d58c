import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  createLab,
  type Host,
  iptablesRules,
  type Lab,
  removeRules,
  repeatUntil,
  waitFor,
} from '../lab/lab.ts';
import { iptablesTool } from '../lab/rules.ts';
import { PORTWIDE } from '../portwide.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { type KubeProxyCluster, kubeProxyIptables, kubeProxyNftables } from './kube-proxy-rules.ts';
import { ALL_PORTS, type Manifest, serviceManifest, sliceManifest } from './manifests.ts';
import { answered, SHORT } from './scenarios/scenario.ts';

const FAMILIES = [4, 6] as const;
const VARIANTS = ['nft', 'legacy'] as const;
const VIPS = {
  web: { 4: '10.96.0.10', 6: 'fd00:10:96::10' },
  late: { 4: '10.96.0.11', 6: 'fd00:10:96::11' },
  all: { 4: '10.96.0.12', 6: 'fd00:10:96::12' },
  gone: { 4: '10.96.0.99', 6: 'fd00:10:96::99' },
};
const NODE_PORT = 30_080;
/**
 * A test can neither lower an OOM score nor set the host's conntrack limit. Warnings about other
 * settings are allowed.
 */
const FLAGS = [...AGENT_FLAGS, '--oom-score-adj=0', '--conntrack-max-per-core=0'];
const NFTABLES = [...FLAGS, '--proxy-mode=nftables'];
const iptables = (variant: string) => [
  ...FLAGS,
  '--proxy-mode=iptables',
  `--iptables-variant=${variant}`,
];

/** Rules of an iptables variant, Portwide's table, or kube-proxy's table. */
type Leftover = 'nft' | 'legacy' | 'nftables' | 'kube-proxy';

describe('the previous and the new proxy', () => {
  let lab: Lab;
  let agent: Agent;

  before(async () => {
    lab = await createLab({ pods: 2, remotePods: 0 });
    await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
  });
  after(async () => lab?.destroy());
  beforeEach(() => {
    agent = new Agent(lab);
  });
  afterEach(async () => {
    await agent?.destroy();
    await removeRules(lab.node);
  });

  const pod = (index: number): Host => {
    const host = lab.pods[index];
    assert.ok(host !== undefined);
    return host;
  };
  const nodeIp = (family: 4 | 6) => (family === 4 ? lab.node.ipv4 : lab.node.ipv6);
  const cluster = (family: 4 | 6): KubeProxyCluster => ({
    family,
    podCidr: family === 4 ? '10.244.0.0/16' : 'fd00:10:244::/48',
    serviceCidr: family === 4 ? '10.96.0.0/16' : 'fd00:10:96::/112',
    nodeIp: nodeIp(family),
    web: VIPS.web[family],
    pod: family === 4 ? pod(0).ipv4 : pod(0).ipv6,
    late: VIPS.late[family],
    gone: VIPS.gone[family],
  });
  /** `late` has an endpoint that the previous proxy does not know. */
  const services = (): Manifest[] => [
    serviceManifest('web', {
      spec: {
        type: 'NodePort',
        clusterIPs: Object.values(VIPS.web),
        ports: [{ port: 80, nodePort: NODE_PORT }],
      },
    }),
    serviceManifest('late', {
      spec: { clusterIPs: Object.values(VIPS.late), ports: [{ port: 80 }] },
    }),
    serviceManifest('all', {
      annotations: ALL_PORTS,
      spec: { clusterIPs: Object.values(VIPS.all) },
    }),
    ...FAMILIES.flatMap((family) => [
      ...['web', 'late'].map((name) =>
        sliceManifest(name, family, [pod(0)], { ports: [{ name: '', port: 8080 }] }),
      ),
      sliceManifest('all', family, [pod(0)]),
    ]),
  ];

  /** All kernel state that the agent must remove: of all modes except its own. */
  const leftBy = async (modes: readonly Leftover[]) => {
    const left: string[] = [];
    for (const family of FAMILIES) {
      for (const variant of VARIANTS.filter((each) => modes.includes(each))) {
        for (const table of ['mangle', 'nat', 'filter'] as const) {
          const rules = await iptablesRules(lab.node, variant, family, table);
          left.push(...rules.split('\n').filter((line) => line.includes('KUBE-')));
        }
      }
    }
    const { stdout } = await lab.node.exec('nft', ['list', 'tables']);
    const tables = [
      ...(modes.includes('nftables') ? ['portwide'] : []),
      ...(modes.includes('kube-proxy') ? ['kube-proxy'] : []),
    ];
    left.push(
      ...stdout.split('\n').filter((line) => tables.some((name) => line.endsWith(` ${name}`))),
    );
    return left;
  };

  /**
   * Starts an agent while clients connect continuously by every path and while connections are
   * held. Asserts that no connection is lost from before the start until the previous proxy's state
   * is removed.
   */
  async function takeOver(flags: readonly string[], gone: readonly Leftover[]): Promise<void> {
    const ways: (readonly [Host, string, number])[] = FAMILIES.flatMap((family) => [
      [lab.client, VIPS.web[family], 80] as const,
      [lab.client, nodeIp(family), NODE_PORT] as const,
      [pod(1), VIPS.web[family], 80] as const,
      [lab.node, VIPS.web[family], 80] as const,
    ]);
    const held = await Promise.all(ways.map(([from, to, port]) => from.hold(to, port)));
    let isRunning = true;
    const outcomes = new Map<string, number>();
    const clients = ways.map(([from, to, port]) =>
      repeatUntil(
        () => !isRunning,
        async () => {
          const { outcome } = await from.tcp(to, port);
          const key =
            outcome === 'answered' ? outcome : `${outcome}: ${from.name} to ${to} ${port}`;
          outcomes.set(key, (outcomes.get(key) ?? 0) + 1);
        },
      ),
    );
    const answers = () => outcomes.get('answered') ?? 0;
    const more = async () => {
      const goal = answers() + 20;
      await waitFor('clients continue', () => answers() >= goal, 20_000);
    };
    try {
      await more();
      agent.write('objects', services());
      await agent.start(flags);
      await waitFor(
        "the previous proxy's state is removed",
        async () => (await leftBy(gone)).length === 0,
        30_000,
      );
      await more();
    } finally {
      isRunning = false;
      await Promise.all(clients);
    }
    assert.deepEqual([...outcomes.keys()], ['answered']);
    for (const connection of held) {
      assert.equal(await connection.exchange('still'), 'still');
      await connection.close();
    }
    for (const family of FAMILIES) {
      for (const from of [lab.client, pod(1), lab.node]) {
        answered(await from.tcp(VIPS.late[family], 80));
        assert.equal(answered(await from.tcp(VIPS.all[family], 5060)).localPort, 5060);
      }
      assert.notEqual((await lab.client.tcp(VIPS.gone[family], 80, SHORT)).outcome, 'answered');
    }
    // Warnings about settings are as in kube-proxy, for example NodePorts on all addresses.
    assert.deepEqual(
      agent.log
        .filter(({ level, setting }) => level >= 40 && setting === undefined)
        .map(({ msg }) => msg),
      [],
    );
  }

  for (const variant of VARIANTS) {
    it(`takes over from kube-proxy's mode iptables (iptables-${variant}) to nftables without a gap`, async () => {
      for (const family of FAMILIES) {
        const input = kubeProxyIptables(cluster(family));
        await lab.node.exec(iptablesTool(variant, family, 'restore'), ['--noflush'], { input });
      }
      await lab.node.exec('sysctl', ['-q', '-w', 'net.ipv4.conf.all.route_localnet=1']);
      await takeOver(NFTABLES, ['nft', 'legacy', 'kube-proxy']);
      const { stdout } = await lab.node.exec('sysctl', ['-n', 'net.ipv4.conf.all.route_localnet']);
      assert.equal(stdout, '0', 'no agent would restore what its rules open');
    });

    it(`takes over from Portwide's mode iptables (iptables-${variant}) to nftables and back without a gap`, async () => {
      agent.write('objects', services());
      await agent.start(iptables(variant));
      await agent.stop();
      await takeOver(NFTABLES, ['nft', 'legacy', 'kube-proxy']);
      await agent.stop();
      await takeOver(iptables(variant), ['nftables', 'kube-proxy']);
      await agent.stop();
      await takeOver(NFTABLES, ['nft', 'legacy', 'kube-proxy']);
    });

    it(`takes over from kube-proxy's mode nftables to iptables-${variant} without a gap`, async () => {
      for (const family of FAMILIES) {
        await lab.node.exec('nft', ['-f', '-'], { input: kubeProxyNftables(cluster(family)) });
      }
      await takeOver(iptables(variant), ['nftables', 'kube-proxy']);
    });
  }

  it("takes over from kube-proxy's mode nftables to Portwide's without a gap", async () => {
    for (const family of FAMILIES) {
      await lab.node.exec('nft', ['-f', '-'], { input: kubeProxyNftables(cluster(family)) });
    }
    await takeOver(NFTABLES, ['nft', 'legacy', 'kube-proxy']);
  });

  it("keeps the kubelet's chains, including KUBE-FIREWALL", async () => {
    const kubelet = '*mangle\n:KUBE-IPTABLES-HINT - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n';
    const input = kubelet + kubeProxyIptables(cluster(4));
    await lab.node.exec('iptables-nft-restore', ['--noflush'], { input });
    await lab.node.exec('sysctl', ['-q', '-w', 'net.ipv4.conf.all.route_localnet=1']);
    agent.write('objects', services());
    await agent.start(NFTABLES);
    const removed = () =>
      agent.logged('removed leftover state').filter(({ what }) => what === 'iptables');
    await waitFor('the rules are removed', () => removed().length === 1, 30_000);
    const chains = (await leftBy(['nft'])).filter((line) => line.startsWith(':'));
    const names = chains.map((line) => /KUBE-\S+/.exec(line)?.[0]);
    assert.deepEqual(names.sort(), ['KUBE-FIREWALL', 'KUBE-IPTABLES-HINT', 'KUBE-KUBELET-CANARY']);
    const filter = await iptablesRules(lab.node, 'nft', 4, 'filter');
    assert.match(filter, /-A INPUT -j KUBE-FIREWALL/);
    const { stdout } = await lab.node.exec('sysctl', ['-n', 'net.ipv4.conf.all.route_localnet']);
    assert.equal(stdout, '1', 'the kubelet may still need it');
    await agent.kill();
    for (const table of ['mangle', 'filter']) {
      await lab.node.exec('iptables-nft', ['-t', table, '-F']);
      await lab.node.exec('iptables-nft', ['-t', table, '-X']);
    }
  });

  it('warns of state that cannot be removed, removes the rest, and serves', async () => {
    const commands = mkdtempSync(join(tmpdir(), 'portwide-commands-'));
    const script = "#!/bin/sh\necho 'failing on demand' >&2\nexit 1\n";
    writeFileSync(join(commands, 'iptables-legacy-restore'), script, { mode: 0o755 });
    const own = new Agent(lab, { env: { PATH: `${commands}:${process.env.PATH}` } });
    try {
      const input = kubeProxyIptables(cluster(4));
      for (const variant of VARIANTS) {
        await lab.node.exec(iptablesTool(variant, 4, 'restore'), ['--noflush'], { input });
      }
      own.write('objects', services());
      await own.start(NFTABLES);
      await waitFor(
        'the failure is logged',
        () => own.log.some(({ level }) => level === 40),
        30_000,
      );
      const warnings = own.log.filter(({ level }) => level >= 40);
      assert.deepEqual(
        warnings.map(({ msg }) => msg),
        ['cannot remove leftover state; retrying'],
      );
      assert.match(JSON.stringify(warnings), /failing on demand/);
      assert.deepEqual(await leftBy(['nft']), []);
      assert.notDeepEqual(await leftBy(['legacy']), []);
      answered(await lab.client.tcp(VIPS.web[4], 80));
      answered(await lab.client.tcp(VIPS.late[4], 80));
    } finally {
      await own.destroy();
      rmSync(commands, { recursive: true, force: true });
    }
  });

  it('removes all state of one mode or of all modes with cleanup', async () => {
    agent.write('objects', services());
    await agent.start(NFTABLES);
    await agent.kill();
    for (const family of FAMILIES) {
      await lab.node.exec('nft', ['-f', '-'], { input: kubeProxyNftables(cluster(family)) });
      const input = kubeProxyIptables(cluster(family));
      for (const variant of VARIANTS) {
        await lab.node.exec(iptablesTool(variant, family, 'restore'), ['--noflush'], { input });
      }
    }
    await lab.node.exec('nft', ['add', 'table', 'ip', 'foreign']);
    await lab.node.exec(PORTWIDE, ['cleanup']);
    assert.deepEqual(await leftBy(['nft', 'legacy', 'nftables', 'kube-proxy']), []);
    const { stdout } = await lab.node.exec('nft', ['list', 'tables']);
    assert.match(stdout, /foreign/);
    await lab.node.exec('nft', ['delete', 'table', 'ip', 'foreign']);
  });
});
