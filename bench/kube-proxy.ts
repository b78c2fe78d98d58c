/**
 * Measures Portwide and kube-proxy, if the variable KUBE_PROXY names kube-proxy's binary. Both run as whole
 * programs with the same API server and are measured from outside.
 */
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { execa } from 'execa';
import type { Variant } from '../iptables/commands.ts';
import { runIn } from '../test/lab/processes.ts';
import {
  AGENT_ROWS,
  clusterObjects,
  kubeconfig,
  measureProcess,
  type NodeWithApiServer,
  PORTWIDE,
  portwideArguments,
  withApiServer,
} from './agents.ts';
import { apiObjects } from './api-objects.ts';
import { POD_CIDR } from './cluster.ts';
import { repeat } from './harness.ts';
import type { Network } from './network.ts';
import {
  type ConnectTarget,
  collect,
  connectBare,
  connectPaths,
  directTarget,
  medians,
  noTimes,
  PATHS,
  pathNames,
  serviceTarget,
} from './packets.ts';
import { type CellValues, cell, LIMIT, printRow, ratio } from './table.ts';

export type ProxyMode = 'nftables' | `iptables-${Variant}`;

/**
 * Starts a program on a node.
 * @param directory for files of the program
 */
type Start = (node: NodeWithApiServer, directory: string) => ReturnType<NodeWithApiServer['spawn']>;

type ProgramRun = Awaited<ReturnType<typeof measureOn>>;

/** No connection succeeded within the time limit. */
class TimedOut extends Error {
  override readonly name = 'TimedOut';
}

/** Number of changes of each kind, in one run. */
const CHANGES = 5;
/** Milliseconds between two changes. By default, kube-proxy syncs at most once a second. */
const REST = 1500;
const START = 'program start until its rules are in effect, s';
/** An address without a route to it. */
const NOWHERE = '198.51.100.1';
const REACH = fileURLToPath(new URL('reach.ts', import.meta.url));

export const WITH_KUBE_PROXY = 'KUBE_PROXY=/path/to/kube-proxy also measures kube-proxy.';

const LEGEND = `Both programs run with their defaults and both families, and an API server (a fake, on the same machine). Their
rules are in effect when connections to the first, the middle and the last VIP succeed. A change of one API object,
made while idle, is timed from the API server until a connection succeeds. CPU excludes the commands they run,
memory includes them. Values are medians, with minimum and maximum; for connections, the median of each round. The
ratio is kube-proxy's value divided by Portwide's. A program that did not serve within ${LIMIT} s is not measured
further.`;

/** The version of kube-proxy, for `printHead`; empty if KUBE_PROXY is not set. */
export async function kubeProxyVersion(): Promise<string[]> {
  const { KUBE_PROXY: path } = process.env;
  return path === undefined ? [] : [`kube-proxy ${(await execa(path, ['--version'])).stdout}`];
}

/** Measures both programs and prints a table; does nothing if KUBE_PROXY is not set. */
export async function compareWithKubeProxy(
  modes: readonly ProxyMode[],
  sizes: readonly number[],
  runs: number,
): Promise<void> {
  const { KUBE_PROXY: path } = process.env;
  if (path === undefined) return;
  console.log(`\n${LEGEND}\n`);
  console.log('| mode | Services | what | Portwide | kube-proxy | ratio |');
  console.log('|---|---:|---|---:|---:|---:|');
  const cases = modes.flatMap((mode) => sizes.map((services) => ({ mode, services })));
  for (const { mode, services } of cases) {
    // Alternate the programs, so that other load on the machine affects both.
    const pairs = await repeat(runs, `Portwide and kube-proxy, ${mode}, ${services}`, async () => ({
      ours: await measure(startPortwide(mode), services),
      theirs: await measure(startKubeProxy(path, mode), services),
    }));
    const row = (what: string, of: (run: ProgramRun) => readonly number[], digits: number) => {
      const [ours, theirs] = (['ours', 'theirs'] as const).map((whose): CellValues => {
        const isLate = what === START && pairs.some((pair) => pair[whose] === null);
        return isLate ? 'late' : pairs.flatMap((pair) => (pair[whose] ? of(pair[whose]) : []));
      });
      printRow(mode, services, what, cell(ours, digits), cell(theirs, digits), ratio(ours, theirs));
    };
    row(START, ({ seconds }) => [seconds], 2);
    for (const [what, of, digits] of AGENT_ROWS) row(what, (run) => [of(run)], digits);
    row('one Service added, ms', ({ added }) => added, 1);
    row('endpoints of one Service replaced, ms', ({ replaced }) => replaced, 1);
    for (const path of pathNames) {
      row(`new connection ${PATHS[path]}, µs`, ({ packets }) => packets[path], 1);
    }
  }
}

function startPortwide(mode: ProxyMode): Start {
  const flags = [`--proxy-mode=${modeOf(mode)}`];
  if (mode !== 'nftables') flags.push(`--iptables-variant=${variantOf(mode)}`);
  return ({ spawn, double }) => spawn(PORTWIDE, portwideArguments(double, flags));
}

