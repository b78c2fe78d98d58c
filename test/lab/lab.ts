/**
 * A cluster's network on one machine, out of network namespaces and veth pairs: a node under test
 * and its pods, a second node and its pods, a client outside, and a host elsewhere. The address plan
 * and the routes stand at the head of topology.ts.
 *
 * Nothing here knows of a test framework. No packet leaves the namespaces, and the
 * machine's own namespace is never touched. Needs root.
 */
import { randomBytes } from 'node:crypto';
import { createHost, type Host, type OwnedHost } from './host.ts';
import { buildNamespaces, guard, removeNamespaces } from './namespaces.ts';
import type { IptablesVariant } from './outcomes.ts';
import { planTopology } from './topology.ts';

export { LabError } from './errors.ts';
export type { HeldConnection, Host, ProbeOptions, ServeOptions } from './host.ts';
export type {
  BurstTally as Tally,
  Family,
  IptablesVariant,
  LookupResult as LookUp,
  ProbeOutcome as Outcome,
  Protocol,
  ServerReply as Reply,
} from './outcomes.ts';
export type { ExecOptions, ExecResult, SpawnOptions } from './processes.ts';
export { iptablesRules, removeRules, withoutCounters } from './rules.ts';
export { PREFIXES } from './topology.ts';
export { repeatUntil, waitFor } from './wait.ts';

export interface LabOptions {
  /** Pods on the node under test; default 2, at most 80. */
  readonly pods?: number;
  /** Pods on node2; default 1, at most 80. */
  readonly remotePods?: number;
  /** What the node side of each pod's link is named, before its number; default `pw`. */
  readonly podInterfacePrefix?: string;
  /** The iptables that serveEveryPort uses inside pods; default `nft`, which UML lacks. */
  readonly podRules?: IptablesVariant;
}

export interface Lab {
  /** In the names of its namespaces, `<id>-<host>`. */
  readonly id: string;
  readonly node: Host;
  readonly node2: Host;
  readonly client: Host;
  readonly elsewhere: Host;
  /** `pod-1` and on, on the node under test. */
  readonly pods: readonly Host[];
  /** `remote-1` and on, on node2. */
  readonly remotePods: readonly Host[];
  readonly hosts: readonly Host[];
  /** Ends what was spawned, the threads, and the namespaces; a second call does nothing more. */
  destroy(): Promise<void>;
}

/**
 * Builds a lab. When that fails, nothing is left of it; when the process ends without destroy(),
 * by itself or by a signal that can be caught, nothing either.
 *
 * @throws LabError `BAD_OPTIONS`, `COMMAND_FAILED`, `THREAD_FAILED`
 */
export async function createLab(options: LabOptions = {}): Promise<Lab> {
  const { pods = 2, remotePods = 1, podInterfacePrefix = 'pw', podRules = 'nft' } = options;
  const id = `pw${randomBytes(4).toString('hex')}`;
  const topology = planTopology(id, { pods, remotePods, podInterfacePrefix });
  const plans = topology.stages.flat();
  const namespaces = plans.map(({ namespace }) => namespace);
  const owned = new Map<string, OwnedHost>();
  for (const plan of plans) owned.set(plan.name, createHost(plan, podRules));

  const unguard = guard({
    namespaces,
    kill: () => {
      for (const { kill } of owned.values()) kill();
    },
  });
  const remove = async () => {
    try {
      await Promise.all([...owned.values()].map(({ stop }) => stop()));
    } finally {
      await removeNamespaces(namespaces);
      unguard();
    }
  };

  try {
    await buildNamespaces(topology);
  } catch (error) {
    await remove();
    throw error;
  }

  const named = (name: string): Host => {
    const found = owned.get(name);
    if (!found) throw new Error(`the topology has no ${name}`);
    return found.host;
  };
  const numbered = (count: number, prefix: string) =>
    Array.from({ length: count }, (_, index) => named(`${prefix}-${index + 1}`));
  let destroyed: Promise<void> | undefined;
  return {
    id,
    node: named('node'),
    node2: named('node2'),
    client: named('client'),
    elsewhere: named('elsewhere'),
    pods: numbered(pods, 'pod'),
    remotePods: numbered(remotePods, 'remote'),
    hosts: [...owned.values()].map(({ host }) => host),
    destroy: () => {
      destroyed ??= remove();
      return destroyed;
    },
  };
}
