import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { parse } from 'yaml';
import { crashingNft } from '../crashing-nft.ts';
import { AGENT_FLAGS, Agent } from '../e2e/agent.ts';
import { nodeManifest, serviceManifest, sliceManifest } from '../e2e/manifests.ts';
import { createLab, type Host, type Lab } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';

const CLUSTER_CIDR = '10.244.0.0/16,fd00:10:244::/48';
const PORT = 20_104;

interface Check {
  readonly status: string;
  readonly name: string;
  readonly seen: string;
  readonly action: string;
}

/** What a check must not change: rules, tables, sysctls and addresses. */
async function stateOf(node: Host): Promise<string> {
  const commands = [
    'nft list ruleset',
    'cat /proc/net/ip_tables_names /proc/net/ip6_tables_names',
    'sysctl net.ipv4.ip_forward net.ipv4.conf.all net.netfilter',
    'ip address',
  ];
  const { stdout } = await node.exec('sh', ['-c', commands.join('; ')]);
  return stdout.replace(/nf_conntrack_count.*/, '');
}

describe('check: portwide check', () => {
  let lab: Lab;
  let directory: string;
  const crashing = crashingNft();
  let pod: Host;
  let remote: Host;

  before(async () => {
    lab = await createLab({ pods: 1, remotePods: 1 });
    assert.ok(lab.pods[0] && lab.remotePods[0]);
    [pod, remote] = [lab.pods[0], lab.remotePods[0]];
    for (const port of [PORT, PORT + 1]) await remote.serve({ protocol: 'TCP', port });
    directory = mkdtempSync(join(tmpdir(), 'portwide-check-'));
    const items = [
      nodeManifest([lab.node.ipv4, lab.node.ipv6]),
      serviceManifest('web', { spec: { clusterIPs: ['10.96.0.10'] } }),
      sliceManifest('web', 4, [pod, remote], {
        ports: [{ name: '', port: PORT + 1, protocol: 'TCP' }],
      }),
    ];
    const list = { apiVersion: 'v1', kind: 'List', items };
    writeFileSync(join(directory, 'objects.json'), JSON.stringify(list));
  });
  after(async () => {
    await lab?.destroy();
    rmSync(directory, { recursive: true, force: true });
    crashing.remove();
  });

  /** Runs the command in the node's network namespace. */
  const run = (...flags: readonly string[]) => {
    const source = flags.some((flag) => flag.startsWith('--master'))
      ? []
      : [`--manifests=${directory}`];
    const path = `PATH=${crashing.path}`;
    const args = [path, PORTWIDE, 'check', ...source, '--hostname-override=node', ...flags];
    return lab.node.exec('env', args, { reject: false });
  };
  const check = async (...flags: readonly string[]) => {
    const cidr = flags.some((flag) => flag.startsWith('--cluster-cidr'))
      ? []
      : [`--cluster-cidr=${CLUSTER_CIDR}`];
    const { stdout, stderr, exitCode } = await run('-o', 'yaml', ...cidr, ...flags);
    assert.notEqual(stdout, '', stderr);
    const { checks }: { readonly checks: readonly Check[] } = parse(stdout);
    return {
      exitCode,
      /** `warn seen` for each line with this name. */
      lines: (name: string) =>
        checks.filter((each) => each.name === name).map(({ status, seen }) => `${status} ${seen}`),
      fails: checks
        .filter(({ status }) => status === 'fail')
        .map(({ name, seen }) => `${name}: ${seen}`),
    };
  };
  /** The client address that the remote pod sees, or the outcome if there is no answer. */
  const clientSeen = async () => {
    const result = await pod.tcp(remote.ipv4, PORT, { timeoutMs: 500 });
    return result.outcome === 'answered' ? result.reply.remoteAddress : result.outcome;
  };
  const nft = (script: string) => lab.node.exec('nft', ['-f', '-'], { input: script });
  const sysctl = (setting: string) => lab.node.exec('sysctl', ['-q', '-w', setting]);

  for (const flags of [
    ['--proxy-mode=nftables', '--service-cidrs=10.96.0.0/16', '--network-policy'],
    ['--proxy-mode=iptables', '--iptables-variant=nft'],
    ['--proxy-mode=iptables', '--iptables-variant=legacy'],
    ['--proxy-mode=ipvs'],
  ]) {
    it(`a node without faults passes, and the check changes nothing: ${flags.join(' ')}`, async () => {
      const before = await stateOf(lab.node);
      const { exitCode, fails } = await check(...flags);
      assert.deepEqual([exitCode, fails], [0, []]);
      assert.equal(await stateOf(lab.node), before);
    });
  }

  it('prints one line for each check, with a summary', async () => {
    const { stdout } = await run('--cluster-cidr=10.20.0.0/16');
    const lines = stdout.split('\n');
    assert.match(lines.at(-1) ?? '', /^\d+ ok, \d+ warn, 1 fail$/);
    for (const line of lines.slice(0, -1)) assert.match(line, /^(ok {2}|warn|fail) {2}\S/);
    assert.match(
      stdout,
      /^fail {2}local pods .*pod CIDR 10\.244\.1\.0\/24.* -> set --cluster-cidr/m,
    );
  });

  it('names a foreign drop of one port of one endpoint', async () => {
    const outcome = async () => (await pod.tcp(remote.ipv4, PORT + 1, { timeoutMs: 500 })).outcome;
    for (const [hook, priority] of [
      ['forward', 5],
      ['prerouting', -300],
    ]) {
      assert.equal(await outcome(), 'answered');
      await nft(
        `table ip firewall { chain fw { type filter hook ${hook} priority ${priority}; ip daddr ${remote.ipv4} tcp dport ${PORT + 1} drop; }; }`,
      );
      try {
        assert.deepEqual([await outcome(), await clientSeen()], ['timeout', pod.ipv4]);
        const { exitCode, lines } = await check();
        assert.deepEqual(lines('foreign drop rules'), [
          `warn table ip firewall, base chain fw (priority ${priority}, policy accept) drops connections from pods to ${remote.ipv4}:${PORT + 1}/TCP`,
        ]);
        assert.equal(exitCode, 0);
      } finally {
        await nft('delete table ip firewall');
      }
      const [line] = (await check()).lines('foreign drop rules');
      assert.match(
        line ?? '',
        /^ok none of \d+ base chains .* \(tested with 2 ports of endpoints\)$/,
      );
    }
  });

  const drops = [
    [
      'an nft table with policy drop',
      'inet firewall, base chain fw (priority -5, policy drop) by its policy',
    ],
    [
      'iptables-nft with policy DROP',
      'ip filter (iptables-nft), base chain FORWARD (priority 0, policy drop) by its policy',
    ],
    [
      'iptables-legacy with a rule',
      'ip filter (iptables-legacy), base chain FORWARD (priority 0, policy accept), chain USER',
    ],
  ] as const;
  const setUp = [
    async (isOn: boolean) =>
      nft(
        isOn
          ? 'table inet firewall { chain fw { type filter hook forward priority -5; policy drop; ct state established accept; ip saddr 203.0.113.0/24 accept; }; }'
          : 'delete table inet firewall',
      ),
    async (isOn: boolean) =>
      lab.node.exec('iptables-nft', ['-w', '-P', 'FORWARD', isOn ? 'DROP' : 'ACCEPT']),
    async (isOn: boolean) =>
      lab.node.exec('sh', [
        '-c',
        isOn
          ? 'iptables-legacy -w -N USER && iptables-legacy -w -A USER -s 10.244.0.0/16 -j DROP && iptables-legacy -w -A FORWARD -j USER'
          : 'iptables-legacy -w -F && iptables-legacy -w -X',
      ]),
  ];
  for (const [index, [title, place]] of drops.entries()) {
    it(`names the foreign drop: ${title}`, async () => {
      await setUp[index]?.(true);
      try {
        assert.equal(await clientSeen(), 'timeout');
        const { exitCode, lines } = await check();
        assert.deepEqual(lines('foreign drop rules'), [
          `fail table ${place} drops connections from pods to endpoints`,
        ]);
        assert.equal(exitCode, 1);
        assert.equal(crashing.hasRun(), false);
      } finally {
        await setUp[index]?.(false);
      }
      assert.equal(await clientSeen(), pod.ipv4);
      assert.match((await check()).lines('foreign drop rules').join(), /^ok /);
    });
  }

  it('names the masquerade of another CNI, and accepts one that spares pods', async () => {
    const masquerade = (match: string) =>
      nft(
        `table ip cni { chain post { type nat hook postrouting priority srcnat; ip saddr 10.244.1.0/24 ${match} masquerade; }; }`,
      );
    await masquerade('');
    try {
      assert.equal(await clientSeen(), lab.node.ipv4);
      const { lines, exitCode } = await check();
      assert.deepEqual(lines('CNI masquerade'), [
        'warn table ip cni, base chain post (priority 100, policy accept) masquerades connections from pods to endpoints',
      ]);
      assert.equal(exitCode, 0);
    } finally {
      await nft('delete table ip cni');
    }
    await masquerade('ip daddr != 10.244.0.0/16');
    try {
      assert.equal(await clientSeen(), pod.ipv4);
      assert.match((await check()).lines('CNI masquerade').join(), /^ok /);
    } finally {
      await nft('delete table ip cni');
    }
  });

  it('names an iptables rule that masquerades', async () => {
    const rule = [
      '-s',
      '10.244.1.0/24',
      '-m',
      'comment',
      '--comment',
      'all of it',
      '-j',
      'MASQUERADE',
    ];
    await lab.node.exec('iptables-nft', ['-w', '-t', 'nat', '-A', 'POSTROUTING', ...rule]);
    assert.equal(await clientSeen(), lab.node.ipv4);
    const [line] = (await check()).lines('CNI masquerade');
    assert.match(
      line ?? '',
      /^warn table ip nat \(iptables-nft\), base chain POSTROUTING .* masquerades/,
    );
    await lab.node.exec('iptables-nft', ['-w', '-t', 'nat', '-D', 'POSTROUTING', ...rule]);
  });

  it('forwarding that is off fails, and no packet arrives', async () => {
    await sysctl('net.ipv4.ip_forward=0');
    assert.equal(await clientSeen(), 'timeout');
    assert.match((await check()).fails.join(), /net\.ipv4\.ip_forward: IP forwarding is disabled/);
    await sysctl('net.ipv4.ip_forward=1');
  });

  for (const [setting, reset, name, expected] of [
    [
      'net.ipv4.conf.eth0.rp_filter=1',
      'net.ipv4.conf.eth0.rp_filter=0',
      'rp_filter',
      /^warn strict \(1\) on eth0/,
    ],
    [
      'net.ipv4.conf.all.route_localnet=1',
      'net.ipv4.conf.all.route_localnet=0',
      'route_localnet',
      /^warn 1: other hosts/,
    ],
    [
      'net.ipv4.ip_local_port_range=30000 60999',
      'net.ipv4.ip_local_port_range=32768 60999',
      'ip_local_port_range',
      /^warn 30000-60999 contains 2768 ports/,
    ],
  ] as const) {
    it(`warns about ${setting}`, async () => {
      await sysctl(setting);
      const changed = (await check()).lines(name).join();
      await sysctl(reset);
      assert.match(changed, expected);
      assert.match((await check()).lines(name).join(), /^ok /);
    });
  }

  it('names the port of the agent that another process has', async () => {
    await lab.node.serve({ protocol: 'TCP', port: 10_256 });
    const [line] = (await check()).lines('ports of the agent');
    await lab.node.stopServing();
    assert.match(
      line ?? '',
      /^warn --healthz-bind-address: another process listens on \[::\]:10256/,
    );
  });

  it('names BPF programs on interfaces, of Cilium, Calico and others', async () => {
    const names = ['Cilium', 'Calico eBPF', 'BPF programs'];
    const before = await check();
    assert.ok(names.every((name) => /^ok /.test(before.lines(name).join())));
    const attach = (link: string, name: string) =>
      lab.node.exec(process.execPath, [
        fileURLToPath(new URL('./attach-bpf.ts', import.meta.url)),
        link,
        name,
      ]);
    const links = ['cilium_host', 'bpfin.cali', 'other'];
    try {
      for (const link of links) {
        await lab.node.exec('ip', [
          ...['link', 'add', link, 'type', 'veth'],
          ...['peer', 'name', `p-${link.slice(0, 5)}`],
        ]);
        await lab.node.exec('tc', ['qdisc', 'add', 'dev', link, 'clsact']);
      }
      await attach('cilium_host', 'cil_to_host-cilium_host');
      await attach('bpfin.cali', 'cali_tc_preamble');
      await attach('other', 'monitor');
      await attach('other', 'xdp');
      const { lines } = await check();
      assert.deepEqual(names.flatMap(lines), [
        'warn BPF program cil_to_host-cilium_host on cilium_host (ingress); interface cilium_host',
        'warn BPF program cali_tc_preamble on bpfin.cali (ingress); interface bpfin.cali',
        'warn XDP on other, monitor on other (ingress)',
      ]);
    } finally {
      for (const link of links) {
        await lab.node.exec('ip', ['link', 'del', link], { reject: false });
      }
    }
  });

  it('names what Cilium pins in the BPF file system', async () => {
    // A mount namespace of its own. Links stand for pinned objects.
    const links = '/sys/fs/bpf/cilium/socketlb/links/cgroup';
    const script = `
      mount -t bpf bpf /sys/fs/bpf && mkdir -p ${links} && ln -s x ${links}/cil_sock4_connect &&
      exec "$@"`;
    const command = [PORTWIDE, 'check', `--manifests=${directory}`, '--hostname-override=node'];
    const { stdout, stderr } = await lab.node.exec(
      'unshare',
      ['--mount', 'sh', '-c', script, 'sh', ...command],
      { reject: false },
    );
    assert.match(
      stdout,
      /warn +Cilium +BPF programs of its socket load balancer: cil_sock4_connect -> set/,
      stderr,
    );
  });

  it('warns that both iptables variants have rules', async () => {
    for (const variant of ['nft', 'legacy']) {
      await lab.node.exec(`iptables-${variant}`, [
        '-w',
        '-A',
        'INPUT',
        '-s',
        '192.0.2.1',
        '-j',
        'DROP',
      ]);
    }
    const [line] = (await check()).lines('iptables variants');
    for (const variant of ['nft', 'legacy']) {
      await lab.node.exec(`iptables-${variant}`, ['-w', '-F']);
    }
    assert.match(line ?? '', /^warn 1 rules of iptables-nft, 1 rules of iptables-legacy/);
  });

  it('names cluster IPs outside of --service-cidrs, and CIDRs of pods in it', async () => {
    const outside = await check('--service-cidrs=10.97.0.0/16');
    assert.match(
      outside.lines('Service CIDRs').join(),
      /^fail .*does not contain 10\.96\.0\.10 \(default\/web\)/,
    );
    const overlapping = await check('--service-cidrs=10.0.0.0/8');
    assert.match(
      overlapping.lines('Service CIDRs').join(),
      /^fail .*contains pod CIDR 10\.244\.1\.0\/24/,
    );
  });

  it('names the API server that does not answer', async () => {
    const { exitCode, lines, fails } = await check('--master=http://127.0.0.1:1');
    assert.match(lines('API server').join(), /^fail .*127\.0\.0\.1:1/);
    assert.match(lines('RBAC').join(), /^warn not seen/);
    assert.equal(fails.length, 1, fails.join('\n'));
    assert.equal(exitCode, 1);
  });

  it('names what an API server does not know and does not allow', async () => {
    const script = fileURLToPath(new URL('./api-server.ts', import.meta.url));
    const server = lab.node.spawn(process.execPath, [script]);
    assert.ok(server.stdout);
    const [port] = await once(server.stdout, 'data');
    const { exitCode, lines, fails } = await check(`--master=http://127.0.0.1:${Number(port)}`);
    server.kill();
    assert.deepEqual(fails, [
      'node object: no Node "node"',
      'RBAC: not allowed: watch endpointslices.discovery.k8s.io',
    ]);
    assert.deepEqual(lines('API server'), ['ok lists 0 Services']);
    assert.match(lines('Service CIDRs').join(), /ServiceCIDR objects not seen \(API server: 404/);
    assert.equal(exitCode, 1);
  });

  it('knows a running agent, its ports, and kube-proxy rules that it left', async () => {
    const agent = new Agent(lab);
    try {
      await agent.start([...AGENT_FLAGS, '--proxy-mode=nftables']);
      const { lines, fails } = await check();
      assert.deepEqual(fails, []);
      assert.match(lines('Portwide').join(), /^ok an agent runs/);
      assert.match(lines('ports of the agent').join(), /^ok .*the agent runs$/);
      assert.match(lines('kube-proxy').join(), /^ok no rules/);
      await lab.node.exec('iptables-nft', ['-w', '-t', 'nat', '-N', 'KUBE-SERVICES']);
      assert.match(
        (await check()).lines('kube-proxy').join(),
        /^warn chain KUBE-SERVICES \(iptables-nft\), although/,
      );
      await lab.node.exec('iptables-nft', ['-w', '-t', 'nat', '-X', 'KUBE-SERVICES']);
    } finally {
      await agent.destroy();
    }
  });

  it('without CAP_NET_ADMIN it says so, and does the other checks', async () => {
    const command = ['--bounding-set=-net_admin', '--inh-caps=-all', PORTWIDE];
    const args = [...command, 'check', `--manifests=${directory}`, '--hostname-override=node'];
    const { stdout, exitCode } = await lab.node.exec('setpriv', args, { reject: false });
    assert.match(stdout, /^fail {2}CAP_NET_ADMIN/m);
    assert.match(stdout, /^ok {4}node object/m);
    assert.equal(exitCode, 1);
  });

  it('settings that cannot be read are an error', async () => {
    const { exitCode, stdout, stderr } = await run('--cluster-cidr=10.0.0.0/40');
    assert.deepEqual([exitCode, stdout], [2, '']);
    assert.match(stderr, /--cluster-cidr/);
  });
});
