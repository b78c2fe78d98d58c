import assert from 'node:assert/strict';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { ResultPromise } from 'execa';
import { parse } from 'yaml';
import {
  createLab,
  type ExecResult,
  iptablesRules,
  type Lab,
  removeRules,
  waitFor,
} from '../lab/lab.ts';
import { Scrape } from '../metrics/scrape.ts';
import { PORTWIDE } from '../portwide.ts';
import type { LogLine } from './agent.ts';
import { holdTable } from './held-table.ts';
import { nodeManifest, serviceManifest } from './manifests.ts';

const START_MS = 60_000;
const ROUTE_LOCALNET = '/proc/sys/net/ipv4/conf/all/route_localnet';
const HEAD = 'apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n';

const CONFIG = `${HEAD}hostnameOverride: of-the-file
clusterCIDR: 10.244.0.0/16
mode: iptables
nodePortAddresses: [primary]
iptables: {masqueradeBit: 15, minSyncPeriod: 10ms}
metricsBindAddress: 127.0.0.1:10300
featureGates: {ComponentStatusz: false}
oomScoreAdj: 321
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 2h, tcpCloseWaitTimeout: 0s, tcpBeLiberal: true, udpTimeout: 41s}
portwide: {iptables: {variant: nft}, configRestartJitter: 0s}
colour: blue
`;

