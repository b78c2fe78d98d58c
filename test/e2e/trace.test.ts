import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TraceAnswer } from '../../status/api/trace.ts';
import { createLab, type Host, type Lab, waitFor } from '../lab/lab.ts';
import { PORTWIDE } from '../portwide.ts';
import { MODES, STOCK_KERNEL } from '../uml/kernels.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { type Manifest, serviceManifest, sliceManifest } from './manifests.ts';
import { networkPolicy, policyPods } from './policy-manifests.ts';
import { only, summary, summaryOf, TraceApi } from './trace-api.ts';
import { compareWithPackets, manyServices } from './trace-cases.ts';

/** Of a live trace: long enough for a connection, which takes longer in an emulated kernel. */
const SECONDS = STOCK_KERNEL === undefined ? 1 : 5;
const TABLE = 'portwide-trace';
const VIP = '10.96.0.60';
const VIP6 = 'fd00:10:96::6:60';
const EMPTY_VIP = '10.96.0.61';
const ALL_PORTS_VIP = '10.96.0.62';
const PORTS = [{ name: 'http', port: 8080, protocol: 'TCP' }];

for (const mode of MODES) {
  describe(`trace, mode ${mode}`, () => {
    let lab: Lab;
    let agent: Agent;
    let api: TraceApi;
    let directory: string;

    const flags = () => [
      ...AGENT_FLAGS.filter((flag) => !flag.startsWith('--status-socket')),
      `--proxy-mode=${mode}`,
      `--status-socket=${join(directory, 'agent.sock')}`,
    ];

    const objects = (): Manifest[] => [
      serviceManifest('web', { spec: { clusterIPs: [VIP], ports: [{ name: 'http', port: 80 }] } }),
      sliceManifest('web', 4, lab.pods.slice(0, 1), { ports: PORTS }),
      serviceManifest('six', { spec: { clusterIPs: [VIP6], ports: [{ name: 'http', port: 80 }] } }),
      sliceManifest('six', 6, lab.pods.slice(0, 1), { ports: PORTS }),
      serviceManifest('empty', { spec: { clusterIPs: [EMPTY_VIP], ports: [{ port: 80 }] } }),
      serviceManifest('media', {
        annotations: { 'portwide.dev/ports': 'all' },
        spec: { clusterIPs: [ALL_PORTS_VIP], ports: [{ port: 1 }] },
      }),
      sliceManifest('media', 4, lab.remotePods.slice(0, 1), { ports: [] }),
    ];

    const tables = async () => (await lab.node.exec('nft', ['list', 'tables'])).stdout;
    const isArmed = async () => (await tables()).includes(TABLE);

    before(async () => {
      directory = mkdtempSync(join(tmpdir(), 'portwide-trace-'));
      lab = await createLab({ pods: 2, remotePods: 1 });
      await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
      agent = new Agent(lab, { syncs: 2 });
      api = new TraceApi(join(directory, 'agent.sock'));
      await agent.start(flags());
      await agent.apply(objects());
    });

    after(async () => {
      await agent?.destroy();
      await lab?.destroy();
      rmSync(directory, { recursive: true, force: true });
    });

    /** Removes the table of another program after the test. */
    const withRules = async (rules: string, run: () => Promise<void>) => {
      await lab.node.exec('nft', ['-f', '-'], { input: rules });
      try {
        await run();
      } finally {
        await lab.node.exec('nft', ['delete', 'table', 'inet', 'firewall']);
      }
    };

    it('TCP to a VIP: the kernel does what is computed', async () => {
      for (const [host, masqueraded] of [
        [lab.client, true],
        [lab.pods[1] as Host, false],
      ] as const) {
        const query = { from: host.ipv4, to: VIP, port: 80 };
        const [computed] = await api.trace(query);
        assert.deepEqual(computed?.endpoints, [
          {
            address: lab.pods[0]?.ipv4,
            port: 8080,
            local: true,
            masqueraded,
            policy: null,
            foreignRules: 'pass',
          },
        ]);
        const live = await api.live({ ...query, seconds: SECONDS });
        const outcome = await host.tcp(VIP, 80);
        assert.equal(outcome.outcome, 'answered');
        const { paths, differences, ended, lost } = await summary(live);
        assert.deepEqual([differences, ended, lost], [[], 'time', 0]);
        const path = only(paths);
        assert.equal(path.result, 'pod');
        assert.equal(path.translatedTo, `${lab.pods[0]?.ipv4}:8080`);
        assert.equal(path.masqueradedAs !== null, masqueraded);
        // IPVS takes packets at hook input and sends them at hook output, by no rule.
        assert.deepEqual(path.passed, [
          'prerouting',
          mode === 'ipvs' ? 'output' : 'forward',
          'postrouting',
        ]);
        if (mode === 'ipvs') {
          assert.equal(path.translatedBy, null);
          continue;
        }
        assert.equal(path.translatedBy?.owner, 'portwide');
        const text =
          mode === 'nftables' ? /^dnat ip to/ : /-j DNAT --to-destination 10.244.1.11:8080$/;
        assert.match(path.translatedBy?.text ?? '', text);
      }
      assert.equal(await isArmed(), false);
    });

    it('TCP over IPv6, with the Service as destination', async () => {
      const live = await api.live({ from: lab.client.ipv6, to: 'default/six', seconds: SECONDS });
      assert.equal((await lab.client.tcp(VIP6, 80)).outcome, 'answered');
      const { paths, differences } = await summary(live);
      assert.deepEqual(differences, []);
      const { translatedTo, masqueradedAs, translatedBy } = only(paths);
      assert.equal(translatedTo, `[${lab.pods[0]?.ipv6}]:8080`);
      assert.notEqual(masqueradedAs, null);
      assert.equal(translatedBy?.owner, mode === 'ipvs' ? undefined : 'portwide');
    });

    it('UDP to an all-ports VIP, from a client and from the node', async () => {
      const to = { to: ALL_PORTS_VIP, port: 20_104, protocol: 'udp' };
      for (const [host, from] of [
        [lab.client, lab.client.ipv4],
        [lab.node, 'node'],
      ] as const) {
        const live = await api.live({ ...to, from, seconds: SECONDS });
        const outcome = await host.udp(ALL_PORTS_VIP, 20_104);
        assert.equal(outcome.outcome, 'answered');
        const { paths, differences } = await summary(live);
        assert.deepEqual(differences, []);
        assert.equal(only(paths).translatedTo, `${lab.remotePods[0]?.ipv4}:20104`);
      }
    });

    for (const family of [4, 6] as const) {
      it(`IPv${family}: what is computed is what packets get`, async () => {
        const { targets, manifests } = manyServices(lab, family);
        await agent.apply([...objects(), ...manifests]);
        const results = await compareWithPackets(lab, family, targets, (query) => api.trace(query));
        for (const verdict of ['translated', 'rejected', 'dropped'] as const) {
          assert.ok(results.has(verdict), `no packet is ${verdict}`);
        }
        await agent.apply(objects());
      });
    }

    it('names the rule that rejects packets to a Service without endpoints', async () => {
      const query = { from: lab.client.ipv4, to: EMPTY_VIP, port: 80 };
      const [computed] = await api.trace(query);
      assert.equal(computed?.verdict, 'rejected');
      const live = await api.live({ ...query, seconds: SECONDS });
      const outcome = await lab.client.tcp(EMPTY_VIP, 80);
      assert.deepEqual(outcome, { outcome: 'refused', by: 'icmp' });
      const { paths, differences } = await summary(live);
      assert.deepEqual(differences, []);
      const { result, decidedBy, lostInIpvs } = only(paths);
      // IPVS itself answers with an ICMP error, so no rule rejects the packet.
      assert.deepEqual(
        [result, lostInIpvs],
        mode === 'ipvs' ? ['lost', true] : ['rejected', false],
      );
      if (mode === 'ipvs') return;
      assert.equal(decidedBy?.owner, 'portwide');
      assert.match(decidedBy?.text ?? '', /REJECT|^reject$/);
    });

    it('says that a packet is lost before it reaches the Service, also if it should be rejected', async () => {
      const query = { from: lab.client.ipv4, to: EMPTY_VIP, port: 80 };
      const rpFilter = 'net.ipv4.conf.all.rp_filter';
      const { stdout: before } = await lab.node.exec('sysctl', ['-n', rpFilter]);
      const route = ['blackhole', `${lab.client.ipv4}/32`];
      try {
        await lab.node.exec('sysctl', ['-w', `${rpFilter}=1`]);
        await lab.node.exec('ip', ['route', 'add', ...route]);
        const live = await api.live({ ...query, seconds: SECONDS });
        await lab.client.tcp(EMPTY_VIP, 80, { timeoutMs: 500 });
        const { paths, differences } = await summary(live);
        const { result, passed, lostInIpvs } = only(paths);
        assert.deepEqual([result, passed, lostInIpvs], ['lost', ['prerouting'], false]);
        assert.match(
          differences.join(),
          /^packets? [\d, :]+was lost after hook prerouting, .*rp_filter; computed: it should be rejected$/,
        );
      } finally {
        await lab.node.exec('ip', ['route', 'delete', ...route], { reject: false });
        await lab.node.exec('sysctl', ['-w', `${rpFilter}=${before.trim()}`]);
      }
    });

    for (const from of ['the client', 'external'] as const)
      it(`names table, chain and rule of another program that drops the packet, as is computed: from ${from}`, async () => {
        // IPVS sends packets to hook output, not forward.
        const rules = `table inet firewall {
        chain guard { type filter hook ${mode === 'ipvs' ? 'output' : 'forward'} priority 5; tcp dport 8081 accept; tcp dport 8080 drop; }
      }`;
        const source = from === 'external' ? from : lab.client.ipv4;
        const query = { from: source, to: VIP, port: 80, seconds: SECONDS };
        const traced = async () => {
          const live = await api.live(query);
          await lab.client.tcp(VIP, 80, { timeoutMs: 500 });
          return await summary(live);
        };
        const isDropped =
          /table inet firewall, base chain guard .*, rule 2 \(handle \d+\) drops the packet/;
        const isComputed = async () => {
          const [computed] = await api.trace({ from: query.from, to: VIP, port: 80 });
          return computed?.steps.some(({ decision }) => isDropped.test(decision)) === true;
        };
        await withRules(rules, async () => {
          await waitFor('the agent has read the rules', isComputed);
          const { paths, differences } = await traced();
          const { result, decidedBy, translatedTo } = only(paths);
          assert.deepEqual([result, translatedTo], ['dropped', `${lab.pods[0]?.ipv4}:8080`]);
          const { owner, table, chain, rule, text } = decidedBy ?? {};
          assert.deepEqual(
            [owner, table, chain, rule, text],
            ['other', 'inet firewall', 'guard', 2, 'tcp dport 8080 drop'],
          );
          assert.deepEqual(differences, []);
        });
      });

    it('says that another program drops the packet by a rule that it wrote during the trace', async () => {
      const live = await api.live({ from: lab.client.ipv4, to: VIP, port: 80, seconds: SECONDS });
      const rules = `table inet firewall {
        chain guard { type filter hook prerouting priority -120; ip daddr ${VIP} drop; }
      }`;
      await withRules(rules, async () => {
        await lab.client.tcp(VIP, 80, { timeoutMs: 500 });
        const { differences } = await summary(live);
        assert.match(
          differences.join(),
          /^packets? [\d, :]+was dropped by rule 1 of chain guard in table inet firewall .*, which another program wrote; computed: it should reach an endpoint$/,
        );
      });
    });

    it('names the rule of another program that masquerades the packet', async () => {
      const rules = `table inet firewall {
        chain post { type nat hook postrouting priority 90; oifname "pw*" masquerade; }
      }`;
      await withRules(rules, async () => {
        const pod = lab.pods[1] as Host;
        const live = await api.live({ from: pod.ipv4, to: VIP, port: 80, seconds: SECONDS });
        assert.equal((await pod.tcp(VIP, 80)).outcome, 'answered');
        const { paths, differences } = await summary(live);
        assert.equal(only(paths).masqueradedBy?.table, 'inet firewall');
        assert.match(
          differences.join(),
          /masqueraded as .* in table inet firewall .*another program/,
        );
      });
    });

    it('traces only matching packets, and none that another program traces', async () => {
      const rules = `table inet firewall {
        chain tracer { type filter hook prerouting priority -500; meta nftrace set 1; }
      }`;
      await withRules(rules, async () => {
        const live = await api.live({ from: lab.client.ipv4, to: VIP, port: 80, seconds: SECONDS });
        const other = lab.client.addresses[4][1] ?? '';
        const answered = await lab.client.tcp(VIP, 80, { localAddress: other });
        assert.equal(answered.outcome, 'answered');
        await lab.client.tcp(VIP, 81, { timeoutMs: 200 });
        const { paths, notes, ended } = await summary(live);
        assert.deepEqual([paths, ended], [[], 'time']);
        // The first note says that IPVS has no rules.
        assert.deepEqual(notes.slice(mode === 'ipvs' ? 1 : 0), [
          `no packet matched in ${SECONDS} s`,
        ]);
        assert.equal(live.lines.length, 2, 'armed and summary');
      });
    });

    it('ends after 20 packets', async () => {
      const live = await api.live({ from: lab.client.ipv4, to: VIP, port: 80 });
      await waitFor('enough packets are sent', async () => {
        await lab.client.burst(VIP, 80, 10);
        return summaryOf(live) !== undefined;
      });
      const { paths, ended } = await summary(live);
      assert.deepEqual([paths.length, ended], [20, 'packets']);
      assert.equal(await isArmed(), false);
    });

    it('runs once at a time, and is disarmed when the client is gone', async () => {
      const query = { from: 'external', to: VIP, port: 80 };
      const live = await api.live(query);
      assert.equal(await isArmed(), true);
      const { status, body } = await api.get('/api/v1/trace/live', query);
      assert.equal(status, 409, JSON.stringify(body));
      live.close();
      await waitFor('the trace is disarmed', async () => !(await isArmed()));
      const next = await api.live({ ...query, seconds: SECONDS });
      assert.equal((await summary(next)).ended, 'time');
    });

    it('another program cannot delete the table of the trace', async () => {
      const live = await api.live({ from: 'external', to: VIP, port: 80 });
      const command = ['delete', 'table', 'ip', TABLE];
      const { exitCode } = await lab.node.exec('nft', command, { reject: false });
      assert.notEqual(exitCode, 0);
      assert.equal(await isArmed(), true);
      live.close();
      await waitFor('the trace is disarmed', async () => !(await isArmed()));
    });

    it('a stopped agent: the kernel traces nothing after the time', async () => {
      const monitor = lab.node.spawn('nft', ['monitor', 'trace']);
      let seen = '';
      monitor.stdout?.on('data', (chunk) => {
        seen += String(chunk);
      });
      monitor.catch(() => {});
      const live = await api.live({ from: lab.client.ipv4, to: VIP, port: 80, seconds: 2 });
      const pid = agent.pid ?? 0;
      assert.ok(pid > 0);
      process.kill(pid, 'SIGSTOP');
      try {
        await waitFor('the trace shows a packet', async () => {
          await lab.client.tcp(VIP, 80);
          return seen.includes('select-prerouting');
        });
        await waitFor('the element is gone', async () => {
          const set = ['list', 'set', 'ip', TABLE, 'destination'];
          return !(await lab.node.exec('nft', set)).stdout.includes('elements');
        });
        assert.equal(await isArmed(), true, 'the agent is stopped and cannot disarm');
        // The trace of another packet marks the end of the output.
        const marker = `table inet firewall {
          chain tracer { type filter hook prerouting priority -500; ip daddr ${EMPTY_VIP} meta nftrace set 1; }
        }`;
        await withRules(marker, async () => {
          seen = '';
          assert.equal((await lab.client.tcp(VIP, 80)).outcome, 'answered');
          await waitFor('the marker is traced', async () => {
            await lab.client.tcp(EMPTY_VIP, 80);
            return seen.includes('firewall');
          });
          assert.equal(seen.includes('@destination'), false, seen);
        });
      } finally {
        process.kill(pid, 'SIGCONT');
        monitor.kill('SIGKILL');
      }
      assert.equal((await summary(live)).ended, 'time');
      assert.equal(await isArmed(), false);
    });

    it('kill -9 of the agent leaves no table', async () => {
      const live = await api.live({ from: lab.client.ipv4, to: VIP, port: 80 });
      assert.equal(await isArmed(), true);
      await agent.kill();
      await live.ended;
      await waitFor('the table is gone', async () => !(await isArmed()));
      const { stdout } = await lab.node.exec('nft', ['list', 'ruleset']);
      assert.equal(stdout.includes('nftrace'), false);
      await agent.start(flags());
      assert.equal((await lab.client.tcp(VIP, 80)).outcome, 'answered');
    });
  });
}