function startKubeProxy(path: string, mode: ProxyMode): Start {
  return ({ spawn, double }, directory) => {
    const access = join(directory, 'kubeconfig');
    const config = join(directory, 'config');
    const bin = join(directory, 'bin');
    writeFileSync(access, kubeconfig(double.url));
    writeFileSync(config, JSON.stringify(configuration(mode, access)));
    // kube-proxy runs the commands found in the PATH.
    mkdirSync(bin);
    for (const name of mode === 'nftables' ? [] : ['iptables', 'ip6tables']) {
      for (const end of ['', '-save', '-restore']) {
        symlinkSync(`/usr/sbin/${name}-${variantOf(mode)}${end}`, join(bin, name + end));
      }
    }
    return spawn(path, [`--config=${config}`], { env: { PATH: `${bin}:${process.env.PATH}` } });
  };
}

function modeOf(mode: ProxyMode): string {
  return mode === 'nftables' ? mode : 'iptables';
}

function variantOf(mode: ProxyMode): string {
  return mode.replace('iptables-', '');
}

/**
 * The fake API server supports only JSON. Conntrack settings are not changed because they reach
 * beyond the network namespace.
 */
function configuration(mode: ProxyMode, file: string): object {
  const contentType = 'application/json';
  return {
    apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
    kind: 'KubeProxyConfiguration',
    mode: modeOf(mode),
    hostnameOverride: 'node',
    clusterCIDR: POD_CIDR,
    detectLocalMode: 'ClusterCIDR',
    clientConnection: { kubeconfig: file, contentType, acceptContentTypes: contentType },
    conntrack: { maxPerCore: 0, min: 0 },
  };
}

/** @returns null if the rules were not in effect in time. */
async function measure(start: Start, services: number): Promise<ProgramRun | null> {
  const directory = mkdtempSync(join(tmpdir(), 'portwide-bench-'));
  // Create the other object of each change in advance, so that each change is one object. An added
  // Service already has its EndpointSlice. A Service whose endpoints are replaced starts with an
  // unreachable endpoint.
  const slicesOfAdded = numbers(services).map((index) => apiObjects(index)[1]);
  const unreachable = numbers(services + CHANGES).flatMap((index) => {
    const [service, slice] = apiObjects(index);
    return [service, { ...slice, endpoints: [{ addresses: [NOWHERE] }] }];
  });
  const objects = [...clusterObjects(services), ...slicesOfAdded, ...unreachable];
  try {
    return await withApiServer(objects, async (node) => {
      try {
        return await measureOn(node, services, () => start(node, directory));
      } finally {
        await killAll(node.network.node);
      }
    });
  } catch (error) {
    if (error instanceof TimedOut) return null;
    throw error;
  } finally {
    rmSync(directory, { recursive: true });
  }
}

/** Changes in milliseconds; new connections in microseconds, the median of each round. */
function measureOn(
  { network, double }: NodeWithApiServer,
  services: number,
  start: () => ReturnType<Start>,
) {
  return withReach(network, async (reached) => {
    const packets = noTimes();
    collect(packets, await connectBare(network), medians);
    const began = now();
    const child = start();
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
        const put = double.call('put', apiObjects(index)[object]);
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

/** Kills all processes of a namespace: commands of a killed program would continue without it. */
async function killAll(namespace: string): Promise<void> {
  const { stdout } = await execa('ip', ['netns', 'pids', namespace]);
  await execa('kill', ['-9', ...stdout.split('\n')], { reject: false });
}

/** Milliseconds of the Unix epoch. */
function now(): number {
  return performance.timeOrigin + performance.now();
}

type Reached = (target: ConnectTarget) => Promise<number>;

/**
 * @param use gets a function that waits until a connection to a target succeeds, and returns that
 * time in milliseconds of the Unix epoch.
 */
async function withReach<Result>(
  network: Network,
  use: (reached: Reached) => Promise<Result>,
): Promise<Result> {
  const client = runIn('client', network.client);
  try {
    const { stdin, stdout } = client.spawn(process.execPath, [REACH], { stdin: 'pipe' });
    if (stdin === null || stdout === null) throw new Error('reach.ts did not start');
    const lines = createInterface({ input: stdout })[Symbol.asyncIterator]();
    const reached: Reached = async (target) => {
      stdin.write(`${JSON.stringify(target)}\n`);
      const late = sleep(LIMIT * 1000, undefined, { ref: false }).then(() => {
        throw new TimedOut(`no connection to ${target.address} within ${LIMIT} s`);
      });
      const { value } = await Promise.race([lines.next(), late]);
      return Number(value);
    };
    // Wait until reach.ts runs. This target needs no rules.
    await reached(directTarget());
    return await use(reached);
  } finally {
    await client.stop();
  }
}
