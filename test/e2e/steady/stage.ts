/**
 * Two nodes with an agent each, an API server, and a client of each node. The first agent is killed again and again, the
 * second lives as long as the stage: only a process that lives has a memory to follow.
 *
 * client ── node (killed agent) ── pods      elsewhere (API server, client) ── node2 (living agent) ── remote pods
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { RemoteDouble } from '../../api-server/remote.ts';
import { type Child, startChild } from '../../child.ts';
import { createLab, type Host, type Lab, PREFIXES } from '../../lab/lab.ts';
import { PORTWIDE } from '../../portwide.ts';
import { Agent } from '../agent.ts';
import type { Feed } from '../feed.ts';
import { type Manifest, nodeManifest } from '../manifests.ts';
import type { ClientFunctions } from './client.ts';

/** A node with its agent and its client. */
export interface SteadyNode {
  readonly host: Host;
  readonly agent: Agent;
  readonly flags: readonly string[];
  /** The host that reaches VIPs through this node. */
  readonly clientHost: Host;
  readonly client: Child<ClientFunctions>;
  /** Runs a command that reads the agent. */
  ask(...command: readonly string[]): Promise<{ text: string; exitCode: number | undefined }>;
}

export interface Stage {
  readonly lab: Lab;
  readonly double: RemoteDouble;
  readonly killed: SteadyNode;
  readonly living: SteadyNode;
  /** The Node objects of both nodes. */
  readonly nodes: readonly Manifest[];
  destroy(): Promise<void>;
}

const CLIENT = new URL('client.ts', import.meta.url);
/**
 * As on a node with a CNI plug-in. Without any rule that needs conntrack, the kernel translates no connection, also
 * none that exists.
 */
const CNI_RULES =
  'table inet cni { chain forward { type filter hook forward priority 5; ct state established accept; }; }';

/** The agents do not run yet. */
export async function createStage(): Promise<Stage> {
  const lab = await createLab({ pods: 3, remotePods: 3 });
  const directory = mkdtempSync(join(tmpdir(), 'portwide-steady-'));
  const clients: Child<ClientFunctions>[] = [];
  const destroy = async () => {
    await Promise.all(clients.map((client) => client.stop()));
    await lab.destroy();
    rmSync(directory, { recursive: true, force: true });
  };
  try {
    const { node, node2, client, elsewhere } = lab;
    await Promise.all([...lab.pods, ...lab.remotePods].map((pod) => pod.serveEveryPort()));
    for (const family of [4, 6] as const) {
      const via = node2.addresses[family][0] ?? '';
      const route = ['route', 'add', PREFIXES.services[family], 'via', via];
      await elsewhere.exec('ip', [`-${family}`, ...route]);
    }
    for (const host of [node, node2]) await host.exec('nft', [CNI_RULES]);
    const double = await RemoteDouble.start(elsewhere.spawn, { address: '192.168.77.1' });
    const member = async (host: Host, clientHost: Host): Promise<SteadyNode> => {
      const socket = `--status-socket=${join(directory, `${host.name}.sock`)}`;
      const agent = new Agent({ ...lab, node: host }, { feed: feedOf(double) });
      agent.firstFlags = ['--status-bind-address=none', socket];
      const child = await startChild<ClientFunctions>(clientHost.namespace, CLIENT);
      clients.push(child);
      return {
        host,
        agent,
        flags: [
          `--hostname-override=${host.name}`,
          `--cluster-cidr=${PREFIXES.allPods[4]},${PREFIXES.allPods[6]}`,
          '--proxy-mode=nftables',
          '-v=3',
        ],
        clientHost,
        client: child,
        ask: async (...command) => {
          const result = await host.exec(PORTWIDE, [...command, socket], { reject: false });
          return { text: `${result.stdout}\n${result.stderr}`, exitCode: result.exitCode };
        },
      };
    };
    const killed = await member(node, client);
    const living = await member(node2, elsewhere);
    return { lab, double, killed, living, nodes: [node, node2].map(nodeOf), destroy };
  } catch (error) {
    await destroy();
    throw error;
  }
}

function nodeOf({ name, ipv4, ipv6 }: Host): Manifest {
  const node = nodeManifest([ipv4, ipv6]);
  return { ...node, metadata: { ...(node.metadata as object), name } };
}

/** The stage writes all objects itself. */
function feedOf(double: RemoteDouble): Feed {
  return {
    flags: [`--master=${double.url}`],
    inStreams: true,
    write: () => {},
    written: async () => {},
    destroy: () => {},
  };
}
