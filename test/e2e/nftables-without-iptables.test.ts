import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { NodeStatus } from '../../status/api/node-status.ts';
import { createLab, type Host, type Lab, removeRules, waitFor } from '../lab/lab.ts';
import { iptablesTool } from '../lab/rules.ts';
import { PORTWIDE } from '../portwide.ts';
import { AGENT_FLAGS, Agent, PAGE_ADDRESS } from './agent.ts';
import { kubeProxyIptables } from './kube-proxy-rules.ts';
import { type Manifest, serviceManifest, sliceManifest } from './manifests.ts';
import { adminPolicy, networkPolicy, policyPods } from './policy-manifests.ts';

const FAMILIES = [4, 6] as const;
const VARIANTS = ['nft', 'legacy'] as const;
const [FIRST, SECOND, GONE] = ['10.96.0.10', '10.96.0.11', '10.96.0.99'] as const;
const PORT = 8080;
const START_MS = 60_000;
/** Where Debian has iptables, nft, ipset and others, and not what the launcher needs. */
const SYSTEM_PROGRAMS = '/usr/sbin';
const OTHER_PROGRAMS = '/usr/bin:/bin';
const FLAGS = [
  ...AGENT_FLAGS,
  '--oom-score-adj=0',
  '--conntrack-max-per-core=0',
  '--nodeport-addresses=primary',
  '--proxy-mode=nftables',
];
const POLICY = [...FLAGS, '--network-policy', '--fqdn-resolvers=10.96.0.53'];
/** Chains of other programs, and of a kubelet. */
const FOREIGN = `*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
COMMIT
*filter
:KUBE-FIREWALL - [0:0]
:DOCKER-USER - [0:0]
-A FORWARD -j DOCKER-USER
-A INPUT -j KUBE-FIREWALL
COMMIT
`;

