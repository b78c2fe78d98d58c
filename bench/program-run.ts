/** Measures a whole program from outside: its start, changes, new connections, CPU and memory. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Manifest } from '../test/e2e/manifests.ts';
import { type AgentRun, clusterObjects, measureProcess } from './agents.ts';
import { apiObjects } from './api-objects.ts';
import { type ServedNode, withServedNode } from './api-servers.ts';
import {
  collect,
  connectBare,
  connectPaths,
  medians,
  noTimes,
  type Path,
  serviceTarget,
} from './packets.ts';
import type { Program } from './programs.ts';
import { now, TimedOut, withReach } from './reached.ts';

/** Times of changes in milliseconds; of new connections in microseconds, the median of each round. */
export interface ProgramRun extends AgentRun {
  readonly added: readonly number[];
  readonly replaced: readonly number[];
  readonly packets: Readonly<Record<Path, readonly number[]>>;
}

/** Number of changes of each kind, in one run. */
const CHANGES = 5;
/** Milliseconds between two changes. By default, kube-proxy syncs at most once a second. */
const REST = 1500;
/** An address without a route to it. */
const NOWHERE = '198.51.100.1';

/** @returns null if the rules were not in effect in time. */
export async function measureProgram(
  program: Program,
  services: number,
): Promise<ProgramRun | null> {
  try {
    return await withServedNode(objectsOf(services), (node) => measureOn(node, program, services));
  } catch (error) {
    if (error instanceof TimedOut) return null;
    throw error;
  }
}

/**
 * The other object of each change exists in advance, so that each change is one object. An added Service already has its
 * EndpointSlice. A Service whose endpoints are replaced starts with an unreachable endpoint.
 */
function objectsOf(services: number): Manifest[] {
  const slicesOfAdded = numbers(services).map((index) => apiObjects(index)[1]);
  const unreachable = numbers(services + CHANGES).flatMap((index) => {
    const [service, slice] = apiObjects(index);
    return [service, { ...slice, endpoints: [{ addresses: [NOWHERE] }] }];
  });
  return [...clusterObjects(services), ...slicesOfAdded, ...unreachable];
}

function measureOn(
  { network, server, spawn, directory }: ServedNode,
  program: Program,
  services: number,
): Promise<ProgramRun> {
  const { path, args, env } = program.command(server.kubeconfig, directory);
  return withReach(network, async (reached) => {
    const packets = noTimes();
    collect(packets, await connectBare(network), medians);
    const began = now();
    const child = spawn(path, args, { ...(env && { env }) });
    if (child.pid === undefined) throw new Error('the program did not start');
    const ended = child.then(() => {
      throw new Error('the program has ended');
    });
    // No caller waits for this promise when the process is killed at the end.
    ended.catch(() => undefined);
    const through = (index: number) => Promise.race([reached(serviceTarget(index)), ended]);
    const run = await measureProcess(child.pid, async () => {
      let last = began;
      for (const index of [0, Math.floor(services / 2), services - 1]) last = await through(index);
      return (last - began) / 1000;
    });
    const change = async (from: number, object: 0 | 1) => {
      const times: number[] = [];
      for (const index of numbers(from)) {
        await sleep(REST);
        const changed = now();
        const put = server.put(apiObjects(index)[object]);
        const [at] = await Promise.all([through(index), put]);
        times.push(at - changed);
      }
      return times;
    };
    const added = await change(services, 0);
    const replaced = await change(services + CHANGES, 1);
    collect(packets, await connectPaths(network, services), medians);
    return { ...run, added, replaced, packets };
  });
}

/** Numbers of the Services that a kind of change is made to. */
function numbers(from: number): number[] {
  return Array.from({ length: CHANGES }, (_, round) => from + round);
}
