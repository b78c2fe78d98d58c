/** Agents beside tables of other versions of nft, and these versions list the agents' tables. */
import assert from 'node:assert/strict';
import { createLab, type Host, type Lab, removeRules, waitFor } from '../lab/lab.ts';
import { nftOfVersion } from '../nft-versions.ts';
import { PORTWIDE } from '../portwide.ts';
import { MODES } from '../uml/kernels.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { ALL_PORTS, type Manifest, serviceManifest, sliceManifest, withPods } from './manifests.ts';
import { networkPolicy, policyPods } from './policy-manifests.ts';

/** Debian 12 has 1.0.6, Debian 13 has 1.1.3, and sid has the newest. */
const VERSIONS = ['1.0.6', '1.1.3', 'newest'] as const;
const VIPS = ['10.96.0.10', 'fd00:10:96::10'] as const;
const OTHER_VIPS = { all: '10.96.0.11', ranges: '10.96.0.12', sticky: '10.96.0.13' } as const;
const OWNED_VIP = '10.96.0.14';
const HASHED_VIP = '10.96.0.15';
const PORT = 8080;
const START_MS = 60_000;
/** Exit code of a shell for SIGSEGV. */
const SEGMENTATION_FAULT = 139;

/** Sets, a concatenation of intervals, maps and rules, as a firewall has them. */
const FIREWALL = `
table inet firewall {
  set blocked { type ipv4_addr; comment "by hand"; elements = { 192.0.2.1 comment "one" }; }
  set ranges { type ipv4_addr . inet_service; flags interval; elements = { 192.0.2.0/24 . 80-90 }; }
  set typed { typeof ip saddr . tcp dport; flags interval; elements = { 192.0.2.0/24 . 80-90 }; }
  map verdicts { type ipv4_addr : verdict; elements = { 192.0.2.3 : drop }; }
  map marks { typeof ip daddr . meta l4proto : meta mark; elements = { 192.0.2.3 . tcp : 0x1 }; }
  map targets { typeof ip saddr : ip daddr . th dport; flags interval; elements = { 192.0.2.0/24 : 192.0.2.9 . 80 }; }
  chain guard {
    type filter hook forward priority 0; policy accept;
    ip saddr @blocked drop comment "blocked"
    ip saddr . tcp dport @ranges drop
    ip saddr . tcp dport @typed drop
    ip saddr vmap @verdicts
    tcp dport { 22, 6000-6010 } accept
    ip saddr . tcp dport { 192.0.2.0/24 . 80 } drop
  }
}
`;

/** Of nft, about the target NFQUEUE of iptables in a table. */
const IPTABLES_WARNING = /^# Warning: table ip6? portwide-policy is managed by iptables-nft[^\n]*$/;

/** A part of the listing of a table. */
const EXPECTED_TEXTS = {
  portwide: (family: string) =>
    new RegExp(
      `map endpoints \\{\\s+typeof ${family} daddr \\. meta l4proto \\. th dport \\. numgen`,
    ),
  'portwide-policy': (family: string) =>
    new RegExp(`set peers \\{\\s+typeof ct id \\. ${family} daddr\\s[^]*comment "default deny`),
};

/** The types of sets and maps, and comments, as nft lists them. */
function typesOf(listing: string): string[] {
  const sets = listing.matchAll(/^\t(?:set|map) (.*) \{\n((?:\t\t.*\n)*)/gm);
  return [
    ...[...sets].map(([, name, body = '']) => `${name}: ${/^\t\t(typeof .*)$/m.exec(body)?.[1]}`),
    ...[...listing.matchAll(/comment ".*"/g)].map(String),
  ].sort();
}

/** Hexadecimal numbers, except marks and keys of ordered sets, whose numbers nft writes in this form. */
function unreadable(listing: string): string[] {
  const text = listing.replaceAll(/typeof @nh,0,\d+[^}]*\}/g, '');
  return text.match(/0x[0-9a-f]{9,}|@[nt]h,.*/g) ?? [];
}

