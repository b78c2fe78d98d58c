/**
 * Measures the whole `portwide dns` process, bundled as in the image, queried over UDP and TCP from
 * another network namespace. Server and client have one CPU each if there are two. Results go to
 * standard output as Markdown, progress to standard error.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { RemoteDouble } from '../test/api-server/remote.ts';
import { largeSlice, type Manifest } from '../test/e2e/manifests.ts';
import { runIn } from '../test/lab/processes.ts';
import { PORTWIDE } from '../test/portwide.ts';
import { logged } from './agents.ts';
import { apiObjects } from './api-objects.ts';
import { ENDPOINTS, TARGET_PORT } from './cluster.ts';
import type { DnsLoad, DnsReport } from './dns-client.ts';
import { askDns, QUESTIONS, type QuestionGenerator, questionsOf } from './dns-load.ts';
import {
  IN_NAMESPACES,
  numberFlag,
  printHead,
  repeat,
  runBench,
  runsFlag,
  servicesFlag,
} from './harness.ts';
import { NODE_ADDRESS, withNetwork } from './network.ts';
import { cpuSeconds, schedule, watchMemory } from './processes.ts';
import { cell, printRow, type TableRow } from './table.ts';

/** Target queries per second for one core. */
const GOAL = 20_000;
/** Number of headless Services, in addition to the ordinary Services. */
const HEADLESS = 100;
const AT_A_TIME = 64;
const CONNECTIONS = 10;

const LEGEND = `Queries have an OPT record and ask for 2,000 names in turn. "Answers a second" is with ${AT_A_TIME} queries in flight
from one client. CPU is the CPU time of the server process per query, including all threads and its time in the
kernel; "answers of one core" is one second divided by CPU. The client measures the times; they include its event loop.
Values are medians, with minimum and maximum.`;

interface Run {
  readonly report: DnsReport;
  /** Microseconds of CPU per query. */
  readonly cpu: number;
}

const KINDS: Readonly<Record<string, QuestionGenerator>> = {
  ...QUESTIONS,
  [`A of a headless Service with ${ENDPOINTS} endpoints`]: (index) => [
    `headless-${index % HEADLESS}.default.svc.cluster.local`,
    'A',
  ],
};
const MIX = Object.values(KINDS);

const CPU: TableRow<Run> = ['CPU, µs', ({ cpu }) => cpu, 1];
const MOST: TableRow<Run> = ['– answers a second', ({ report }) => report.rate, 0];
const GOAL_ROWS: readonly TableRow<Run>[] = [
  [`– ${GOAL} a second: share of a core, %`, ({ cpu }) => (cpu * GOAL) / 1e4, 0],
  ['– p50, ms', ({ report }) => report.p50, 2],
  ['– p99, ms', ({ report }) => report.p99, 2],
  ['– longest, ms', ({ report }) => report.longest, 2],
  ['– lost', ({ report }) => report.lost, 0],
];

async function measureAll(
  services: number,
  runs: number,
  seconds: number,
  measure: Measure,
): Promise<void> {
  const rows = async (
    what: string,
    load: Pick<DnsLoad, 'rate' | 'atATime' | 'connections'>,
    kinds: readonly QuestionGenerator[],
    each: readonly TableRow<Run>[],
  ) => {
    const once = () => measure({ ...load, questions: questionsOf(services, kinds), seconds });
    const results = await repeat(runs, what || `${GOAL} a second`, once);
    for (const [name, value, digits] of each) {
      const title = name === CPU[0] ? `${what}: ${name}` : name;
      printRow(title, cell(results.map(value), digits));
    }
  };
  const atATime = AT_A_TIME;
  // Warm up: code that has run before is faster.
  await measure({ atATime, questions: questionsOf(services, MIX), seconds });
  for (const [title, kind] of Object.entries(KINDS)) await rows(title, { atATime }, [kind], [CPU]);
  const answers: TableRow<Run> = ['– answers of one core, a second', ({ cpu }) => 1e6 / cpu, 0];
  await rows('all kinds in turn', { atATime }, MIX, [CPU, answers, MOST]);
  await rows('', { rate: GOAL }, MIX, GOAL_ROWS);
  for (const [what, connections] of [
    [`${CONNECTIONS} connections with several queries in flight`, CONNECTIONS],
    [`${AT_A_TIME} connections with one query in flight`, AT_A_TIME],
  ] as const) {
    const title = `all in turn over TCP, ${what}`;
    await rows(title, { atATime, connections }, MIX, [CPU, MOST]);
  }
}

type Measure = (load: Omit<DnsLoad, 'server'>) => Promise<Run>;

