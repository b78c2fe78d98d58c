/** What is measured of an agent that an API server feeds; each in namespaces of its own. */
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { RemoteDouble } from '../test/api-server/remote.ts';
import type { Manifest } from '../test/e2e/manifests.ts';
import { runIn } from '../test/lab/processes.ts';
import { waitFor } from '../test/lab/wait.ts';
import { apiNode, apiObjects } from './api-objects.ts';
import { POD_CIDR } from './cluster.ts';
import { cpuSeconds } from './cpu.ts';
import { watchMemory } from './memory.ts';
import { withNetwork } from './network.ts';

export interface ListReport {
  readonly seconds: number;
  /** Seconds. */
  readonly cpu: number;
  /** Longest time in which the event loop did not turn, in milliseconds. */
  readonly stall: number;
  /** Resident, in MiB. */
  readonly memory: number;
}

/** The first list, and one after the server has forgotten the version. */
export interface ListRun {
  readonly first: ListReport;
  readonly again: ListReport;
}

/** A whole agent, until it serves and then at rest. */
export interface AgentRun {
  /** From the start of its process. */
  readonly seconds: number;
  /** Seconds of CPU of its own, without that of the commands it runs. */
  readonly cpu: number;
  /** MiB, the commands it runs included. */
  readonly settled: number;
  readonly peak: number;
}

const PORTWIDE = fileURLToPath(new URL('../portwide', import.meta.url));
const PROCESS = fileURLToPath(new URL('api-process.ts', import.meta.url));
type Spawn = ReturnType<typeof runIn>['spawn'];

const START_MS = 180_000;
/** How long an agent rests before its memory is looked at. */
const SETTLE_MS = 10_000;
/** Objects given to the double in one call. */
const AT_A_TIME = 500;

export function measureList(services: number): Promise<ListRun> {
  return withServer(services, async (spawn, double) => {
    // As the launcher, ./portwide, has it.
    const env = { MALLOC_TRIM_THRESHOLD_: '131072', MALLOC_ARENA_MAX: '2' };
    const args = ['--max-semi-space-size=8', PROCESS, double.url];
    const child = spawn(process.execPath, args, { stdin: 'pipe', env });
    const reports: ListReport[] = [];
    if (child.stdout === null) throw new Error('the list process has no output');
    createInterface({ input: child.stdout }).on('line', (line) => {
      reports.push(JSON.parse(line) as ListReport);
    });
    const report = (number: number) => waitFor('it reports', () => reports[number], START_MS);
    const first = await report(0);
    const standing = async (lists: number) => {
      const requests = await double.call('requests');
      const watches = requests.filter(({ verb }) => verb === 'watch').length;
      return watches === 3 * lists;
    };
    await waitFor('it watches', () => standing(1), START_MS);
    await double.call('breakWatches', 'expire');
    await waitFor('it has listed again', () => standing(2), START_MS);
    child.stdin?.write('\n');
    const again = await report(1);
    return { first, again };
  });
}

/** @param modeFlags What says how it writes rules. */
export function measureAgent(services: number, modeFlags: readonly string[]): Promise<AgentRun> {
  const how = { flags: modeFlags, message: 'serving' };
  return withServer(services, (spawn, double) => measureOn(spawn, double, how));
}

/** What an agent is started with, and what it logs for each family once it has all. */
export interface AgentHow {
  readonly flags: readonly string[];
  readonly message: string;
}

/** As `measureAgent`, with these objects and no others. */
export function measureAgentWith(objects: readonly Manifest[], how: AgentHow): Promise<AgentRun> {
  return withDouble(async (spawn, double) => {
    for (let at = 0; at < objects.length; at += AT_A_TIME) {
      await double.call('put', ...objects.slice(at, at + AT_A_TIME));
    }
    return await measureOn(spawn, double, how);
  });
}

async function measureOn(spawn: Spawn, double: RemoteDouble, how: AgentHow): Promise<AgentRun> {
  const flags = [
    `--master=${double.url}`,
    '--hostname-override=node',
    `--cluster-cidr=${POD_CIDR}`,
    ...how.flags,
  ];
  const started = performance.now();
  const agent = spawn(PORTWIDE, ['run', ...flags]);
  if (agent.stdout === null || agent.pid === undefined) throw new Error('the agent did not start');
  const memory = watchMemory(agent.pid);
  let serving = 0;
  let seconds = 0;
  createInterface({ input: agent.stdout }).on('line', (line) => {
    if ((JSON.parse(line) as { msg?: string }).msg !== how.message) return;
    serving++;
    seconds = (performance.now() - started) / 1000;
  });
  await waitFor('both families are served', () => serving === 2, START_MS);
  const cpu = cpuSeconds(agent.pid);
  await sleep(SETTLE_MS);
  const { now: settled, peak } = memory.take();
  return { seconds, cpu, settled, peak };
}

/** An API server with so many Services and their EndpointSlices, on a node. */
function withServer<Result>(
  services: number,
  use: (spawn: Spawn, double: RemoteDouble) => Promise<Result>,
): Promise<Result> {
  return withDouble(async (spawn, double) => {
    for (let at = 0; at < services; at += AT_A_TIME) {
      const length = Math.min(AT_A_TIME, services - at);
      const objects = Array.from({ length }, (_, index) => apiObjects(at + index));
      await double.call('put', ...objects.flat());
    }
    await double.call('put', apiNode('node'));
    return await use(spawn, double);
  });
}

async function withDouble<Result>(
  use: (spawn: Spawn, double: RemoteDouble) => Promise<Result>,
): Promise<Result> {
  return await withNetwork(async ({ node }) => {
    const { spawn, stop } = runIn('node', node);
    try {
      return await use(spawn, await RemoteDouble.start(spawn));
    } finally {
      await stop();
    }
  });
}
