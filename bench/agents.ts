/** Whole programs on a node, fed by an API server: the double of the tests, in the node's namespace. */
import { createInterface } from 'node:readline';
import type { Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import type { DoubleOptions } from '../test/api-server/double.ts';
import { RemoteDouble } from '../test/api-server/remote.ts';
import type { Manifest } from '../test/e2e/manifests.ts';
import { runIn } from '../test/lab/processes.ts';
import { apiNode, apiObjects } from './api-objects.ts';
import { POD_CIDR } from './cluster.ts';
import { type Network, withNetwork } from './network.ts';
import { cpuSeconds, watchMemory } from './processes.ts';
import type { TableRow } from './table.ts';

/** What a program took until it served, and then at rest. */
export interface AgentRun {
  /** From the start of its process. */
  readonly seconds: number;
  /** Seconds of CPU of its own, without that of the commands it runs. */
  readonly cpu: number;
  /** MiB, the commands it runs included. */
  readonly settled: number;
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
/** Milliseconds that a start may take. */
export const START_MS = 180_000;
/** Milliseconds that a program rests before its memory is looked at. */
const SETTLE_MS = 10_000;
/** Objects given to the double in one call. */
const AT_A_TIME = 1000;

/** The arguments of a whole agent. */
export function portwideArguments(double: RemoteDouble, flags: readonly string[]): string[] {
  const where = [`--master=${double.url}`, '--hostname-override=node'];
  return ['run', ...where, `--cluster-cidr=${POD_CIDR}`, ...flags];
}

/**
 * A whole agent, from its start until both families are done, and then at rest.
 * @param message what it logs for each family once it has all
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

/** Resolves when a program has logged this so often. */
export function logged(output: Readable, message: string, times: number): Promise<void> {
  const heard = Promise.withResolvers<void>();
  let count = 0;
  createInterface({ input: output }).on('line', (line) => {
    if ((JSON.parse(line) as { msg?: string }).msg === message) count++;
    if (count === times) heard.resolve();
  });
  const late = sleep(START_MS, undefined, { ref: false }).then(() => {
    throw new Error(`not logged in time: ${message}`);
  });
  return Promise.race([heard.promise, late]);
}

/** @param served resolves with the seconds that the program took until it served. */
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

/** So many Services and their EndpointSlices, and the node. */
export function* clusterObjects(services: number): Generator<Manifest> {
  yield* clusterServices(services);
  yield apiNode('node');
}

export function* clusterServices(services: number): Generator<Manifest> {
  for (let index = 0; index < services; index++) yield* apiObjects(index);
}

/** A node whose API server has these objects and no others. */
export async function withApiServer<Result>(
  objects: Iterable<Manifest>,
  use: (node: NodeWithApiServer) => Promise<Result>,
  options: DoubleOptions = {},
): Promise<Result> {
  return await withNetwork(async (network) => {
    const { spawn, stop } = runIn('node', network.node);
    try {
      const double = await RemoteDouble.start(spawn, options);
      const some: Manifest[] = [];
      for (const object of objects) {
        some.push(object);
        if (some.length === AT_A_TIME) await double.call('put', ...some.splice(0));
      }
      await double.call('put', ...some);
      return await use({ network, spawn, double });
    } finally {
      await stop();
    }
  });
}

/** @param ca the file with the certificate of the authority; undefined: the server is none of TLS. */
export function kubeconfig(server: string, ca?: string): string {
  return JSON.stringify({
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name: 'bench', cluster: { server, ...(ca && { 'certificate-authority': ca }) } }],
    users: [{ name: 'bench', user: {} }],
    contexts: [{ name: 'bench', context: { cluster: 'bench', user: 'bench' } }],
    'current-context': 'bench',
  });
}
