/**
 * Measures whole agents with many Services and endpoints: start, restart, changes in a storm, memory, stalls, kernel
 * time and packets. Results go to standard output as Markdown, progress to standard error.
 */
import { once } from 'node:events';
import { existsSync, readFileSync, rmSync } from 'node:fs';
import { loadavg } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { InvalidArgumentError } from 'commander';
import type { RemoteDouble } from '../test/api-server/remote.ts';
import type { Manifest } from '../test/e2e/manifests.ts';
import { Random } from '../test/random.ts';
import type { LongWork } from './agent-monitor.ts';
import {
  type NodeWithApiServer,
  nftablesArguments,
  PORTWIDE,
  START_MS,
  withTlsApiServer,
} from './agents.ts';
import { apiEndpoints, apiNode, apiObjects } from './api-objects.ts';
import { endpointAddresses, spareAddress } from './cluster.ts';
import {
  type Flag,
  IN_NAMESPACES,
  numberFlag,
  printHead,
  repeat,
  runBench,
  runsFlag,
} from './harness.ts';
import { timeNewService, withAccepted } from './new-services.ts';
import { collect, connectPaths, noTimes, PATHS, type Path } from './packets.ts';
import { cpuSeconds, field, watchMemory } from './processes.ts';
import { now } from './reached.ts';
import { cell, percentiles, printRow, type TableRow } from './table.ts';

const LEGEND = `Each Service has one TCP port and one EndpointSlice, listed from an API server (a fake) over TLS. Start and restart: from
exec until both IP families are served; nft -f loads the same table. Resident: ten seconds after the start, or at the restart. Storm: 1,000 EndpointSlices of other Services get 100 new endpoints
each. Milliseconds of a change: from the write of a new Service's EndpointSlice until an endpoint accepts a connection.
Stalls: the longest turn of the event loop after the modules are loaded, in wall and CPU time. Netlink: the longest call,
until the event loop sees its end.`;

const MONITOR = fileURLToPath(new URL('agent-monitor.ts', import.meta.url));
const SEED = 1;
/** Milliseconds without changes before memory is measured. */
const SETTLE_MS = 10_000;
/** New Services before the storm. */
const ALONE = 30;
const WATCHED: readonly string[] = ['services', 'endpointslices'];
const STORM_SLICES = 1000;
const STORM_ENDPOINTS = 100;
const METRICS = 'http://127.0.0.1:10249/metrics';
const PENDING = 'kubeproxy_sync_proxy_rules_endpoint_changes_pending';

interface Shape {
  readonly services: number;
  readonly endpoints: number;
}

/** Seconds and MiB, without the commands that the agent runs. */
interface Start {
  readonly seconds: number;
  readonly cpu: number;
  readonly resident: number;
  readonly peak: number;
  readonly work: readonly LongWork[];
}

interface Storm {
  /** Milliseconds of each new Service. */
  readonly times: readonly number[];
  /** Seconds. */
  readonly cpu: number;
  readonly resident: number;
  /** Seconds by which the last write was late, because the API server did not keep up. */
  readonly late: number;
  /** Largest and last number of changes that wait. */
  readonly pending: readonly [number, number];
  readonly work: readonly LongWork[];
}

interface ScaleRun {
  readonly first: Start;
  readonly again: Start;
  readonly alone: readonly number[];
  readonly storm: Storm;
  readonly packets: Readonly<Record<Path, readonly number[]>>;
  /** Seconds. */
  readonly nft: number;
  /** Watches of Services and EndpointSlices that had to be opened again. */
  readonly watchesLost: number;
  readonly softLockups: number;
  /** Load average of the machine in the last five minutes. */
  readonly load: number;
}

const longest = (kind: LongWork['kind'], by: 'wall' | 'cpu', work: readonly LongWork[]) =>
  Math.max(0, ...work.filter((each) => each.kind === kind).map((each) => each[by]));

