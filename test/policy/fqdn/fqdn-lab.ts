/**
 * A lab with resolvers, an agent that observes DNS, and a host with the addresses of all domain
 * names.
 */

import { POLICY_TABLE } from '../../../policy/compile/policy-table.ts';
import { FQDN_CACHE_DEFAULTS, type FqdnCacheOptions } from '../../../policy/fqdn/cache.ts';
import { type Child, type Functions, startChild } from '../../child.ts';
import { createLab, type Host, type Lab, waitFor } from '../../lab/lab.ts';
import type { AgentFunctions } from './agent.ts';
import type { ClientFunctions } from './client.ts';
import type { ServerFunctions } from './dns-server.ts';

/** VIPs of the DNS Service. */
export const VIP = { 4: '10.96.0.10', 6: 'fd00:10:96::a' } as const;
/** TCP port of the addresses of domain names. */
export const PORT = 443;

export interface FqdnLab extends AsyncDisposable {
  readonly lab: Lab;
  /** Two pods; the first pod is subject to policy. */
  readonly pods: readonly [Host, Host];
  /** Starts a process that is stopped with the lab. */
  start<F extends Functions>(host: Host, script: string): Promise<Child<F>>;
  serveDns(host: Host, ...addresses: readonly string[]): Promise<Child<ServerFunctions>>;
  /** DNS servers behind the VIP, in the order of the lab's remote pods. */
  readonly servers: readonly Child<ServerFunctions>[];
  client(host: Host): Promise<Child<ClientFunctions>>;
  agent(options?: {
    readonly learner?: Partial<FqdnCacheOptions>;
    readonly resolvers?: readonly string[];
    /** Networks that the first pod may connect to; default: the resolvers. */
    readonly allowed?: readonly (readonly [first: string, last: string])[];
    /** Domain name patterns of list 1. */
    readonly names?: readonly string[];
    /** Whether to wait until DNS packets are queued. */
    readonly waits?: boolean;
  }): Promise<Child<AgentFunctions>>;
}

export async function createFqdnLab(): Promise<FqdnLab> {
  const lab = await createLab({ pods: 2, remotePods: 2 });
  const { node, elsewhere, remotePods } = lab;
  const [first, second] = lab.pods as [Host, Host];
  const children: Child<Functions>[] = [];
  const servers: Child<ServerFunctions>[] = [];

  const start = async <F extends Functions>(host: Host, script: string) => {
    const child = await startChild<F>(host.namespace, new URL(script, import.meta.url));
    children.push(child as unknown as Child<Functions>);
    return child;
  };
  const fqdnLab: FqdnLab = {
    lab,
    pods: [first, second],
    servers,
    start,
    async serveDns(host, ...addresses) {
      const server = await start<ServerFunctions>(host, 'dns-server.ts');
      for (const address of addresses) await server.call('serve', address);
      return server;
    },
    client: (host) => start(host, 'client.ts'),
    async agent({ learner = {}, names = ['*.example.com'], waits = true, ...options } = {}) {
      const agent = await start<AgentFunctions>(node, 'agent.ts');
      await agent.call('start', {
        pods: [first.ipv4, first.ipv6],
        unselected: [second.ipv4, second.ipv6],
        allowed: [
          ['10.244.2.0', '10.244.2.255'],
          ['fd00:10:244:2::', 'fd00:10:244:2::ffff'],
        ],
        resolvers: Object.values(VIP),
        learner: { ...FQDN_CACHE_DEFAULTS, ...learner },
        ...options,
      });
      await waitFor('policy is enforced', async () => (await agent.call('applied')) >= 2);
      await agent.call(
        'setNames',
        names.map((name) => [name, [1]]),
      );
      if (waits && names.length > 0)
        await waitFor('packets are queued', () => queuedResolvers(node));
      return agent;
    },
    async [Symbol.asyncDispose]() {
      await Promise.all(children.map((child) => child.stop()));
      await lab.destroy();
    },
  };

  try {
    await elsewhere.exec('ip', ['-batch', '-'], {
      input: [
        'route add local 198.18.0.0/16 dev lo',
        'route add local 2001:db8:52::/48 dev lo',
        `route add 10.244.1.0/24 via ${node.ipv4}`,
        `route add fd00:10:244:1::/64 via ${node.ipv6}`,
        '',
      ].join('\n'),
    });
    await elsewhere.serve({ protocol: 'TCP', port: PORT });
    for (const remote of remotePods) servers.push(await fqdnLab.serveDns(remote, '0.0.0.0', '::'));
    await fqdnLab.serveDns(elsewhere, elsewhere.ipv4);
    await translate(node, remotePods);
    return fqdnLab;
  } catch (error) {
    await fqdnLab[Symbol.asyncDispose]();
    throw error;
  }
}

/** Resolvers whose packets the kernel queues, in the text of nft. */
export async function queuedResolvers(node: Host): Promise<string> {
  const texts = ['ip', 'ip6'].map(async (family) => {
    const args = ['list', 'set', family, POLICY_TABLE, 'dns-resolvers'];
    return (await node.exec('nft', args)).stdout.split('elements')[1] ?? '';
  });
  return (await Promise.all(texts)).join('');
}

/** Translates the VIP to one of the hosts (DNAT). */
export async function translate(node: Host, hosts: readonly Host[]): Promise<void> {
  for (const family of [4, 6] as const) {
    const rules = hosts.flatMap((host, index) => {
      const share = hosts.length - index;
      const chance =
        share === 1 ? '' : `-m statistic --mode random --probability ${(1 / share).toFixed(5)} `;
      return ['udp', 'tcp'].map(
        (protocol) =>
          `-A PREROUTING -d ${VIP[family]} -p ${protocol} --dport 53 ${chance}` +
          `-j DNAT --to-destination ${host.addresses[family][0]}`,
      );
    });
    const command = family === 4 ? 'iptables-nft-restore' : 'ip6tables-nft-restore';
    await node.exec(command, ['--noflush'], { input: ['*nat', ...rules, 'COMMIT', ''].join('\n') });
  }
}
