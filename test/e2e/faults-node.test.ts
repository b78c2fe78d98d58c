/**
 * Faults of the node and its programs, and faults of Services in modes iptables and ipvs: packets show the fault, and one
 * command and the page name its cause. Mode ipvs and a full conntrack table are shown by packets in user-mode-linux
 * (ipvs-faults.uml.ts), because the table would be full for this machine. Its answers are recorded for the page.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Host } from '../lab/lab.ts';
import { waitFor } from '../lab/lab.ts';
import { startBrowser, type TestBrowser } from '../status/page/browser.ts';
import { fakeAnswers, startFakeAgent } from '../status/page/fake-agent.ts';
import {
  NODE_CAUSES as CAUSES,
  type Cause,
  IPTABLES_CAUSES as IPTABLES,
  IPVS_CAUSES,
  titleOf,
} from './fault-causes.ts';
import { FaultLab } from './fault-lab.ts';
import { findCause } from './fault-page.ts';
import { ApiFeed } from './feed.ts';
import { IPVS_ANSWERS, type IpvsFault } from './ipvs-answers.ts';
import { defineServiceFaults, outcome, QUICK, serveWeb, VIP } from './service-faults.ts';

/** The source address that the endpoint sees, or the outcome if it does not answer. */
async function seenBy(from: Host, address = VIP, port = 80): Promise<string> {
  const result = await from.tcp(address, port, QUICK);
  return result.outcome === 'answered' ? result.reply.remoteAddress : result.outcome;
}

describe('faults of the node, and in modes iptables and ipvs: one command and the page name the cause', () => {
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
      await serveWeb(faults);
    });
    after(() => faults?.destroy());

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
      await serveWeb(faults);
    });
    after(() => faults?.destroy());

    defineServiceFaults(() => faults);

    /** Inserts a rule of another program into a chain that the agent also uses, until the test ends. */
    const withRule = async (rule: readonly string[], run: () => Promise<void>) => {
      const edit = (action: string) =>
        faults.lab.node.exec('iptables-nft', ['-w', action, ...rule]);
      await edit('-I');
      try {
        await run();
      } finally {
        await edit('-D');
      }
    };

    it(titleOf(IPTABLES.foreignDrop), async () => {
      await serveWeb(faults);
      const rule = ['FORWARD', '-p', 'tcp', '--dport', '8080', '-j', 'DROP'];
      await withRule(rule, async () => {
        assert.equal(await outcome(client, VIP), 'timeout');
        await faults.readsRules(IPTABLES.foreignDrop);
        await faults.name(IPTABLES.foreignDrop);
      });
    });

    it(titleOf(IPTABLES.foreignMasquerade), async () => {
      await serveWeb(faults);
      const pod = faults.pod(1);
      const rule = ['POSTROUTING', '-t', 'nat', '-s', '10.244.0.0/16', '-j', 'MASQUERADE'];
      assert.equal(await seenBy(pod), pod.ipv4);
      await withRule(rule, async () => {
        assert.notEqual(await seenBy(pod), pod.ipv4);
        await faults.readsRules(IPTABLES.foreignMasquerade);
        await faults.name(IPTABLES.foreignMasquerade);
      });
    });

    it(titleOf(CAUSES.deletedRule), async () => {
      const { node } = faults.lab;
      assert.equal(await outcome(client, VIP), 'answered');
      const { stdout } = await node.exec('iptables-nft', ['-t', 'nat', '-S']);
      const target = `--to-destination ${faults.pod(0).ipv4}:8080`;
      const rule = stdout.split('\n').find((line) => line.includes(target)) ?? '';
      const [, chain = ''] = rule.split(' ');
      assert.match(chain, /^KUBE-SEP-/);
      await node.exec('iptables-nft', ['-t', 'nat', '-F', chain]);
      try {
        assert.notEqual(await outcome(client, VIP), 'answered');
        const text = await faults.name(CAUSES.deletedRule);
        assert.ok(text.includes(`+-A ${chain} `) && text.includes(target), text);
      } finally {
        await faults.restart();
      }
      assert.equal(await outcome(client, VIP), 'answered');
    });

    it(titleOf(CAUSES.apiServerAway), async () => {
      const { port } = api.double;
      await api.double.kill();
      assert.equal(await outcome(client, VIP), 'answered');
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

  describe('mode ipvs, by answers of an agent in user-mode-linux', () => {
    for (const [fault, cause] of Object.entries(IPVS_CAUSES) as [IpvsFault, Cause][]) {
      it(`${cause.fault}: page ${cause.page.place}`, async () => {
        const { path, answer } = IPVS_ANSWERS[fault];
        const fake = fakeAnswers();
        const isService = path.startsWith('/api/v1/services/');
        const resource = isService ? '/api/v1/services/{namespace}/{name}' : path;
        const agent = await startFakeAgent({
          ...fake,
          [resource]: (query) => ({ ...fake[resource]?.(query), ...answer }),
          ...(isService && {
            '/api/v1/services': () => ({ items: [answer.summary], total: 1, continue: null }),
          }),
        });
        try {
          await findCause(browser, agent.url, cause);
        } finally {
          agent.close();
        }
      });
    }
  });
});