const START_ROWS: readonly TableRow<Start>[] = [
  [', s', ({ seconds }) => seconds, 2],
  [': CPU, s', ({ cpu }) => cpu, 2],
  [': resident, MiB', ({ resident }) => resident, 0],
  [': peak, MiB', ({ peak }) => peak, 0],
];
const WORK_ROWS: readonly TableRow<{ readonly work: readonly LongWork[] }>[] = [
  [': longest stall, ms', ({ work }) => longest('stall', 'wall', work), 0],
  [': longest stall, ms of CPU', ({ work }) => longest('stall', 'cpu', work), 0],
  [': longest netlink send, ms', ({ work }) => longest('send', 'wall', work), 0],
  [': longest netlink receive, ms', ({ work }) => longest('receive', 'wall', work), 0],
];
const STORM_ROWS: readonly TableRow<Storm>[] = [
  [': CPU, s', ({ cpu }) => cpu, 1],
  [': resident at the end, MiB', ({ resident }) => resident, 0],
  [': last write late, s', ({ late }) => late, 1],
  [': most changes waiting', ({ pending: [most] }) => most, 0],
  [': changes waiting at the end', ({ pending: [, last] }) => last, 0],
];

function* objectsOf({ services, endpoints }: Shape): Generator<Manifest> {
  for (let index = 0; index < services; index++) {
    const [service, slice] = apiObjects(index);
    yield service;
    yield { ...slice, endpoints: apiEndpoints(index, endpointAddresses(index, endpoints)) };
  }
  yield apiNode('node');
}

/** What the agent's monitor wrote, without work that began earlier. */
function workSince(file: string, since: number): LongWork[] {
  if (!existsSync(file)) return [];
  const lines = readFileSync(file, 'utf8').split('\n').filter(Boolean);
  return lines.map((line) => JSON.parse(line) as LongWork).filter(({ at }) => at >= since);
}

/** Starts an agent, and waits for some milliseconds after it has served. */
async function startAgent({ spawn }: NodeWithApiServer, directory: string, settle = 0) {
  const file = join(directory, 'work');
  rmSync(file, { force: true });
  const options = `${process.env.AGENT_NODE_OPTIONS ?? ''} --import=${MONITOR}`;
  const began = performance.now();
  const agent = spawn(PORTWIDE, nftablesArguments(directory), {
    env: { NODE_OPTIONS: options, AGENT_MONITOR: file },
  });
  const { pid, stdout } = agent;
  if (stdout === null || pid === undefined) throw new Error('the agent did not start');
  const memory = watchMemory(pid);
  const lines = createInterface({ input: stdout });
  await Promise.race([once(lines, 'line'), failAfter(START_MS)]);
  const loaded = now();
  let families = 0;
  const served = Promise.withResolvers<void>();
  lines.on('line', (line) => {
    if ((JSON.parse(line) as { msg?: string }).msg === 'serving' && ++families === 2)
      served.resolve();
  });
  await Promise.race([served.promise, failAfter(START_MS)]);
  const seconds = (performance.now() - began) / 1000;
  const cpu = cpuSeconds(pid);
  await sleep(settle);
  const { now: resident, peak } = memory.take();
  const start: Start = { seconds, cpu, resident, peak, work: workSince(file, loaded) };
  return { agent, pid, file, start };
}

async function failAfter(ms: number): Promise<never> {
  await sleep(ms, undefined, { ref: false });
  throw new Error(`the agent did not serve within ${ms} ms`);
}