for (const [mode, version] of MODES.flatMap((each) =>
  VERSIONS.slice(1).map((foreign) => [each, foreign] as const),
)) {
  describe(`an agent in mode ${mode} beside a table of nft ${version}`, () => {
    let lab: Lab;
    let agent: Agent;
    let firewall: string;
    const tables =
      mode === 'nftables'
        ? (['portwide', 'portwide-policy'] as const)
        : (['portwide-policy'] as const);
    const flags = [...AGENT_FLAGS, `--proxy-mode=${mode}`, '--network-policy'];

    before(async () => {
      lab = await createLab({ pods: 3, remotePods: 0 });
      await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
      await nft(version, ['-f', '-'], FIREWALL);
      firewall = await nft(version, ['list', 'table', 'inet', 'firewall']);
      agent = new Agent(lab);
    });
    after(async () => {
      await agent?.destroy();
      await removeRules(lab.node);
      await lab?.destroy();
    });

    const nft = async (which: string, args: readonly string[], input = '') => {
      const { stdout, stderr } = await lab.node.exec(nftOfVersion(which), args, { input });
      assert.ok(stderr === '' || IPTABLES_WARNING.test(stderr), stderr);
      return stdout;
    };
    const pod = (index: number): Host => {
      const found = lab.pods[index];
      assert.ok(found !== undefined);
      return found;
    };
    const objects = (vips: readonly string[]): Manifest[] => {
      const ports = [{ port: PORT }];
      const services = {
        web: { spec: { clusterIPs: vips, ports } },
        all: { annotations: ALL_PORTS, spec: { clusterIPs: [OTHER_VIPS.all] } },
        ranges: {
          annotations: { 'portwide.dev/ports': '5000-5999/TCP' },
          spec: { clusterIPs: [OTHER_VIPS.ranges] },
        },
        sticky: {
          spec: { clusterIPs: [OTHER_VIPS.sticky], ports, sessionAffinity: 'ClientIP' },
        },
        hashed: {
          annotations: { 'portwide.dev/load-balancing': 'consistent-hash' },
          spec: { clusterIPs: [HASHED_VIP], ports },
        },
        owned: {
          annotations: {
            'portwide.dev/owned-ports': '20000-20999/UDP',
            'portwide.dev/ports-per-pod': '100',
          },
          spec: { clusterIPs: [OWNED_VIP] },
        },
      };
      return [
        ...Object.entries(services).flatMap(([name, fields]) => [
          serviceManifest(name, fields),
          sliceManifest(name, 4, [pod(2)], { ports: [{ name: '', port: PORT }] }),
        ]),
        sliceManifest('web', 6, [pod(2)], { ports: [{ name: '', port: PORT }] }),
        networkPolicy('deny', { podSelector: { matchLabels: { pod: 'pod-2' } } }),
      ];
    };
    const isServed = () =>
      waitFor(
        'the Service is served',
        async () => {
          for (const vip of VIPS) {
            const { outcome } = await lab.client.tcp(vip, PORT, { timeoutMs: 500 });
            if (outcome !== 'answered') return false;
          }
          return true;
        },
        START_MS,
      );
    const isEnforced = () =>
      waitFor(
        'the policy denies',
        async () => (await pod(0).tcp(pod(1).ipv4, PORT, { timeoutMs: 500 })).outcome === 'timeout',
        START_MS,
      );

    it('would crash nft 1.0.6', async () => {
      const args = ['-c', `${nftOfVersion('1.0.6')} --check -f -; exit $?`];
      const input = 'table ip other { chain a { tcp dport 80 drop; }; }\n';
      const { exitCode } = await lab.node.exec('sh', args, { input, reject: false });
      assert.equal(exitCode, SEGMENTATION_FAULT);
    });

    it('starts, serves, enforces, and repairs its tables', async () => {
      agent.write('pods', policyPods(lab));
      agent.write('objects', withPods(objects(VIPS)));
      await agent.start(flags);
      await isServed();
      await isEnforced();
      for (const table of tables)
        await nft(version, [`delete table ip ${table}; delete table ip6 ${table}`]);
      await isServed();
      await isEnforced();
    });

    it('has tables that each nft lists with the same types and comments', async () => {
      for (const table of tables) {
        for (const family of ['ip', 'ip6']) {
          const types = new Set<string>();
          for (const each of VERSIONS) {
            const listing = await nft(each, ['list', 'table', family, table]);
            types.add(typesOf(listing).join('\n'));
            assert.deepEqual(unreadable(listing), [], `${table} ${family} ${each}`);
            assert.match(listing, EXPECTED_TEXTS[table](family));
          }
          assert.equal(types.size, 1, `${table} ${family}: ${[...types].join('\n\n')}`);
          assert.doesNotMatch([...types].join(), /: undefined/);
        }
      }
    });

    it('stops, and leaves the other table as it was', async () => {
      await agent.stop();
      await lab.node.exec(PORTWIDE, ['cleanup']);
      assert.doesNotMatch(await nft(version, ['list', 'tables']), /portwide/);
      assert.equal(await nft(version, ['list', 'table', 'inet', 'firewall']), firewall);
    });
  });
}
