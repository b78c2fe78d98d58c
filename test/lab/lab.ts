/**
 * A cluster network on one machine, made of network namespaces and veth pairs. It has a node under
 * test with pods, a second node with pods, a client outside the cluster, and a host elsewhere.
 * Addresses and routes are listed in topology.ts.
 *
 * Independent of a test framework. No packet leaves the namespaces, and the machine's own network
 * namespace is not changed. Needs root.
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
export { PATIENCE, repeatUntil, waitFor } from './wait.ts';

export interface LabOptions {
  /** Number of pods on the node under test; default 2, at most 80. */
  readonly pods?: number;
  /** Number of pods on node2; default 1, at most 80. */
  readonly remotePods?: number;
  /** Prefix of the interface names on the node side of pod links; default `pw`. */
  readonly podInterfacePrefix?: string;
  /** iptables variant of serveEveryPort inside pods; default `nft`, which UML lacks. */
  readonly podRules?: IptablesVariant;
}

export interface Lab {
  /** Part of the namespace names, `<id>-<host>`. */
  readonly id: string;
  readonly node: Host;
  readonly node2: Host;
  readonly client: Host;
  readonly elsewhere: Host;
  /** `pod-1` and so on, on the node under test. */
  readonly pods: readonly Host[];
  /** `remote-1` and so on, on node2. */
  readonly remotePods: readonly Host[];
  readonly hosts: readonly Host[];
  /**
   * Kills spawned processes, stops the threads and removes the namespaces. A second call does
   * nothing.
   */
  destroy(): Promise<void>;
}

/**
 * Builds a lab. On failure everything is removed. If the process exits without destroy(), by itself
 * or by a signal that can be caught, everything is removed too.
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