async function measure(shape: Shape, seconds: number): Promise<ScaleRun> {
  return await withTlsApiServer(objectsOf(shape), async (node, directory) => {
    const { network, double } = node;
    const lockups = softLockups();
    const first = await startAgent(node, directory, SETTLE_MS);
    const packets = noTimes();
    collect(packets, await connectPaths(network, shape.services), (rounds) => rounds.flat());
    await stopAgent(first);
    const table = join(directory, 'table.nft');
    await saveTable(node, table);
    const listed = await countWatches(double);
    const again = await startAgent(node, directory);
    const random = new Random(SEED);
    const server = {
      put: async (...objects: readonly Manifest[]) => {
        await double.call('put', ...objects);
      },
    };
    const [alone, storm] = await withAccepted(network, async (reached) => {
      let added = shape.services;
      const addWhile = async (condition: () => boolean) => {
        const times: number[] = [];
        while (condition()) times.push(await timeNewService(added++, { server, reached, random }));
        return times;
      };
      const quiet = await addWhile(() => added < shape.services + ALONE);
      return [
        quiet,
        await measureStorm(node, again, { shape, seconds, addWhile, server }),
      ] as const;
    });
    const watchesLost = (await countWatches(double)) - listed - WATCHED.length;
    await stopAgent(again);
    const nft = await timeNft(node, table);
    return {
      first: first.start,
      again: again.start,
      alone,
      storm,
      packets,
      nft,
      watchesLost,
      softLockups: softLockups() - lockups,
      load: loadavg()[1] ?? 0,
    };
  });
}

async function stopAgent({ agent }: Awaited<ReturnType<typeof startAgent>>): Promise<void> {
  agent.kill('SIGTERM');
  await agent;
}

/** Watches so far of Services and EndpointSlices. */
async function countWatches(double: RemoteDouble): Promise<number> {
  const requests = await double.call('requests');
  return requests.filter(({ verb, resource }) => verb === 'watch' && WATCHED.includes(resource))
    .length;
}

interface StormSetUp {
  readonly shape: Shape;
  readonly seconds: number;
  readonly server: { put(...objects: readonly Manifest[]): Promise<void> };
  /** Adds Services while a condition holds. @returns the time of each, in milliseconds. */
  readonly addWhile: (condition: () => boolean) => Promise<number[]>;
}

async function measureStorm(
  { spawn }: NodeWithApiServer,
  { pid, file }: Awaited<ReturnType<typeof startAgent>>,
  { shape, seconds, server, addWhile }: StormSetUp,
): Promise<Storm> {
  const [began, before] = [now(), cpuSeconds(pid)];
  let isOver = false;
  const pending: number[] = [];
  const look = async () => {
    const { stdout } = await spawn('curl', ['-sS', METRICS]);
    const [, value] = new RegExp(`^${PENDING} (\\d+)`, 'm').exec(String(stdout)) ?? [];
    pending.push(Number(value));
  };
  const sampling = (async () => {
    while (!isOver) {
      await look();
      await sleep(2000);
    }
  })();
  const period = (seconds * 1000) / STORM_SLICES;
  let late = 0;
  const writing = (async () => {
    for (let made = 0; made < STORM_SLICES; made++) {
      const wait = began + made * period - now();
      late = Math.max(0, -wait / 1000);
      await sleep(Math.max(0, wait));
      const index = Math.floor((made * shape.services) / STORM_SLICES);
      const addresses = Array.from({ length: STORM_ENDPOINTS }, (_, number) =>
        spareAddress(made * STORM_ENDPOINTS + number),
      );
      const [, slice] = apiObjects(index);
      await server.put({ ...slice, endpoints: apiEndpoints(index, addresses) });
    }
    isOver = true;
  })();
  const [times] = await Promise.all([addWhile(() => !isOver), writing, sampling]);
  const cpu = cpuSeconds(pid) - before;
  await sleep(1000);
  await look();
  return {
    times,
    cpu,
    late,
    resident: field(pid, 'VmRSS'),
    pending: [Math.max(...pending), pending.at(-1) ?? 0],
    work: workSince(file, began),
  };
}

async function saveTable({ spawn }: NodeWithApiServer, file: string): Promise<void> {
  const lists = ['ip', 'ip6'].map((family) => `nft list table ${family} portwide >>${file}`);
  await spawn('sh', ['-euc', lists.join('; ')]);
}

