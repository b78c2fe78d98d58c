/** Measures a whole agent and its status API in the current network namespace. */
import { type ChildProcess, spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { Agent, createServer, get } from 'node:http';
import { constants, setPriority, tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { watchNftables } from '../netlink/nftables/watch.ts';
import type { SyncReport } from '../proxier/family-proxier.ts';
import { ChangeLog } from '../status/change-log.ts';
import { SeriesRecorder } from '../status/series.ts';
import { ApiServerDouble } from '../test/api-server/double.ts';
import type { Manifest } from '../test/e2e/manifests.ts';
import { manifestOf } from '../test/e2e/policy-random/manifests.ts';
import { clusterObjects, logged, PORTWIDE } from './agents.ts';
import { apiObjects } from './api-objects.ts';
import { POD_CIDR, serviceName, spareAddress } from './cluster.ts';
import { serve } from './jobs.ts';
import { policyCluster } from './policy-cluster.ts';
import { cpuNanoseconds } from './processes.ts';

export type StatusJobs = typeof jobs;

/** Times of changes in milliseconds: of the sync, and from the change at the API server until the kernel has it. */
interface ChangeTimes {
  readonly sync: number[];
  readonly kernel: number[];
}

/** What a client got. */
export interface LoadReport {
  /** Requests sent a second. */
  readonly rate: number;
  readonly answered: number;
  /** Answers with status 503. */
  readonly refused: number;
}

const SYNC: SyncReport = {
  family: 'IPv4',
  full: false,
  changed: true,
  seconds: 0.001,
  applySeconds: 0.001,
  written: 1,
  rulesWritten: undefined,
  conntrackSeconds: undefined,
  deletedFlows: 0,
  conntrackError: undefined,
  healthChanges: [],
  localhostNodePorts: [],
  triggerTimes: [],
  services: new Set(),
};

interface TrafficOptions {
  readonly services: number;
  readonly seconds: number;
  readonly rounds: number;
}

interface LoadOptions {
  readonly rate: number;
  readonly services: number;
  /** Host and port of the server. */
  readonly address: string;
}

interface IdleOptions {
  readonly services: number;
  readonly seconds: number;
  /** Whether the agent serves the status API. */
  readonly isOn: boolean;
}

/** Namespace `team-0` has 40 of the pods on this node. */
const POLICIES = { pods: 2000, policies: 200, local: 200 };
const ADDRESS = '127.0.0.1:10270';
/** A server in another process, which refuses all requests. */
const ELSEWHERE = '127.0.0.1:10271';
/** Another directory than that of an agent of this machine. */
const SOCKET = join(tmpdir(), `portwide-bench-${process.pid}`, 'status.sock');
const NO_STATUS = ['--status-bind-address=none', '--status-socket=none'];
/** Milliseconds between two changes: more than the agent's minimum between two syncs. */
const CHANGE_PERIOD = 150;
/** Seconds after the start in which the agent compiles code and collects garbage. */
const SETTLE_SECONDS = 5;
const CONNECTIONS = 256;
/** As `portwide top`. */
const TOP_PERIOD_MS = 2000;
/** Sampling ends 15 seconds after the last look. */
const AFTER_LOOK_MS = 17_000;

/** Syncs of one changed Service, in turns without requests, with `rate` requests a second to another process, and to the agent. */
async function syncs(options: {
  readonly services: number;
  readonly rate: number;
  readonly rounds: number;
  readonly changes: number;
}) {
  const { services, rate, rounds, changes } = options;
  const { double, agent, stop } = await startAgent(
    services,
    [`--status-bind-address=${ADDRESS}`, '--status-socket=none', '--network-policy'],
    policyCluster(POLICIES).map(manifestOf),
  );
  if (agent.stdout === null) throw new Error('the agent has no output');
  let onSynced = (_: number) => {};
  createInterface({ input: agent.stdout }).on('line', (line) => {
    const { msg, family, seconds } = JSON.parse(line) as Record<string, unknown>;
    if (msg === 'synced' && family === 'IPv4') onSynced(Number(seconds) * 1000);
  });
  let onKernel = () => {};
  const watch = watchNftables({
    onChange: () => onKernel(),
    onOverrun: (error) => {
      throw error;
    },
  });
  let spare = 0;
  const change = async (times: ChangeTimes) => {
    const synced = new Promise<number>((resolve) => {
      onSynced = resolve;
    });
    const written = new Promise<void>((resolve) => {
      onKernel = resolve;
    });
    spare += 1;
    const started = performance.now();
    double.put(changedSlice(spare % services, spare));
    await written;
    times.kernel.push(performance.now() - started);
    times.sync.push(await synced);
  };
  const round = async (times: ChangeTimes) => {
    for (let made = 0; made < changes; made++) {
      await change(times);
      // Not in step with timers of the agent or of the client.
      await sleep(CHANGE_PERIOD + Math.random() * 20);
    }
  };
  const quiet: ChangeTimes = { sync: [], kernel: [] };
  const elsewhere: ChangeTimes = { sync: [], kernel: [] };
  const loaded: ChangeTimes = { sync: [], kernel: [] };
  const loads: LoadReport[] = [];
  const cpus: number[] = [];
  const target = startJob('refuse', {});
  await round({ sync: [], kernel: [] });
  for (let turn = 0; turn < rounds; turn++) {
    await round(quiet);
    for (const [address, times] of [
      [ELSEWHERE, elsewhere],
      [ADDRESS, loaded],
    ] as const) {
      const client = startLoad(rate, services, address);
      // The first requests load the code of the status API.
      await sleep(SETTLE_SECONDS * 1000);
      const cpu = await cpuShare(agent, () => round(times));
      const report = await client.stop();
      if (address === ADDRESS) {
        cpus.push(cpu);
        loads.push(report);
      }
      await sleep(1000);
    }
  }
  await watch.close();
  target.kill('SIGKILL');
  await stop();
  return { quiet, elsewhere, loaded, loads, cpus };
}

/** Share of a core that an agent uses without requests and changes. */
async function idle({ services, seconds, isOn }: IdleOptions) {
  const on = [`--status-bind-address=${ADDRESS}`, `--status-socket=${SOCKET}`];
  const { agent, stop } = await startAgent(services, isOn ? on : NO_STATUS);
  await sleep(SETTLE_SECONDS * 1000);
  const share = await cpuShare(agent, () => sleep(seconds * 1000));
  await stop();
  return share;
}

/** Sends `rate` requests a second, of mixed resources, until standard input ends. */
async function load({ rate, services, address }: LoadOptions) {
  // The client shares the machine with the agent.
  setPriority(constants.priority.PRIORITY_LOW);
  const connections = new Agent({ keepAlive: true, maxSockets: CONNECTIONS });
  const host = `http://${address}/api/v1`;
  const started = performance.now();
  let sent = 0;
  let answered = 0;
  let refused = 0;
  const next = () => {
    sent += 1;
    const detail = `/services/default/${serviceName(sent % services)}`;
    const paths = ['/services', detail, '/status', '/diff', '/access?namespace=team-0'];
    const path = paths[sent % paths.length];
    get(`${host}${path}`, { agent: connections }, (response) => {
      response.resume();
      if (response.statusCode === 503) refused += 1;
      else answered += 1;
    }).on('error', () => {});
  };
  const timer = setInterval(() => {
    const due = ((performance.now() - started) / 1000) * rate;
    while (sent < due) next();
  }, 2);
  await new Promise((resolve) => process.once('SIGTERM', resolve));
  clearInterval(timer);
  const seconds = (performance.now() - started) / 1000;
  return { rate: sent / seconds, answered: answered / seconds, refused: refused / seconds };
}

/** Refuses all requests until it is killed. */
async function refuse(_: object) {
  const server = createServer((_, response) => response.writeHead(503).end());
  server.listen(Number(ELSEWHERE.split(':')[1]), '127.0.0.1');
  await new Promise(() => {});
}

function startJob(name: keyof StatusJobs, options: object) {
  const child = spawn(process.execPath, [fileURLToPath(import.meta.url), name], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  child.stdin.end(JSON.stringify(options));
  return child;
}

function startLoad(
  rate: number,
  services: number,
  address: string,
): { stop(): Promise<LoadReport> } {
  const child = startJob('load', { rate, services, address } satisfies LoadOptions);
  let output = '';
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text;
  });
  const ended = new Promise((resolve) => child.once('close', resolve));
  return {
    stop: async () => {
      child.kill('SIGTERM');
      await ended;
      return JSON.parse(output) as LoadReport;
    },
  };
}

/** Starts an agent in mode nftables with an API server in this process, and waits until it serves. */
async function startAgent(
  services: number,
  flags: readonly string[],
  objects: readonly Manifest[] = [],
) {
  const double = new ApiServerDouble();
  double.put(...clusterObjects(services), ...objects);
  await double.listen(0);
  const common = ['run', `--master=${double.url}`, '--hostname-override=node', '-v=3'];
  const agent = spawn(
    PORTWIDE,
    [...common, `--cluster-cidr=${POD_CIDR}`, '--proxy-mode=nftables', ...flags],
    {
      stdio: ['ignore', 'pipe', 'inherit'],
    },
  );
  await Promise.all([
    logged(agent.stdout, 'serving', 2),
    ...(objects.length > 0 ? [logged(agent.stdout, 'enforcing network policies', 2)] : []),
  ]);
  const stop = async () => {
    const ended = new Promise((resolve) => agent.once('exit', resolve));
    agent.kill('SIGKILL');
    await ended;
    await double.close();
  };
  return { double, agent, stop };
}

/** Share of a core that a process uses. */
async function cpuShare({ pid = 0 }: ChildProcess, during: () => Promise<unknown>) {
  const [cpu, started] = [cpuNanoseconds(pid), performance.now()];
  await during();
  return (cpuNanoseconds(pid) - cpu) / ((performance.now() - started) * 1e6);
}

/** The EndpointSlice of a Service, with another last endpoint. */
function changedSlice(index: number, spare: number) {
  const [, slice] = apiObjects(index);
  const endpoints = structuredClone(slice.endpoints as { addresses: string[] }[]);
  endpoints.at(-1)?.addresses.splice(0, 1, spareAddress(spare));
  return { ...slice, endpoints };
}

/** Heap in bytes of what an agent remembers for the status API, when it is full. */
async function memory(_: object) {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const used = () => {
    collect();
    const { heapUsed, arrayBuffers } = process.memoryUsage();
    return heapUsed + arrayBuffers;
  };
  const before = used();
  const series = new SeriesRecorder();
  const sample = { conntrackEntries: 1, services: 1, endpoints: 1, cpuSeconds: 1, memory: 1 };
  for (let at = 1; at <= 1000; at++) series.add({ ...sample, syncs: at, syncSeconds: 0.1 }, at);
  const after = used();
  const changes = fullChangeLog();
  const all = used();
  return { series: after - before, changes: all - after, kept: [series, changes].length };
}

/** 500 changes that name 20 Services each, with names of 60 characters that nothing else has. */
function fullChangeLog(): ChangeLog {
  const log = new ChangeLog();
  for (let change = 0; change < 1000; change++) {
    const services = Array.from({ length: 30 }, (_, index) =>
      Buffer.from(`default/${change}-${index}`.padEnd(60, 'x')).toString(),
    );
    log.synced({ ...SYNC, services: new Set(services) }, 1.5, change + 0.5);
  }
  return log;
}

/** What a client looks at. */
const LOOKS = ['nothing', 'top', 'flows', 'flows of one Service'] as const;
type Look = (typeof LOOKS)[number];

/** Share of a core that an agent uses while a client looks, and what the client gets, in turns. */
async function traffic({ services, seconds, rounds }: TrafficOptions) {
  const netfilter = '/proc/sys/net/netfilter/nf_conntrack';
  writeFileSync(`${netfilter}_acct`, '1');
  const { agent, stop } = await startAgent(services, [
    `--status-bind-address=${ADDRESS}`,
    '--status-socket=none',
  ]);
  const looks: { look: Look; share: number; linesPerSecond: number }[] = [];
  for (let turn = 0; turn < rounds; turn++) {
    for (const look of LOOKS) {
      const viewer = view(look);
      await sleep(SETTLE_SECONDS * 1000);
      viewer.takeLines();
      const share = await cpuShare(agent, () => sleep(seconds * 1000));
      looks.push({ look, share, linesPerSecond: viewer.takeLines() / seconds });
      viewer.stop();
      if (look === 'top') await sleep(AFTER_LOOK_MS);
    }
  }
  await stop();
  return looks;
}

/** Looks as a command does. `takeLines` returns the number of flows since its last call. */
function view(look: Look): { takeLines(): number; stop(): void } {
  const url = `http://${ADDRESS}/api/v1`;
  const read = (path: string, onLine: () => void) => {
    const request = get(`${url}/${path}`, (response) => {
      const lines = createInterface(response.on('error', () => {}));
      lines.on('line', onLine).on('error', () => {});
    });
    return request.on('error', () => {});
  };
  let count = 0;
  const takeLines = () => {
    const taken = count;
    count = 0;
    return taken;
  };
  const onLine = () => {
    count += 1;
  };
  if (look === 'nothing') return { takeLines, stop: () => {} };
  if (look === 'top') {
    const timer = setInterval(() => read('top?by=service&limit=20', () => {}), TOP_PERIOD_MS);
    return { takeLines, stop: () => clearInterval(timer) };
  }
  const filter = look === 'flows' ? '' : `?service=default/${serviceName(0)}`;
  const stream = read(`flows${filter}`, onLine);
  return { takeLines, stop: () => stream.destroy() };
}

const jobs = { syncs, idle, load, refuse, memory, traffic };
await serve(jobs);
