import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Child, startChild } from '../child.ts';
import { createLab, type Host, type Lab, waitFor } from '../lab/lab.ts';
import { addressOf, type ServerFunctions } from '../policy/fqdn/dns-server.ts';
import { PORTWIDE } from '../portwide.ts';
import { AGENT_FLAGS, Agent } from './agent.ts';
import { earlierTable } from './earlier-table.ts';
import { type Manifest, serviceManifest, sliceManifest } from './manifests.ts';
import { adminPolicy, networkPolicy, policyPods } from './policy-manifests.ts';
import { TraceApi } from './trace-api.ts';

const DNS_SERVER = new URL('../policy/fqdn/dns-server.ts', import.meta.url);
const DNS_VIP = '10.96.0.10';
const VIP = '10.96.1.1';
const PORT = 8080;
const NAMED_PORT = 443;
const START_MS = 60_000;
/** Batches of changes, and Services that each of them changes. */
const [BATCHES, SERVICES] = [10, 20] as const;

/** The programs that a process and its children have started, in order. @param trace output of strace. */
function startedPrograms(trace: string): string[] {
  return [...trace.matchAll(/execve\("([^"]+)"/g)].map(([, program = '']) => program);
}

describe('the programs that an agent runs in mode nftables with network policy', () => {
  let lab: Lab;
  let agent: Agent;
  let server: Child<ServerFunctions>;
  let directory: string;

  before(async () => {
    lab = await createLab({ pods: 3, remotePods: 1 });
    await Promise.all(lab.pods.map((each) => each.serve({ protocol: 'TCP', port: PORT })));
    const [resolver] = lab.remotePods;
    assert.ok(resolver !== undefined);
    server = await startChild<ServerFunctions>(resolver.namespace, DNS_SERVER);
    await server.call('serve', '0.0.0.0');
    const routes = [
      'route add local 198.18.0.0/16 dev lo',
      `route add 10.244.1.0/24 via ${lab.node.ipv4}`,
    ];
    await lab.elsewhere.exec('ip', ['-batch', '-'], { input: `${routes.join('\n')}\n` });
    await lab.elsewhere.serve({ protocol: 'TCP', port: NAMED_PORT });
    directory = mkdtempSync(join(tmpdir(), 'portwide-programs-'));
    agent = new Agent(lab);
  });
  after(async () => {
    await agent?.destroy();
    await server?.stop();
    await lab?.destroy();
    rmSync(directory, { recursive: true, force: true });
  });

  const pod = (index: number): Host => {
    const found = lab.pods[index];
    assert.ok(found !== undefined);
    return found;
  };
  const service = (name: string, vip: string, index: number): Manifest[] => [
    serviceManifest(name, { spec: { clusterIPs: [vip], ports: [{ port: 80 }] } }),
    sliceManifest(name, 4, [pod(index)], { ports: [{ name: '', port: PORT }] }),
  ];
  /** The Services in a batch: each gets another endpoint than before. */
  const services = (batch: number): Manifest[] =>
    Array.from({ length: SERVICES }, (_, number) =>
      service(`web-${number}`, `10.96.1.${number + 1}`, batch % 2),
    ).flat();
  const clusterDns = (): Manifest[] => {
    const ports = [{ name: 'dns', protocol: 'UDP', port: 53 }];
    const dns = serviceManifest('kube-dns', { spec: { clusterIPs: [DNS_VIP], ports } });
    return [dns, sliceManifest('kube-dns', 4, lab.remotePods, { ports })].map((object) => ({
      ...object,
      metadata: { ...(object.metadata as object), namespace: 'kube-system' },
    }));
  };

  /** Starts the agent under strace. @returns what its processes start from then on, after Node.js itself. */
  const launch = (name: string) => {
    const [output, launcher] = [join(directory, name), join(directory, `${name}.sh`)];
    // With -D, strace is not the parent of the agent, and signals reach the agent.
    const strace = `strace -D -f -q --seccomp-bpf -e trace=execve -o ${output} ${PORTWIDE}`;
    writeFileSync(launcher, `#!/bin/sh\nexec ${strace} "$@"\n`, { mode: 0o755 });
    agent.program = launcher;
    agent.launch([
      ...AGENT_FLAGS,
      '--proxy-mode=nftables',
      '--network-policy',
      `--status-socket=${join(directory, 'agent.sock')}`,
    ]);
    const { pid } = agent;
    return async () => {
      const end = new RegExp(`^${pid} .*\\+\\+\\+ (exited|killed)`, 'm');
      const read = () => readFileSync(output, 'utf8');
      await waitFor('strace has seen the end of the agent', async () => end.test(read()));
      const programs = startedPrograms(read());
      const node = programs.findIndex((program) => program.endsWith('/node'));
      assert.notEqual(node, -1, programs.join('\n'));
      return programs.slice(node + 1);
    };
  };
  const outcome = async (from: Host, address: string, port: number) =>
    (await from.tcp(address, port, { timeoutMs: 500 })).outcome;
  const serves = () =>
    waitFor(
      'the Service is served',
      async () => (await outcome(lab.client, VIP, 80)) === 'answered',
      START_MS,
    );
  const denies = () =>
    waitFor(
      'the policy denies',
      async () => (await outcome(pod(0), pod(2).ipv4, PORT)) === 'timeout',
      START_MS,
    );

  it('are none, in a day with changes, a flush, a trace and an upgrade', async () => {
    // Of another program, such as Docker.
    await lab.node.exec('iptables-nft', ['-A', 'FORWARD', '-j', 'ACCEPT']);
    await lab.node.exec('iptables-nft', ['-t', 'nat', '-A', 'POSTROUTING', '-j', 'RETURN']);
    const denied = networkPolicy('deny', { podSelector: { matchLabels: { pod: 'pod-3' } } });
    agent.write('pods', policyPods(lab));
    agent.write('policies', [denied]);
    agent.write('dns', clusterDns());
    agent.write('objects', services(0));
    const afterStart = launch('first');
    await serves();
    await denies();

    for (let batch = 1; batch <= BATCHES; batch++) await agent.apply(services(batch));

    await lab.node.exec('nft', ['flush', 'ruleset']);
    await serves();
    await denies();

    const named = adminPolicy('AdminNetworkPolicy', 'names', {
      priority: 1,
      subject: { namespaces: {} },
      egress: [{ action: 'Allow', to: [{ domainNames: ['*.example.com'] }] }],
    });
    const ports = [{ protocol: 'UDP', port: 53 }];
    const onlyDns = networkPolicy('dns', {
      podSelector: { matchLabels: { pod: 'pod-1' } },
      policyTypes: ['Egress'],
      egress: [{ ports }],
    });
    agent.write('policies', [denied, named, onlyDns]);
    await waitFor('the resolved address is allowed', async () => {
      const args = [`@${DNS_VIP}`, 'a1.example.com', '+short', '+tries=1', '+time=2'];
      await pod(0).exec('dig', args, { reject: false });
      return (await outcome(pod(0), addressOf(1, 'A'), NAMED_PORT)) === 'answered';
    });
    assert.equal(await outcome(pod(0), addressOf(2, 'A'), NAMED_PORT), 'timeout');

    const rule = 'chain guard { type filter hook forward priority 5; tcp dport 8080 drop; }';
    await lab.node.exec('nft', [`table inet firewall { ${rule}; }`]);
    const api = new TraceApi(join(directory, 'agent.sock'));
    const live = await api.live({ from: lab.client.ipv4, to: VIP, port: 80, seconds: 20 });
    assert.equal(await outcome(lab.client, VIP, 80), 'timeout');
    await waitFor('the trace names the rule', async () =>
      live.lines.some((line) => JSON.stringify(line).includes('"tcp dport 8080 drop"')),
    );
    live.close();
    await lab.node.exec('nft', ['delete table inet firewall']);
    await serves();

    await agent.stop();
    const programs = await afterStart();
    for (const family of [4, 6] as const)
      await lab.node.exec('nft', ['-f', '-'], { input: earlierTable(family, valuesOf(family)) });
    const afterUpgrade = launch('second');
    await serves();
    await denies();
    await agent.stop();

    assert.deepEqual([...programs, ...(await afterUpgrade())], []);
  });

  /** Addresses for the table of an earlier version. */
  const valuesOf = (family: 4 | 6) => {
    const [vip, pods] =
      family === 4 ? ['10.96.0.', '10.244.0.0/16'] : ['fd00:10:96::', 'fd00:10:244::/48'];
    const address = (host: Host) => (family === 4 ? host.ipv4 : host.ipv6);
    return {
      PODS: pods,
      NODE: address(lab.node),
      ...{ WEB: `${vip}20`, ALL: `${vip}22`, NONE: `${vip}23`, EMPTY: `${vip}24` },
      ...{ RANGE: `${vip}25`, OPEN: `${vip}26`, WIDE: `${vip}27` },
      ...{ CLIENT: address(lab.client), POD_1: address(pod(0)), POD_2: address(pod(1)) },
    };
  };
});
