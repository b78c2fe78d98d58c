/**
 * Runs whole programs on a node, with the tests' fake API server in the node's network namespace.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { Authority, pemOf } from '../test/api-server/certificates.ts';
import type { DoubleOptions } from '../test/api-server/double.ts';
import { RemoteDouble } from '../test/api-server/remote.ts';
import type { Manifest } from '../test/e2e/manifests.ts';
import { runIn } from '../test/lab/processes.ts';
import { apiNode, apiObjects } from './api-objects.ts';
import { POD_CIDR } from './cluster.ts';
import { type Network, withNetwork } from './network.ts';
import { cpuSeconds, watchMemory } from './processes.ts';
import type { TableRow } from './table.ts';

/** Resources a program used until it served, and afterwards when idle. */
export interface AgentRun {
  /** Seconds from the start of the process. */
  readonly seconds: number;
  /** CPU seconds of the process, without the commands it runs. */
  readonly cpu: number;
  /** Resident memory when idle in MiB, including the commands it runs. */
  readonly settled: number;
  /** Peak resident memory in MiB, including the commands it runs. */
  readonly peak: number;
}

export const AGENT_ROWS: readonly TableRow<AgentRun>[] = [
  ['– CPU until then, s', ({ cpu }) => cpu, 2],
  ['– memory ten seconds later, MiB', ({ settled }) => settled, 0],
  ['– peak memory, MiB', ({ peak }) => peak, 0],
];

/** A node and its API server. */
export interface NodeWithApiServer {
  readonly network: Network;
  /** Starts a process on the node. */
  readonly spawn: ReturnType<typeof runIn>['spawn'];
  readonly double: RemoteDouble;
}

export const PORTWIDE = fileURLToPath(new URL('../portwide', import.meta.url));
/** Timeout of a start, in milliseconds. */
export const START_MS = 180_000;
/** Milliseconds without changes before memory is measured. */
const SETTLE_MS = 10_000;
/** Objects per call to the fake API server. */
const BATCH_SIZE = 1000;

/** Arguments of the launcher for an agent that uses the fake API server. */
export function portwideArguments(double: RemoteDouble, flags: readonly string[]): string[] {
  const where = [`--master=${double.url}`, '--hostname-override=node'];
  return ['run', ...where, `--cluster-cidr=${POD_CIDR}`, ...flags];
}

/** Arguments for mode nftables and the directory of `withTlsApiServer`. */
export function nftablesArguments(directory: string): string[] {
  return [
    'run',
    `--kubeconfig=${directory}/kubeconfig`,
    '--hostname-override=node',
    '--proxy-mode=nftables',
    `--cluster-cidr=${POD_CIDR}`,
    '--status-socket=none',
  ];
}

/**
 * Measures a whole agent from its start until both families are served, and then idle.
 * @param message logged once for each family when it is served
 */
export function measureAgent(
  objects: Iterable<Manifest>,
  flags: readonly string[],
  message = 'serving',
): Promise<AgentRun> {
  return withApiServer(objects, async ({ spawn, double }) => {
    const started = performance.now();
    const { pid, stdout } = spawn(PORTWIDE, portwideArguments(double, flags));
    if (stdout === null || pid === undefined) throw new Error('the agent did not start');
    return await measureProcess(pid, async () => {
      await logged(stdout, message, 2);
      return (performance.now() - started) / 1000;
    });
  });
}

/** Resolves when a program has logged a message `times` times. @throws Error after `START_MS`. */
export function logged(output: Readable, message: string, times: number): Promise<void> {
  const done = Promise.withResolvers<void>();
  let count = 0;
  createInterface({ input: output }).on('line', (line) => {
    if ((JSON.parse(line) as { msg?: string }).msg === message) count++;
    if (count === times) done.resolve();
  });
  const timeout = sleep(START_MS, undefined, { ref: false }).then(() => {
    throw new Error(`not logged before the timeout: ${message}`);
  });
  return Promise.race([done.promise, timeout]);
}

/**
 * Measures a process until it serves, and its memory when idle.
 * @param served resolves with the seconds from the start until the program served.
 */
export async function measureProcess(
  pid: number,
  served: () => Promise<number>,
): Promise<AgentRun> {
  const memory = watchMemory(pid);
  const seconds = await served();
  const cpu = cpuSeconds(pid);
  await sleep(SETTLE_MS);
  const { now: settled, peak } = memory.take();
  return { seconds, cpu, settled, peak };
}

/** Services with their EndpointSlices, and the Node. */
export function* clusterObjects(services: number): Generator<Manifest> {
  yield* clusterServices(services);
  yield apiNode('node');
}

export function* clusterServices(services: number): Generator<Manifest> {
  for (let index = 0; index < services; index++) yield* apiObjects(index);
}

/** Calls `use` with a node whose API server has only the given objects. */
export async function withApiServer<Result>(
  objects: Iterable<Manifest>,
  use: (node: NodeWithApiServer) => Promise<Result>,
  options: DoubleOptions = {},
): Promise<Result> {
  return await withNetwork(async (network) => {
    const { spawn, stop } = runIn('node', network.node);
    try {
      const double = await RemoteDouble.start(spawn, options);
      const batch: Manifest[] = [];
      for (const object of objects) {
        batch.push(object);
        if (batch.length === BATCH_SIZE) await double.call('put', ...batch.splice(0));
      }
      await double.call('put', ...batch);
      return await use({ network, spawn, double });
    } finally {
      await stop();
    }
  });
}

/**
 * As `withApiServer`, over TLS.
 * @param use gets a temporary directory that contains `kubeconfig`.
 */
export async function withTlsApiServer<Result>(
  objects: Iterable<Manifest>,
  use: (node: NodeWithApiServer, directory: string) => Promise<Result>,
): Promise<Result> {
  const directory = mkdtempSync(join(tmpdir(), 'portwide-bench-'));
  const authority = await Authority.create();
  try {
    const tls = pemOf(await authority.issue('kube-apiserver', ['IP:127.0.0.1']));
    const useWithKubeconfig = (node: NodeWithApiServer) => {
      const server = `https://127.0.0.1:${node.double.port}`;
      const text = kubeconfig(server, { 'certificate-authority': authority.cert });
      writeFileSync(join(directory, 'kubeconfig'), text);
      return use(node, directory);
    };
    return await withApiServer(objects, useWithKubeconfig, { tls });
  } finally {
    authority.destroy();
    rmSync(directory, { recursive: true, force: true });
  }
}

/**
 * @param cluster fields of the cluster besides its server, such as `certificate-authority`
 * @param user credentials
 */
export function kubeconfig(server: string, cluster: object = {}, user: object = {}): string {
  return JSON.stringify({
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name: 'bench', cluster: { server, ...cluster } }],
    users: [{ name: 'bench', user }],
    contexts: [{ name: 'bench', context: { cluster: 'bench', user: 'bench' } }],
    'current-context': 'bench',
  });
}