async function withServer(
  services: number,
  use: (measure: Measure, memory: () => { now: number }) => Promise<void>,
): Promise<void> {
  const directory = mkdtempSync(join(tmpdir(), 'portwide-bench-dns-'));
  writeFileSync(join(directory, 'objects.json'), JSON.stringify(objects(services)));
  try {
    await withNetwork(async (network) => {
      const node = runIn('node', network.node);
      try {
        const flags = ['--manifests', directory, `--bind-address=${NODE_ADDRESS}`];
        const server = node.spawn('taskset', ['-c', '0', PORTWIDE, 'dns', ...flags]);
        const { pid, stdout } = server;
        if (pid === undefined || stdout === null) throw new Error('the server did not start');
        const memory = watchMemory(pid);
        await logged(stdout, 'serving', 1);
        await use(async (load) => {
          const before = cpuSeconds(pid);
          const request: DnsLoad = { ...load, server: NODE_ADDRESS };
          const report = await askDns(network.client, request);
          const cpu = ((cpuSeconds(pid) - before) * 1e6) / (report.sent - report.lost);
          if (report.failed > 0) throw new Error(`${report.failed} queries failed`);
          return { report, cpu };
        }, memory.take);
      } finally {
        await node.stop();
      }
    });
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

/** Ordinary Services, and headless Services with endpoints. */
function objects(services: number): Manifest {
  const ordinary = Array.from({ length: services }, (_, index) => apiObjects(index)[0]);
  const headless = Array.from({ length: HEADLESS }, (_, index) =>
    apiObjects(services + index, `headless-${index}`),
  );
  return { apiVersion: 'v1', kind: 'List', items: [...ordinary, ...headless.flat()] };
}

/** Slices and endpoints of the Service that arrives and goes. */
const SLICES = 1000;
const PER_SLICE = 100;
/** Slices that are written at a time; the server watches each one as an event. */
const CHUNK = 10;
/** Queries per second meanwhile. */
const RATE = 1000;

function manySlices(): Manifest[] {
  return Array.from({ length: SLICES }, (_, index) =>
    largeSlice('many', index, PER_SLICE, TARGET_PORT),
  );
}

/** Answers for other names while a headless Service gets all its slices, and while it loses them. */
async function measureArrival(seconds: number): Promise<void> {
  await withNetwork(async (network) => {
    const node = runIn('node', network.node);
    try {
      const double = await RemoteDouble.start((file, args, options) =>
        node.spawn('taskset', ['-c', '1', file, ...args], options),
      );
      await double.call('put', ...apiObjects(0), apiObjects(1, 'many')[0]);
      const flags = [`--master=${double.url}`, `--bind-address=${NODE_ADDRESS}`];
      const { pid, stdout } = node.spawn('taskset', ['-c', '0', PORTWIDE, 'dns', ...flags]);
      if (pid === undefined || stdout === null) throw new Error('the server did not start');
      await logged(stdout, 'serving', 1);
      const slices = manySlices();
      const questions = questionsOf(1, [QUESTIONS['A of a Service']]);
      const during = async (what: string, call: 'put' | 'delete') => {
        const asked = askDns(network.client, {
          server: NODE_ADDRESS,
          questions,
          seconds,
          rate: RATE,
        });
        const begun = performance.now();
        const before = schedule(pid);
        for (let from = 0; from < SLICES; from += CHUNK) {
          await double.call(call, ...slices.slice(from, from + CHUNK));
        }
        printRow(`${what}: written in, s`, cell([(performance.now() - begun) / 1000], 1));
        const { p50, p99, longest, lost } = await asked;
        const after = schedule(pid);
        printRow('– CPU of the server, s', cell([(after.ran - before.ran) / 1e9], 1));
        printRow('– it waited for a core, s', cell([(after.waited - before.waited) / 1e9], 1));
        for (const [title, value] of Object.entries({ p50, p99, longest }))
          printRow(`– ${title}, ms`, cell([value], 2));
        printRow('– lost', cell([lost], 0));
      };
      console.log(
        `| ${SLICES} slices of ${PER_SLICE} endpoints, ${RATE} other queries a second | |`,
      );
      console.log('|---|---:|');
      await during('slices arrive', 'put');
      await during('slices go', 'delete');
    } finally {
      await node.stop();
    }
  });
}

await runBench({
  name: 'dns',
  where: IN_NAMESPACES,
  flags: {
    services: servicesFlag('10000', {}),
    runs: runsFlag('3', { quick: '1' }),
    seconds: numberFlag('duration of each measurement', '5', { quick: '2' }),
  },
  run: async ({ services: sizes, runs, seconds }) => {
    printHead(LEGEND);
    await measureArrival(seconds);
    for (const services of sizes) {
      console.log(`| ${services} Services | |\n|---|---:|`);
      await withServer(services, async (measure, memory) => {
        await measureAll(services, runs, seconds, measure);
        printRow('memory after all of this, MiB', cell([memory().now], 0));
      });
    }
  },
});