describe('trace with network policy', () => {
  let lab: Lab;
  let agent: Agent;
  let api: TraceApi;
  let directory: string;
  const policy = (name: string, pod: string, type: 'Ingress' | 'Egress') =>
    networkPolicy(name, { podSelector: { matchLabels: { pod } }, policyTypes: [type] });

  before(async () => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-trace-'));
    lab = await createLab({ pods: 3, remotePods: 1 });
    await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
    agent = new Agent(lab, { syncs: 2 });
    const socket = join(directory, 'agent.sock');
    api = new TraceApi(socket);
    agent.write('policies', [
      ...policyPods(lab),
      policy('no-ingress', 'pod-1', 'Ingress'),
      policy('no-egress', 'pod-3', 'Egress'),
    ]);
    const flags = AGENT_FLAGS.filter((flag) => !flag.startsWith('--status-socket'));
    await agent.start([
      ...flags,
      ...[`--proxy-mode=${MODES[0]}`, '--network-policy', `--status-socket=${socket}`],
    ]);
    await agent.apply(
      ['web', 'open'].flatMap((name, index) => [
        serviceManifest(name, {
          spec: { clusterIPs: [`10.96.0.${60 + index}`], ports: [{ name: 'http', port: 80 }] },
        }),
        sliceManifest(name, 4, lab.pods.slice(index, index + 1), { ports: PORTS }),
      ]),
    );
    const isDenied = async (pod: number, vip: string) =>
      (await lab.pods[pod]?.tcp(vip, 80, { timeoutMs: 200 }))?.outcome === 'timeout';
    await waitFor('ingress is denied', () => isDenied(1, VIP));
    await waitFor('egress is denied', () => isDenied(2, '10.96.0.61'));
  });

  after(async () => {
    await agent?.destroy();
    await lab?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  for (const [direction, from, to, name] of [
    ['ingress', 'pod-2', 'web', 'no-ingress'],
    ['egress', 'pod-3', 'open', 'no-egress'],
  ] as const) {
    it(`${direction}: names the policy that denies, and the kernel agrees`, async () => {
      const query = { from: `default/${from}`, to: `default/${to}` };
      const [computed] = await api.trace(query);
      assert.equal(computed?.verdict, 'denied');
      const step = computed.steps.find((each) => each.step === `${direction}Policy`);
      assert.equal(step?.object, `NetworkPolicy default/${name}`);
      assert.match(step.decision, /deny the connection$/);
      const live = await api.live({ ...query, seconds: SECONDS });
      const pod = lab.pods.find((each) => each.name === from);
      await pod?.tcp(computed.destination, 80, { timeoutMs: 300 });
      const { paths, differences } = await summary(live);
      assert.deepEqual(differences, []);
      const { result, decidedBy } = only(paths);
      assert.deepEqual([result, decidedBy?.owner], ['dropped', 'network policy']);
      assert.match(decidedBy?.purpose ?? '', new RegExp(`policy denies \\(${direction}`));
    });
  }

  it('kill -9 of the command disarms its live trace', async () => {
    const socket = `--status-socket=${join(directory, 'agent.sock')}`;
    const args = ['trace', socket, 'external', VIP, '--port=80', '--live', '--seconds=30'];
    const command = lab.node.spawn(PORTWIDE, args);
    command.catch(() => {});
    const isArmed = async () => {
      const { stdout } = await lab.node.exec('nft', ['list', 'tables']);
      return stdout.includes(TABLE);
    };
    await waitFor('the trace is armed', isArmed);
    command.kill('SIGKILL');
    await waitFor('the trace is disarmed', async () => !(await isArmed()));
  });

  it('portwide trace: exit status and text', async () => {
    const run = (...args: string[]) => {
      const socket = `--status-socket=${join(directory, 'agent.sock')}`;
      return lab.node.exec(PORTWIDE, ['trace', socket, ...args], { reject: false });
    };
    const denied = await run('default/pod-2', 'default/web');
    assert.equal(denied.exitCode, 1, denied.stderr);
    assert.match(
      denied.stdout,
      /^Computed, IPv4: 10.244.1.12 to 10.96.0.60 port 80\/TCP\n {3}1\. Source: /,
    );
    assert.match(denied.stdout, /Ingress policy: .* \[NetworkPolicy default\/no-ingress\]/);
    const open = await run('10.244.1.12', '10.96.0.61', '--port=80', '--live', '--seconds=1');
    assert.equal(open.exitCode, 1, open.stdout + open.stderr);
    assert.match(open.stdout, /note: no packet matched in 1 s$/);
    assert.equal((await run('10.244.1.12', '10.96.0.61', '--port=80')).exitCode, 0);
    const json = await run('10.244.1.12', '10.96.0.61', '--port=80', '-o', 'json');
    const { computed } = JSON.parse(json.stdout) as { computed: TraceAnswer };
    assert.equal(computed.paths[0]?.verdict, 'translated');
    for (const [to, use] of [
      ['default/web:80', 'default/web --port 80'],
      ['[fd00::1]:80', 'fd00::1 --port 80'],
    ] as const) {
      const withPort = await run('node', to);
      assert.equal(withPort.exitCode, 2);
      assert.ok(withPort.stderr.includes(`"${to}" has a port: use ${use}`), withPort.stderr);
    }
    const inNamespace = await run('pod-2', 'web', '-n', 'default');
    assert.deepEqual([inNamespace.exitCode, inNamespace.stdout], [1, denied.stdout]);
    for (const ends of [
      ['10.244.1.12', 'default/none'],
      ['default/none', 'default/web'],
    ]) {
      const unknown = await run(...ends);
      assert.equal(unknown.exitCode, 2);
      assert.match(unknown.stderr, /this agent knows no (Service|pod) default\/none/);
    }
    const unused = await run('10.244.1.12', '10.96.0.99', '--port=80');
    assert.equal(unused.exitCode, 1, unused.stdout);
    const bad = await run('nowhere', '10.96.0.61', '--port=80');
    assert.equal(bad.exitCode, 2);
    assert.match(bad.stderr, /FROM must be an IP address/);
  });
});
