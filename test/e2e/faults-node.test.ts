/**
 * Faults of the node and its programs: packets show the fault, and one command and the page name its cause. A full
 * conntrack table is shown by packets in user-mode-linux (ipvs-faults.uml.ts), because it would be full for this machine.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Host } from '../lab/lab.ts';
import { waitFor } from '../lab/lab.ts';
import { startBrowser, type TestBrowser } from '../status/page/browser.ts';
import { NODE_CAUSES as CAUSES, titleOf } from './fault-causes.ts';
import { FaultLab } from './fault-lab.ts';
import { ApiFeed } from './feed.ts';
import { type Manifest, serviceManifest, sliceManifest } from './manifests.ts';

const VIP = '10.96.0.10';
const PORTS = { ports: [{ name: '', port: 8080 }] };
const QUICK = { timeoutMs: 400 };

const web = (pods: readonly Host[]): Manifest[] => [
  serviceManifest('web', { spec: { clusterIPs: [VIP], ports: [{ port: 80 }] } }),
  sliceManifest('web', 4, pods, PORTS),
];

describe('faults of the node: one command and the page name the cause', () => {
  let browser: TestBrowser;

  before(async () => {
    browser = await startBrowser();
  });
  after(() => browser?.close());

  describe('mode nftables', () => {
    let faults: FaultLab;
    let client: Host;

    before(async () => {
      faults = await FaultLab.start({ flags: ['--proxy-mode=nftables'], browser });
      ({ client } = faults.lab);
      await faults.agent.apply(web([faults.pod(0)]));
    });
    after(() => faults?.destroy());

    /** The source address that the endpoint sees, or the outcome if it does not answer. */
    const seenBy = async (from: Host, address = VIP, port = 80) => {
      const result = await from.tcp(address, port, QUICK);
      return result.outcome === 'answered' ? result.reply.remoteAddress : result.outcome;
    };

    it(titleOf(CAUSES.routeLocalnet), async () => {
      const { node } = faults.lab;
      await node.serve({ protocol: 'TCP', port: 9100, address: '127.0.0.1' });
      // Counts answers: the kernel of the client takes none from 127.0.0.1.
      const count = `table ip watch { chain output { type filter hook output priority 0; ip saddr 127.0.0.1 ip daddr ${client.ipv4} tcp sport 9100 counter; }; }`;
      await node.exec('nft', [count]);
      const attack = [
        'ip route flush table local root 127.0.0.0/8',
        `ip route add 127.0.0.0/8 via ${node.ipv4} src ${client.ipv4}`,
      ];
      await client.exec('sh', ['-ec', attack.join('; ')]);
      const isAnswered = async () => {
        await client.tcp('127.0.0.1', 9100, QUICK);
        const { stdout } = await node.exec('nft', ['list', 'table', 'ip', 'watch']);
        return !stdout.includes('packets 0');
      };
      assert.equal(await isAnswered(), false);
      assert.match((await faults.ask('check')).text, /^ok {4}route_localnet/m);
      await node.exec('sysctl', ['-qw', 'net.ipv4.conf.all.route_localnet=1']);
      assert.equal(await isAnswered(), true);
      await faults.name(CAUSES.routeLocalnet);
      await node.exec('sysctl', ['-qw', 'net.ipv4.conf.all.route_localnet=0']);
      await node.exec('nft', ['delete', 'table', 'ip', 'watch']);
    });

    it(titleOf(CAUSES.clusterCidr), async () => {
      const wrong = '--cluster-cidr=10.20.0.0/16';
      const pod = faults.pod(1);
      assert.equal(await seenBy(pod), pod.ipv4);
      await faults.restart(wrong);
      assert.notEqual(await seenBy(pod), pod.ipv4);
      await faults.name(CAUSES.clusterCidr);
      await faults.restart();
    });

    it(titleOf(CAUSES.serviceCidrs), async () => {
      const wrong = '--service-cidrs=10.0.0.0/8';
      const pod = faults.pod(1);
      assert.equal(await seenBy(pod, faults.remote.ipv4, 8080), pod.ipv4);
      await faults.restart(wrong);
      assert.equal(await seenBy(pod, faults.remote.ipv4, 8080), 'timeout');
      await faults.name(CAUSES.serviceCidrs);
      await faults.restart();
    });

    it(titleOf(CAUSES.conntrackFull), async () => {
      const { node } = faults.lab;
      await client.burst(VIP, 80, 30);
      const { stdout } = await node.exec('cat', ['/proc/sys/net/netfilter/nf_conntrack_count']);
      // Only the first network namespace can set the limit, for all. So the agent alone sees another one.
      const directory = mkdtempSync(join(tmpdir(), 'portwide-conntrack-'));
      const file = join(directory, 'max');
      const limit = Math.floor(Number(stdout) / 0.95);
      writeFileSync(file, `${limit}\n`);
      const limitFile = '/proc/sys/net/netfilter/nf_conntrack_max';
      const inAgent = ['-m', '-t', String(faults.agent.pid)];
      await node.exec('nsenter', [...inAgent, 'mount', '--bind', file, limitFile]);
      try {
        assert.ok((await faults.name(CAUSES.conntrackFull)).includes(` of ${limit}: `));
      } finally {
        await node.exec('nsenter', [...inAgent, 'umount', limitFile]);
        rmSync(directory, { recursive: true, force: true });
      }
    });
  });

  describe('mode iptables', () => {
    let faults: FaultLab;
    let client: Host;
    let api: ApiFeed;

    before(async () => {
      faults = await FaultLab.start({
        browser,
        // A resync would repair the rules.
        flags: ['--proxy-mode=iptables', '--iptables-variant=nft', '--iptables-sync-period=1h'],
        feedOf: async (lab) => {
          api = await ApiFeed.start(lab);
          return api;
        },
      });
      ({ client } = faults.lab);
      await faults.agent.apply(web([faults.pod(0)]));
    });
    after(() => faults?.destroy());

    const outcome = async () => (await client.tcp(VIP, 80, QUICK)).outcome;

    it(titleOf(CAUSES.deletedRule), async () => {
      const { node } = faults.lab;
      assert.equal(await outcome(), 'answered');
      const { stdout } = await node.exec('iptables-nft', ['-t', 'nat', '-S']);
      const target = `--to-destination ${faults.pod(0).ipv4}:8080`;
      const rule = stdout.split('\n').find((line) => line.includes(target)) ?? '';
      const [, chain = ''] = rule.split(' ');
      assert.match(chain, /^KUBE-SEP-/);
      await node.exec('iptables-nft', ['-t', 'nat', '-F', chain]);
      try {
        assert.notEqual(await outcome(), 'answered');
        const text = await faults.name(CAUSES.deletedRule);
        assert.ok(text.includes(`+-A ${chain} `) && text.includes(target), text);
      } finally {
        await faults.restart();
      }
      assert.equal(await outcome(), 'answered');
    });

    it(titleOf(CAUSES.apiServerAway), async () => {
      const { port } = api.double;
      await api.double.kill();
      assert.equal(await outcome(), 'answered');
      const status = async () => (await faults.ask('status')).text;
      await waitFor('the watches are closed', async () =>
        new RegExp(
          `^Source: +API server 127\\.0\\.0\\.1:${port}: .*Service without a watch`,
          'm',
        ).test(await status()),
      );
      await waitFor(
        'status names the problem',
        async () => CAUSES.apiServerAway.printed.test(await status()),
        45_000,
      );
      const text = await faults.name(CAUSES.apiServerAway);
      assert.ok(text.includes(`Check the API server 127.0.0.1:${port}\n`));
    });

    it(`${titleOf(CAUSES.apiServerAwayAtStart)}: at the start`, async () => {
      await faults.agent.stop();
      faults.launch();
      const { port } = api.double;
      await waitFor('the agent answers', async () => (await faults.ask('status')).exitCode === 1);
      const text = await faults.name(CAUSES.apiServerAwayAtStart);
      assert.match(text, /^State: +starting$/m);
      assert.ok(text.includes(` 127.0.0.1:${port}, `));
    });
  });
});
