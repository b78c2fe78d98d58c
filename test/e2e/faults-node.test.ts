/** Faults of the node and its programs: packets show the fault, and one command names its cause. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Host } from '../lab/lab.ts';
import { waitFor } from '../lab/lab.ts';
import { FaultLab } from './fault-lab.ts';
import { ApiFeed } from './feed.ts';
import { type Manifest, serviceManifest, sliceManifest } from './manifests.ts';

const VIP = '10.96.0.10';
const PORTS = { ports: [{ name: '', port: 8080 }] };
const QUICK = { timeoutMs: 400 };
const CLUSTER_CIDR = '--cluster-cidr=10.244.0.0/16,fd00:10:244::/48';

const web = (pods: readonly Host[]): Manifest[] => [
  serviceManifest('web', { spec: { clusterIPs: [VIP], ports: [{ port: 80 }] } }),
  sliceManifest('web', 4, pods, PORTS),
];

describe('faults of the node, mode nftables: one command names the cause', () => {
  let faults: FaultLab;
  let client: Host;

  before(async () => {
    faults = await FaultLab.start({ flags: ['--proxy-mode=nftables'] });
    ({ client } = faults.lab);
    await faults.agent.apply(web([faults.pod(0)]));
  });
  after(() => faults?.destroy());

  const check = (...flags: readonly string[]) =>
    faults.check(`--manifests=${faults.agent.directory}`, '--proxy-mode=nftables', ...flags);
  /** The source address that the endpoint sees, or the outcome if it does not answer. */
  const seenBy = async (from: Host, address = VIP, port = 80) => {
    const result = await from.tcp(address, port, QUICK);
    return result.outcome === 'answered' ? result.reply.remoteAddress : result.outcome;
  };

  it('route_localnet: check', async () => {
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
    assert.match((await check(CLUSTER_CIDR)).text, /^ok {4}route_localnet/m);
    await node.exec('sysctl', ['-qw', 'net.ipv4.conf.all.route_localnet=1']);
    assert.equal(await isAnswered(), true);
    const { text } = await check(CLUSTER_CIDR);
    assert.match(
      text,
      /^warn {2}route_localnet +1: other hosts can reach 127\.0\.0\.0\/8 unless rules drop it, and mode nftables does not need it -> .*set net\.ipv4\.conf\.all\.route_localnet=0/m,
    );
    await node.exec('sysctl', ['-qw', 'net.ipv4.conf.all.route_localnet=0']);
    await node.exec('nft', ['delete', 'table', 'ip', 'watch']);
  });

  it('wrong --cluster-cidr: check', async () => {
    const wrong = '--cluster-cidr=10.20.0.0/16';
    const pod = faults.pod(1);
    assert.equal(await seenBy(pod), pod.ipv4);
    await faults.restart(wrong);
    assert.notEqual(await seenBy(pod), pod.ipv4);
    const { text, exitCode } = await check(wrong);
    assert.equal(exitCode, 1);
    assert.match(
      text,
      /^fail {2}local pods +--cluster-cidr=10\.20\.0\.0\/16 does not contain pod CIDR 10\.244\.1\.0\/24 of this node -> set --cluster-cidr/m,
    );
    await faults.restart();
  });

  it('wrong --service-cidrs: check', async () => {
    const wrong = '--service-cidrs=10.0.0.0/8';
    const pod = faults.pod(1);
    assert.equal(await seenBy(pod, faults.remote.ipv4, 8080), pod.ipv4);
    await faults.restart(wrong);
    assert.equal(await seenBy(pod, faults.remote.ipv4, 8080), 'timeout');
    const { text, exitCode } = await check(CLUSTER_CIDR, wrong);
    assert.equal(exitCode, 1);
    assert.match(
      text,
      /^fail {2}Service CIDRs +--service-cidrs=10\.0\.0\.0\/8 contains pod CIDR 10\.244\.1\.0\/24.* -> correct --service-cidrs: packets to addresses in it that are no cluster IP are dropped/m,
    );
    await faults.restart();
  });

  it('conntrack table almost full: status', async () => {
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
      const { text, exitCode } = await faults.ask('status');
      assert.equal(exitCode, 1);
      assert.match(
        text,
        new RegExp(
          `^ {2}Kernel .*net\\.netfilter\\.nf_conntrack_count \\d+ of ${limit}: the conntrack table is almost full, and then new connections are dropped; raise --conntrack-max-per-core$`,
          'm',
        ),
      );
    } finally {
      await node.exec('nsenter', [...inAgent, 'umount', limitFile]);
      rmSync(directory, { recursive: true, force: true });
    }
  });
});

describe('faults of the node, mode iptables: one command names the cause', () => {
  let faults: FaultLab;
  let client: Host;
  let api: ApiFeed;

  before(async () => {
    faults = await FaultLab.start({
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

  it('rule that another program deleted: diff', async () => {
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
      const { text, exitCode } = await faults.ask('diff');
      assert.equal(exitCode, 1);
      assert.match(
        text,
        new RegExp(
          `^@@ IPv4 rule in nat, Service default/web: missing @@\\n\\+-A ${chain} .*-j DNAT ${target}$`,
          'm',
        ),
      );
    } finally {
      await faults.restart();
    }
    assert.equal(await outcome(), 'answered');
  });

  it('API server that is away: status', async () => {
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
    const problem = await waitFor(
      'status names the problem',
      async () => /^ {2}WatchDown .*$/m.exec(await status())?.[0],
      45_000,
    );
    assert.match(problem, /since \d{4}-\d{2}-\d{2}T\S+; rules stay as they are/);
    assert.match(problem, new RegExp(`Check the API server 127\\.0\\.0\\.1:${port}$`));
  });

  it('API server that is away at the start: status', async () => {
    await faults.agent.stop();
    faults.launch();
    const { port } = api.double;
    const text = await waitFor('the agent answers', async () => {
      const answer = await faults.ask('status');
      return answer.exitCode === 1 ? answer.text : undefined;
    });
    assert.match(text, /^State: +starting$/m);
    assert.match(
      text,
      new RegExp(`^Waiting for: +Services from the API server 127\\.0\\.0\\.1:${port}, `, 'm'),
    );
  });
});