describe('mode nftables and iptables', () => {
  let lab: Lab;
  let agent: Agent;
  let directory: string;

  before(async () => {
    lab = await createLab({ pods: 3, remotePods: 0 });
    await Promise.all(lab.pods.map((pod) => pod.serveEveryPort()));
  });
  after(async () => lab?.destroy());
  beforeEach(() => {
    directory = mkdtempSync(join(tmpdir(), 'portwide-programs-'));
  });
  afterEach(async () => {
    await agent?.destroy();
    await removeRules(lab.node);
    rmSync(directory, { recursive: true, force: true });
  });

  const pod = (index: number): Host => {
    const found = lab.pods[index];
    assert.ok(found !== undefined);
    return found;
  };
  const service = (name: string, vip: string): Manifest[] => [
    serviceManifest(name, { spec: { clusterIPs: [vip], ports: [{ port: PORT }] } }),
    sliceManifest(name, 4, [pod(2)], { ports: [{ name: '', port: PORT }] }),
  ];
  const deny = () => networkPolicy('deny', { podSelector: { matchLabels: { pod: 'pod-2' } } });
  const names = () =>
    adminPolicy('AdminNetworkPolicy', 'names', {
      priority: 1,
      subject: { pods: { namespaceSelector: {}, podSelector: { matchLabels: { pod: 'pod-3' } } } },
      egress: [{ action: 'Allow', to: [{ domainNames: ['*.example.com'] }] }],
    });
  const answers = async (vip: string) =>
    (await lab.client.tcp(vip, PORT, { timeoutMs: 500 })).outcome === 'answered';
  const isDenied = async () =>
    (await pod(0).tcp(pod(1).ipv4, PORT, { timeoutMs: 500 })).outcome !== 'answered';
  const works = async () => {
    await waitFor('the Service is served', () => answers(FIRST), START_MS);
    await waitFor('the policy denies', isDenied, START_MS);
  };
  const warnings = () => agent.log.filter(({ level }) => level >= 40);
  const restore = async (variant: 'nft' | 'legacy', family: 4 | 6, input: string) => {
    await lab.node.exec(iptablesTool(variant, family, 'restore'), ['--noflush'], { input });
  };
  const kubeProxyRules = (family: 4 | 6) => {
    const isIPv4 = family === 4;
    return kubeProxyIptables({
      family,
      podCidr: isIPv4 ? '10.244.0.0/16' : 'fd00:10:244::/48',
      serviceCidr: isIPv4 ? '10.96.0.0/16' : 'fd00:10:96::/112',
      nodeIp: isIPv4 ? lab.node.ipv4 : lab.node.ipv6,
      web: isIPv4 ? FIRST : 'fd00:10:96::10',
      pod: isIPv4 ? pod(2).ipv4 : pod(2).ipv6,
      late: isIPv4 ? SECOND : 'fd00:10:96::11',
      gone: isIPv4 ? GONE : 'fd00:10:96::99',
    });
  };

  for (const [title, prepare] of [
    ['without iptables rules', async () => {}],
    [
      'with iptables rules of other programs in both variants',
      async () => {
        for (const variant of VARIANTS) {
          for (const family of FAMILIES) await restore(variant, family, FOREIGN);
        }
      },
    ],
  ] as const) {
    it(`runs no program from start to stop on a node ${title}`, async () => {
      await prepare();
      await lab.node.exec('sysctl', ['-q', '-w', 'net.ipv4.conf.all.route_localnet=1']);
      const runs = join(directory, 'runs');
      const script = `#!/bin/sh\necho "$0 $@" >> ${runs}\nexit 1\n`;
      for (const name of readdirSync(SYSTEM_PROGRAMS)) {
        // The lab needs ip, which is in both.
        if (!existsSync(join('/usr/bin', name)))
          writeFileSync(join(directory, name), script, { mode: 0o755 });
      }
      const path = `${directory}:${OTHER_PROGRAMS}`;
      await lab.node.exec('env', [`PATH=${path}`, PORTWIDE, 'run', '--init-only', ...POLICY]);
      agent = new Agent(lab, { env: { PATH: path } });
      agent.write('pods', policyPods(lab));
      const objects = [...service('first', FIRST), deny(), names()];
      agent.write('objects', objects);
      await agent.start(POLICY);
      await works();

      agent.write('objects', [...objects, ...service('second', SECOND)]);
      await waitFor('the new Service is served', () => answers(SECOND));
      await lab.node.exec('nft', ['delete table ip portwide; delete table ip portwide-policy']);
      await works();
      await agent.stop();

      await agent.start(FLAGS);
      await waitFor('network policy is removed', async () => !(await isDenied()), START_MS);
      await agent.stop();
      const recorded = existsSync(runs) ? readFileSync(runs, 'utf8') : '';
      assert.equal(recorded.replaceAll(directory, ''), '');
      assert.deepEqual(warnings(), []);
    });
  }

  for (const variant of VARIANTS) {
    it(`serves beside rules of kube-proxy that it cannot remove without iptables-${variant}, and says how to remove them`, async () => {
      for (const family of FAMILIES) await restore(variant, family, kubeProxyRules(family));
      agent = new Agent(lab, { env: { PATH: OTHER_PROGRAMS } });
      agent.firstFlags = [`--status-bind-address=${PAGE_ADDRESS}`, '--status-socket=none'];
      agent.write('pods', policyPods(lab));
      agent.write('objects', [...service('first', FIRST), deny()]);
      await agent.start(POLICY);
      await works();
      await waitFor('it warns in both families', () => warnings().length >= 2, START_MS);
      for (const family of FAMILIES) {
        const tool = iptablesTool(variant, family);
        const [warning, ...others] = warnings().filter(({ err }) =>
          (err as Error).message.startsWith(`${tool} is not installed`),
        );
        assert.deepEqual(others, []);
        assert.equal(warning?.msg, 'leftover state stays, because a program is not installed');
        const { message } = warning.err as Error;
        for (const table of ['mangle', 'nat', 'filter']) assert.match(message, RegExp(table));
        assert.match(message, /roll out the image with iptables .*, or restart the node/);
      }
      assert.equal(warnings().length, 2);
      const url = `http://${PAGE_ADDRESS}/api/v1/status`;
      const answer = await lab.node.httpGet(url);
      assert.ok('body' in answer);
      const { problems } = JSON.parse(answer.body) as NodeStatus;
      assert.deepEqual(
        problems.map(({ reason }) => reason),
        ['Leftover', 'Leftover'],
      );
      await agent.stop();
      const command = [`PATH=${OTHER_PROGRAMS}`, PORTWIDE, 'cleanup'];
      const { exitCode, stderr } = await lab.node.exec('env', command, { reject: false });
      assert.equal(exitCode, 1);
      assert.match(stderr, RegExp(`cannot clean up iptables-${variant}: .* not installed`));

      agent = new Agent(lab);
      agent.write('objects', service('first', FIRST));
      await agent.start(FLAGS);
      const removed = () =>
        agent.logged('removed leftover state').filter(({ what }) => what === 'iptables');
      await waitFor(
        'an agent with iptables removes the rules',
        () => removed().length === 2,
        START_MS,
      );
      await waitFor('the Service is served', () => answers(FIRST), START_MS);
    });
  }
});