describe('configuration of an agent', () => {
  let lab: Lab;
  let directory: string;
  let manifests: string;
  let agents: ResultPromise[] = [];
  const at = (name: string) => join(directory, name);

  before(async () => {
    lab = await createLab({ pods: 0, remotePods: 0 });
  });
  after(async () => lab?.destroy());
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-e2e-config-'));
    manifests = at('manifests');
    mkdirSync(manifests);
    const objects = [
      nodeManifest([lab.node.ipv4, lab.node.ipv6]),
      serviceManifest('web', { spec: { clusterIPs: ['10.96.0.10'], ports: [{ port: 80 }] } }),
    ];
    const list = { apiVersion: 'v1', kind: 'List', items: objects };
    writeFileSync(join(manifests, 'objects.json'), JSON.stringify(list));
  });
  afterEach(async () => {
    for (const agent of agents) {
      agent.kill('SIGKILL');
      await agent.catch(() => {});
    }
    agents = [];
    await removeRules(lab.node);
    rmSync(directory, { recursive: true, force: true });
  });

  /** Starts an agent on the node; its log grows continuously. */
  const start = (...args: string[]) => startWith({}, ...args);
  /** With additional environment variables. */
  const startWith = (env: Readonly<Record<string, string>>, ...args: string[]) =>
    launch(PORTWIDE, ['run', `--manifests=${manifests}`, ...args], env);
  const launch = (program: string, args: readonly string[], env = {}) => {
    const child = lab.node.spawn(program, args, { env });
    agents.push(child);
    const log: LogLine[] = [];
    let rest = '';
    child.stdout?.setEncoding('utf8').on('data', (chunk: string) => {
      const lines = (rest + chunk).split('\n');
      rest = lines.pop() ?? '';
      for (const line of lines) log.push(JSON.parse(line) as LogLine);
    });
    const logged = (message: string) => log.filter(({ msg }) => msg === message);
    const serves = () =>
      waitFor('it serves both families', () => logged('serving').length === 2, START_MS);
    /** Exit status; undefined if killed by a signal. */
    const ended = async () => {
      const { exitCode } = await child.catch((error: { exitCode?: number }) => error);
      return exitCode;
    };
    return { child, log, logged, serves, ended };
  };
  const run = (...args: string[]): Promise<ExecResult> =>
    lab.node.exec(PORTWIDE, args, { reject: false });
  const sysctl = async (name: string) => {
    const { stdout } = await lab.node.exec('cat', [`/proc/sys/net/${name}`]);
    return stdout;
  };
  const closeLocalnet = () => lab.node.exec('sh', ['-c', `echo 0 > ${ROUTE_LOCALNET}`]);
  const rules = () => iptablesRules(lab.node, 'nft', 4, 'nat');
  const linesOf = (result: ExecResult) =>
    result.stdout
      .split('\n')
      .filter(Boolean)
      .map((line) => JSON.parse(line) as LogLine);

  /** A directory like a ConfigMap mount, in which a new version replaces the old one atomically. */
  const mount = (version: string, content: string) => {
    mkdirSync(at(`..${version}`));
    writeFileSync(at(`..${version}/config.conf`), content);
    symlinkSync(`..${version}`, at('..data_tmp'));
    renameSync(at('..data_tmp'), at('..data'));
    if (version === '1') symlinkSync('..data/config.conf', at('config.conf'));
  };

  it('reads a file and flags, and restarts when the file changes', async () => {
    mount('1', CONFIG);
    const agent = start(
      `--config=${at('config.conf')}`,
      '--hostname-override=node',
      '-v=3',
      '--proxy-mode=ipvs',
      '--iptables-masquerade-bit=20',
      '--oom-score-adj=7',
    );
    await agent.serves();

    const [starting] = agent.logged('starting');
    assert.deepEqual([starting?.node, starting?.mode], ['node', 'iptables']);
    assert.equal(agent.logged('synced').length > 0, true, '-v counts');
    const warned = agent.log.filter(({ setting }) => setting !== undefined);
    assert.deepEqual(
      warned.map(({ level, setting, msg }) => [level, setting, msg]),
      [
        [
          40,
          '--proxy-mode, --iptables-masquerade-bit, --oom-score-adj',
          'flags ignored because --config is set',
        ],
        [40, `${at('config.conf')}: colour`, 'unknown field; ignored'],
      ],
    );
    const before = await rules();
    assert.match(before, /-A KUBE-MARK-MASQ .*0x8000/);
    assert.equal(await sysctl('netfilter/nf_conntrack_tcp_timeout_established'), '7200');
    assert.equal(await sysctl('netfilter/nf_conntrack_tcp_be_liberal'), '1');
    assert.equal(await sysctl('netfilter/nf_conntrack_udp_timeout'), '41');
    assert.equal(readFileSync(`/proc/${agent.child.pid}/oom_score_adj`, 'utf8'), '321\n');
    const page = async (path: string) => {
      const answer = await lab.node.httpGet(`http://127.0.0.1:10300${path}`);
      return 'error' in answer ? assert.fail(answer.error) : answer;
    };
    const scrape = async () => new Scrape((await page('/metrics')).body);
    const isOn = async (name: string) =>
      (await scrape()).value('kubernetes_feature_enabled', { name, stage: 'BETA' });
    assert.equal(await isOn('ComponentFlagz'), 1);
    assert.match((await page('/flagz')).body, /^hostname-override=node$/m);
    assert.equal(await isOn('ComponentStatusz'), 0);
    assert.equal((await page('/statusz')).code, 404, 'its feature gate is off');

    mount('2', `${CONFIG}bindAddress: nowhere\n`);
    const refused = () => agent.logged('ignoring an invalid change of the configuration file');
    await waitFor('the error is logged', () => refused().length > 0, START_MS);
    const [logged] = refused();
    assert.equal(logged?.level, 50);
    assert.match(String(logged?.reason), /config\.conf: bindAddress: .*"nowhere"/);
    assert.equal(agent.child.nodeChildProcess.exitCode, null, 'it continues');
    const counted = { result: 'unusable' };
    assert.equal((await scrape()).value('portwide_config_changes_total', counted), 1);

    mount('3', `${CONFIG}# the same, but for this\n`);
    assert.equal(await agent.ended(), 75);
    assert.equal(refused().length, 1);
    const last = agent.log.at(-1);
    assert.deepEqual(
      [last?.level, last?.msg],
      [50, 'configuration file changed; exiting for a restart'],
    );
    assert.equal(await rules(), before, 'the rules remain');
  });

  it('rejects a missing kubeconfig or manifest directory before it changes anything', async () => {
    const name = 'netfilter/nf_conntrack_udp_timeout';
    await lab.node.exec('sh', ['-c', `echo 44 > /proc/sys/net/${name}`]);
    writeFileSync(
      at('f'),
      CONFIG.replace('hostname', 'clientConnection: {kubeconfig: /no/such}\nhostname'),
    );
    for (const [flags, expected] of [
      [['--kubeconfig=/no/such'], 'kubeconfig "/no/such" cannot be read: ENOENT'],
      [[`--config=${at('f')}`], 'kubeconfig "/no/such" cannot be read: ENOENT'],
      [['--manifests=/no/such'], 'manifest directory "/no/such" cannot be read: ENOENT'],
    ] as const) {
      const { exitCode, stderr } = await run('run', '--conntrack-udp-timeout=41s', ...flags);
      assert.equal(exitCode, 1);
      assert.ok(stderr.startsWith(`portwide: ${expected}`), stderr);
      assert.equal(await sysctl(name), '44');
      assert.doesNotMatch(await rules(), /KUBE-/);
    }
  });

  it('writes the effective configuration with --write-config-to, which reads back equal', async () => {
    const flags = ['--proxy-mode=ipvs', '--masquerade-all', '--cluster-cidr=10.244.0.0/16', '-v=2'];
    const first = await run('run', ...flags, `--write-config-to=${at('a')}`);
    assert.equal(first.exitCode, 0, first.stderr);
    assert.deepEqual(
      linesOf(first).map(({ msg }) => msg),
      ['wrote the configuration file'],
    );
    const written = parse(readFileSync(at('a'), 'utf8')) as Record<string, unknown>;
    assert.deepEqual([written.mode, written.clusterCIDR], ['ipvs', '10.244.0.0/16']);

    const unnamed = await run('run', `--write-config-to=${at('c')}`);
    assert.equal(unnamed.exitCode, 0, unnamed.stderr);
    assert.equal((parse(readFileSync(at('c'), 'utf8')) as { mode: unknown }).mode, '');

    const second = await run('run', `--config=${at('a')}`, `--write-config-to=${at('b')}`);
    assert.equal(second.exitCode, 0, second.stderr);
    assert.equal(readFileSync(at('b'), 'utf8'), readFileSync(at('a'), 'utf8'));
    assert.doesNotMatch(await rules(), /KUBE-/);

    const nowhere = await run('run', '--write-config-to=/no/such/directory/a');
    assert.equal(nowhere.exitCode, 1);
    assert.match(nowhere.stderr, /^portwide: --write-config-to: ENOENT/);
  });

  describe('default mode', () => {
    /** The kernel refuses what agents ask it about nf_tables. */
    const withoutNftables = async (use: () => Promise<void>) => {
      const held = await holdTable(lab.node, 'ip', 'portwide-probe');
      try {
        await use();
      } finally {
        await held.release();
      }
    };
    const ask = async (path: string) => {
      const url = JSON.stringify(`http://127.0.0.1:10249${path}`);
      const script = `fetch(${url}).then((r) => r.text()).then((text) => console.log(text))`;
      return (await lab.node.exec(process.execPath, ['-e', script])).stdout;
    };

    it('selects mode nftables if the kernel supports it', async () => {
      writeFileSync(at('f'), `${HEAD}mode: ""\n`);
      const agent = start(`--config=${at('f')}`);
      await agent.serves();
      const [line] = agent.log;
      assert.deepEqual(
        [line?.level, line?.mode, line?.msg],
        [30, 'nftables', 'selected the proxy mode, because --proxy-mode is unset'],
      );
      assert.equal(agent.logged('starting')[0]?.mode, 'nftables');
      assert.equal(await ask('/proxyMode'), 'nftables');
      const { 'kubeproxy.config.k8s.io': config } = JSON.parse(await ask('/configz'));
      assert.equal(config.mode, 'nftables');
      assert.doesNotMatch(await rules(), /KUBE-/);
    });

    it('names what the kernel and the image lack, if mode nftables is impossible and iptables is not installed', () =>
      withoutNftables(async () => {
        // iptables is in /usr/sbin.
        const args = ['PATH=/usr/bin:/bin', PORTWIDE, 'run', `--manifests=${manifests}`];
        const { exitCode, stderr } = await lab.node.exec('env', args, { reject: false });
        assert.equal(exitCode, 1);
        assert.equal(
          stderr.trim(),
          'portwide: nftables is not supported: the kernel refuses table portwide-probe: EPERM; ' +
            'iptables-nft is not installed: modes iptables and ipvs need it, in a pod an image with it',
        );
      }));

    it('selects mode iptables otherwise, and logs the reason', () =>
      withoutNftables(async () => {
        const agent = start('--iptables-variant=nft');
        await agent.serves();
        const [line] = agent.log;
        assert.deepEqual(
          [line?.level, line?.mode, line?.reason, line?.msg],
          [
            30,
            'iptables',
            'nftables is not supported: the kernel refuses table portwide-probe: EPERM',
            'selected the proxy mode, because --proxy-mode is unset',
          ],
        );
        assert.equal(await ask('/proxyMode'), 'iptables');
        assert.match(await rules(), /KUBE-SERVICES/);
      }));

    it('does not replace a configured mode, and leaves out the IP family that does not work', () =>
      withoutNftables(async () => {
        const agent = start('--proxy-mode=nftables');
        const line = await waitFor('the warning', async () =>
          agent.logged('nftables is not supported for this IP family; not serving it').at(0),
        );
        assert.deepEqual(
          [line.level, line.family, line.reason],
          [40, 'IPv4', 'the kernel refuses table portwide-probe: EPERM'],
        );
        assert.doesNotMatch(await rules(), /KUBE-/);
      }));
  });

  it('sets sysctls with --init-only, and no rules except the protection of one sysctl', async () => {
    await closeLocalnet();
    // Rules of other programs and of the kubelet remain.
    await lab.node.exec('iptables-nft', ['-N', 'KUBE-FIREWALL']);
    await lab.node.exec('iptables-nft', ['-A', 'KUBE-FIREWALL', '-s', '192.0.2.1', '-j', 'DROP']);
    const flags = ['--init-only', '--conntrack-udp-timeout=43s'];
    // The kernel has nf_tables, so the default mode does not serve node ports on 127.0.0.1.
    const unnamed = await run('run', ...flags);
    assert.deepEqual(linesOf(unnamed).at(-1)?.mode, 'nftables');
    assert.equal(await sysctl('netfilter/nf_conntrack_udp_timeout'), '43');
    assert.equal(await sysctl('ipv4/conf/all/route_localnet'), '0');
    for (let times = 0; times < 2; times++) {
      const { exitCode, stdout } = await run('run', '--proxy-mode=iptables', ...flags);
      assert.equal(exitCode, 0, stdout);
    }
    assert.equal(await sysctl('ipv4/conf/all/route_localnet'), '1');
    assert.doesNotMatch(await rules(), /KUBE-/);
    const filter = await iptablesRules(lab.node, 'nft', 4, 'filter');
    assert.deepEqual(
      filter.split('\n').filter((line) => /^-A .*KUBE-/.test(line)),
      [
        '-A INPUT -j KUBE-FIREWALL',
        '-A OUTPUT -j KUBE-FIREWALL',
        '-A KUBE-FIREWALL -s 192.0.2.1/32 -j DROP',
        '-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP',
      ],
    );
  });

  it('leaves route_localnet unset with --init-only if it cannot be protected', async () => {
    await closeLocalnet();
    writeFileSync(at('iptables-nft-restore'), '#!/bin/sh\nexit 1\n', { mode: 0o755 });
    const { exitCode, stdout } = await lab.node.exec('env', [
      `PATH=${directory}:${process.env.PATH}`,
      PORTWIDE,
      'run',
      '--init-only',
      '--proxy-mode=iptables',
    ]);
    assert.equal(exitCode, 0, stdout);
    assert.equal(await sysctl('ipv4/conf/all/route_localnet'), '0');
    assert.match(stdout, /cannot write the rules that block other hosts from 127.0.0.0\/8/);
  });

  it('serves in mode iptables when node ports answer on 127.0.0.1, however long the sysctl takes', async () => {
    // A write to a FIFO waits for its reader.
    const sysctlFile = at('route_localnet');
    await lab.node.exec('mkfifo', [sysctlFile]);
    const mounted = `mount --bind ${sysctlFile} ${ROUTE_LOCALNET} && exec "$0" "$@"`;
    const args = ['run', `--manifests=${manifests}`, '--hostname-override=node'];
    const mode = ['--proxy-mode=iptables', '--iptables-variant=nft'];
    const command = ['--mount', 'sh', '-c', mounted, PORTWIDE, ...args, ...mode];
    const { logged, serves } = launch('unshare', command);
    await lab.node.exec('sh', ['-c', `echo 0 > ${sysctlFile}`]);
    const served = () => logged('serving').map(({ family }) => family);
    await waitFor(
      'all but the sysctl is in force',
      // Table mangle is written last.
      async () =>
        served().includes('IPv6') &&
        /KUBE-PROXY-CANARY/.test(await iptablesRules(lab.node, 'nft', 4, 'mangle')),
      START_MS,
    );
    assert.deepEqual(served(), ['IPv6']);
    const filter = await iptablesRules(lab.node, 'nft', 4, 'filter');
    assert.match(filter, /-A KUBE-FIREWALL ! -s 127/, 'it blocks other hosts first');
    assert.equal((await lab.node.exec('cat', [sysctlFile])).stdout, '1');
    await serves();
  });

  it('warns of node settings that break Services', async () => {
    await lab.node.exec('iptables-legacy', ['-t', 'nat', '-N', 'KUBE-SERVICES']);
    // Only if the kernel has these sysctls, which are namespaced.
    const listing = await lab.node.exec('ls', ['/proc/sys/net/bridge'], { reject: false });
    const all = ['bridge-nf-call-iptables', 'bridge-nf-call-ip6tables'];
    const there = all.filter((name) => listing.stdout.split('\n').includes(name));
    for (const name of there) {
      await lab.node.exec('sh', ['-c', `echo 0 > /proc/sys/net/bridge/${name}`]);
    }
    const agent = start('--proxy-mode=iptables', '--iptables-variant=nft');
    await agent.serves();
    const warned = agent.log.filter(({ level }) => level === 40);
    assert.deepEqual(
      warned.filter(({ other }) => other !== undefined).map(({ using, other }) => [using, other]),
      [['nft', 'legacy']],
    );
    assert.deepEqual(
      warned.flatMap(({ sysctl }) => (/bridge/.test(String(sysctl)) ? [sysctl] : [])),
      there.map((name) => `net.bridge.${name}`),
    );
  });

  it('warns of the settings that kube-proxy warns of, but not of a missing Node with manifests', async () => {
    const flags = ['--proxy-mode=iptables', '--iptables-variant=nft', '--hostname-override=other'];
    const agent = start(...flags);
    await agent.serves();
    const warned = agent.log.filter(({ level }) => level === 40);
    assert.deepEqual(
      warned.flatMap(({ setting, msg }) => (setting === undefined ? [] : [[setting, msg]])),
      [
        [
          '--nodeport-addresses (nodePortAddresses)',
          'NodePort Services accept connections on all local addresses',
        ],
        ['--cluster-cidr (clusterCIDR)', 'connections to cluster IPs are not masqueraded'],
      ],
    );
    const logged = agent.log.filter(({ msg }) => msg === 'Node object not found');
    assert.deepEqual(
      logged.map(({ level, node }) => [level, node]),
      [[30, 'other']],
    );
  });

  it('removes all rules and state with --cleanup', async () => {
    const agent = start('--proxy-mode=iptables', '--iptables-variant=nft');
    await agent.serves();
    agent.child.kill('SIGTERM');
    assert.equal(await agent.ended(), 0);
    assert.match(await rules(), /KUBE-SERVICES/);
    const { exitCode, stderr } = await run('run', '--cleanup');
    assert.doesNotMatch(await rules(), /KUBE-/);
    // Tools and modules that this machine lacks are reported and counted.
    assert.equal(exitCode, stderr === '' ? 0 : 1);
  });

  it('stops cleanly on SIGTERM while a command runs', async () => {
    const [started, slow] = [at('begun'), at('iptables-nft-save')];
    writeFileSync(slow, `#!/bin/sh\ntouch ${started}\nexec sleep 60\n`, { mode: 0o755 });
    // Of kube-proxy, to be removed.
    await lab.node.exec('iptables-nft', ['-t', 'nat', '-N', 'KUBE-SERVICES']);
    const env = { PATH: `${directory}:${process.env.PATH}` };
    const agent = startWith(env, '--proxy-mode=nftables');
    await agent.serves();
    await waitFor('a command runs', () => existsSync(started), START_MS);
    agent.child.kill('SIGTERM');
    assert.equal(await agent.ended(), 0);
    assert.equal(agent.logged('stopping; rules remain in place').length, 1);
    await lab.node.exec('nft', ['delete', 'table', 'ip', 'nat']);
  });

  it('stops cleanly on SIGTERM before it serves', async () => {
    const [started, go] = [at('begun'), at('go')];
    const held = `touch ${started}\nuntil [ -e ${go} ]; do sleep 0.05; done`;
    // The agent looks for the variant in use.
    const command = 'iptables-nft-save';
    const script = `#!/bin/sh\n${held}\nPATH=${process.env.PATH} exec ${command} "$@"\n`;
    writeFileSync(at(command), script, { mode: 0o755 });
    const env = { PATH: `${directory}:${process.env.PATH}` };
    const agent = startWith(env, '--proxy-mode=iptables');
    await waitFor('a command runs', () => existsSync(started), START_MS);
    agent.child.kill('SIGTERM');
    writeFileSync(go, '');
    assert.equal(await agent.ended(), 0);
    assert.equal(agent.logged('serving').length, 0);
    assert.equal(agent.logged('stopping; rules remain in place').length, 1);
  });

  it('serves although the metrics port is in use, unless a flag forbids it', async () => {
    const script = `require('net').createServer().listen(10249, '127.0.0.1', () => console.log('up'))`;
    const taker = lab.node.spawn(process.execPath, ['-e', script]);
    let output = '';
    taker.stdout?.on('data', (chunk) => {
      output += String(chunk);
    });
    await waitFor('the port is in use', () => output.includes('up'), START_MS);

    const strict = start('--bind-address-hard-fail');
    assert.equal(await strict.ended(), 1);

    const agent = start();
    await agent.serves();
    assert.equal(agent.logged('cannot listen; retrying').length, 1);
    agent.child.kill('SIGTERM');
    assert.equal(await agent.ended(), 0);

    const without = start('--metrics-port=0');
    await without.serves();
    assert.equal(without.logged('cannot listen; retrying').length, 0);
    without.child.kill('SIGTERM');
    assert.equal(await without.ended(), 0);
    taker.kill();
  });

  it('accepts the configuration file in render and validate', async () => {
    writeFileSync(at('f'), CONFIG.replace('ComponentStatusz: false', 'AllPorts: false'));
    const { stdout, stderr, exitCode } = await run(
      'render',
      `--manifests=${manifests}`,
      `--config=${at('f')}`,
      '--iptables-masquerade-bit=20',
    );
    assert.equal(exitCode, 0, stderr);
    assert.match(stdout, /-A KUBE-MARK-MASQ .*0x8000/);
    assert.deepEqual(stderr.split('\n'), [
      'warning: --iptables-masquerade-bit: flags ignored because --config is set',
      `warning: ${at('f')}: colour: unknown field; ignored`,
    ]);
    const all = serviceManifest('all', {
      annotations: { 'portwide.dev/ports': 'all' },
      spec: { clusterIPs: ['10.96.0.11'] },
    });
    writeFileSync(join(manifests, 'all.json'), JSON.stringify(all));
    const validate = ['validate', `--manifests=${manifests}`];
    assert.equal((await run(...validate)).exitCode, 0);
    assert.equal((await run(...validate, `--config=${at('f')}`)).exitCode, 1);
  });

  it('rejects a configuration file with a conflicting flag in cleanup', async () => {
    writeFileSync(at('f'), CONFIG);
    const args = ['cleanup', `--config=${at('f')}`, '--ipvs-exclude-cidrs=10.0.0.0/8'];
    const { exitCode, stderr } = await run(...args);
    assert.equal(exitCode, 1);
    assert.equal(stderr, 'portwide: --config and --ipvs-exclude-cidrs are mutually exclusive');
  });
});