/** Replaces the table by a saved one. @returns seconds to load it */
async function timeNft({ spawn }: NodeWithApiServer, file: string): Promise<number> {
  for (const family of ['ip', 'ip6']) await spawn('nft', ['delete', 'table', family, 'portwide']);
  const began = performance.now();
  await spawn('nft', ['-f', file]);
  return (performance.now() - began) / 1000;
}

function softLockups(): number {
  return ['softlockup_count', 'rcu_stall_count', 'hardlockup_count'].reduce((sum, name) => {
    const path = `/sys/kernel/${name}`;
    return sum + (existsSync(path) ? Number(readFileSync(path, 'utf8')) : 0);
  }, 0);
}

function printShape({ services, endpoints }: Shape, runs: readonly ScaleRun[]): void {
  const row = (what: string, value: string) => printRow(`${services} × ${endpoints}`, what, value);
  const rows = <Part>(name: string, parts: readonly Part[], each: readonly TableRow<Part>[]) => {
    for (const [what, of, digits] of each) row(name + what, cell(parts.map(of), digits));
  };
  for (const [name, part] of [
    ['start', 'first'],
    ['restart', 'again'],
  ] as const) {
    const starts = runs.map((run) => run[part]);
    rows(name, starts, START_ROWS);
    rows(name, starts, WORK_ROWS);
  }
  rows('nft -f', runs, [
    [', s', ({ nft }) => nft, 2],
    [': start, times as long', ({ first, nft }) => first.seconds / nft, 2],
  ]);
  row(
    'a change alone, ms',
    percentiles(
      runs.flatMap(({ alone }) => alone),
      1,
    ),
  );
  const storms = runs.map(({ storm }) => storm);
  row(
    'a change in the storm, ms',
    percentiles(
      storms.flatMap(({ times }) => times),
      1,
    ),
  );
  rows('storm', storms, STORM_ROWS);
  rows('storm', storms, WORK_ROWS);
  for (const path of ['first', 'last', 'random', 'direct'] as const) {
    const times = runs.flatMap(({ packets }) => packets[path]);
    row(`new connection ${PATHS[path]}, µs`, percentiles(times, 1));
  }
  rows('', runs, [
    ['watches lost', ({ watchesLost }) => watchesLost, 0],
    ['soft lockups and RCU stalls', (run) => run.softLockups, 0],
    ['load of the machine', ({ load }) => load, 1],
  ]);
}

const shapesFlag: Flag<readonly Shape[]> = {
  help: `SERVICESxENDPOINTS of each, at most ${STORM_ENDPOINTS} endpoints, separated by commas`,
  read: (text) =>
    text.split(',').map((shape) => {
      const [services = 0, endpoints = 0] = shape.split('x').map(Number);
      if (services >= STORM_SLICES && endpoints >= 1 && endpoints <= STORM_ENDPOINTS)
        return { services, endpoints };
      throw new InvalidArgumentError(`Expected such as 5000x50, not ${shape}`);
    }),
  normal: '10000x10,30000x10,44000x2,5000x50',
  presets: { quick: '1000x10' },
};

await runBench({
  name: 'scale',
  where: `${IN_NAMESPACES} Needs curl. AGENT_NODE_OPTIONS are options of Node.js for the agent, such as --cpu-prof.`,
  flags: {
    shapes: shapesFlag,
    seconds: numberFlag('duration of the storm', '60', { quick: '10' }),
    runs: runsFlag('3', { quick: '1' }),
  },
  run: async ({ shapes, seconds, runs }) => {
    printHead(LEGEND);
    console.log('| Services × endpoints | what | |\n|---|---|---:|');
    const results = new Map(shapes.map((shape) => [shape, [] as ScaleRun[]]));
    for (let run = 1; run <= runs; run++) {
      for (const [shape, measured] of results) {
        const what = `${shape.services} × ${shape.endpoints}`;
        measured.push(...(await repeat(1, what, () => measure(shape, seconds))));
      }
    }
    for (const [shape, measured] of results) printShape(shape, measured);
  },
});
