/**
 * Measures `portwide dns`, the whole process, bundled as in the image, asked over UDP and TCP from another network namespace. Server and
 * client have a processor each, where there are two. Results go to standard output as Markdown,
 * progress to standard error.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, cpus, release, tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { parseArgs } from 'node:util';
import { runIn } from '../test/lab/processes.ts';
import { waitFor } from '../test/lab/wait.ts';
import { PORTWIDE } from '../test/portwide.ts';
import { cpuSeconds } from './cpu.ts';
import type { DnsLoad, DnsReport } from './dns-client.ts';
import { askDns } from './dns-load.ts';
import { watchMemory } from './memory.ts';
import { withNetwork } from './network.ts';
import { cell } from './table.ts';

const USAGE = `Usage: node bench/dns.ts [--services 10000] [--runs N] [--quick]

  --services  how many Services there are (default 10000)
  --runs      how often each is measured (default 3)
  --quick     one run of each, and shorter

Needs root. Works in network namespaces of its own.`;

/** Queries a second that a core is to answer. */
const GOAL = 20_000;
/** Of which every hundredth is headless, with so many endpoints. */
const ENDPOINTS = 10;
const AT_A_TIME = 64;
const CONNECTIONS = 10;
const SERVER = '10.255.0.1';
const START_MS = 120_000;

const LEGEND = `Queries have an OPT record and ask for 2,000 names by turns. "Most" is with ${AT_A_TIME} queries under way at a time, from one
client. CPU is that of the server's process, all threads and the kernel's work for it included; what a core
answers is a second divided by that. Times are as the client sees them, its own event loop included.
Medians, with the least and the greatest.`;

interface Run {
  readonly report: DnsReport;
  /** Microseconds of CPU for each query. */
  readonly cpu: number;
}

type Question = (index: number) => readonly [string, string];

const web = (index: number) => `svc-${index}.default.svc.cluster.local`;
const KINDS: Readonly<Record<string, Question>> = {
  'A of a Service': (index) => [web(index), 'A'],
  'AAAA of a Service that has none': (index) => [web(index), 'AAAA'],
  'a name that is not there': (index) => [`${web(index)}.default.svc.cluster.local`, 'A'],
  SRV: (index) => [`_http._tcp.${web(index)}`, 'SRV'],
  [`A of a headless Service with ${ENDPOINTS} endpoints`]: (index) => [
    `headless-${index % 100}.default.svc.cluster.local`,
    'A',
  ],
};
/** One after the other. */
const MIX: Question = (index) => {
  const kinds = Object.values(KINDS);
  const kind = kinds[index % kinds.length] ?? kinds[0];
  return kind?.(index) ?? ['', 'A'];
};

async function main(services: number, runs: number, seconds: number): Promise<void> {
  const processor = `${availableParallelism()} cores (${cpus()[0]?.model ?? 'unknown'})`;
  console.log(`Linux ${release()}, ${processor}, Node ${process.version}\n\n${LEGEND}\n`);
  console.log(`| ${services} Services | |\n|---|---:|`);
  await withServer(services, async (measure, memory) => {
    const questions = (of: Question) =>
      Array.from({ length: 2000 }, (_, count) => of((count * 7919) % services));
    const repeat = async (
      what: string,
      load: Pick<DnsLoad, 'rate' | 'atATime' | 'connections'>,
      of: Question,
    ) => {
      const results: Run[] = [];
      for (let run = 1; run <= runs; run++) {
        results.push(await measure({ ...load, questions: questions(of), seconds }));
        console.error(`${what}: run ${run} of ${runs}: ${JSON.stringify(results.at(-1))}`);
      }
      return results;
    };
    const row = (what: string, values: readonly number[], digits: number) =>
      console.log(`| ${what} | ${cell(values, digits)} |`);
    // Code that has run before is faster.
    await measure({ atATime: AT_A_TIME, questions: questions(MIX), seconds });
    for (const [kind, of] of Object.entries(KINDS)) {
      const results = await repeat(kind, { atATime: AT_A_TIME }, of);
      row(
        `${kind}: CPU, µs`,
        results.map(({ cpu }) => cpu),
        1,
      );
    }
    const most = await repeat('all by turns', { atATime: AT_A_TIME }, MIX);
    row(
      'all of these by turns: CPU, µs',
      most.map(({ cpu }) => cpu),
      1,
    );
    row(
      '– what a core answers by that, a second',
      most.map(({ cpu }) => 1e6 / cpu),
      0,
    );
    row(
      '– most, a second',
      most.map(({ report }) => report.rate),
      0,
    );
    const goal = await repeat(`${GOAL} a second`, { rate: GOAL }, MIX);
    row(
      `– ${GOAL} a second: share of a core, %`,
      goal.map(({ cpu }) => (cpu * GOAL) / 1e4),
      0,
    );
    for (const time of ['p50', 'p99', 'longest'] as const) {
      row(
        `– ${time}, ms`,
        goal.map(({ report }) => report[time]),
        2,
      );
    }
    row(
      '– lost',
      goal.map(({ report }) => report.lost),
      0,
    );
    for (const [what, connections] of [
      [`${CONNECTIONS} connections with several queries under way`, CONNECTIONS],
      [`${AT_A_TIME} connections with one`, AT_A_TIME],
    ] as const) {
      const overTcp = await repeat(what, { atATime: AT_A_TIME, connections }, MIX);
      row(
        `all by turns over TCP, ${what}: CPU, µs`,
        overTcp.map(({ cpu }) => cpu),
        1,
      );
      row(
        '– most, a second',
        overTcp.map(({ report }) => report.rate),
        0,
      );
    }
    const { now } = memory();
    row('memory after all of this, MiB', [now], 0);
  });
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
      const client = runIn('client', network.client);
      try {
        const flags = ['--manifests', directory, `--bind-address=${SERVER}`];
        const server = node.spawn('taskset', ['-c', '0', PORTWIDE, 'dns', ...flags]);
        const { pid, stdout } = server;
        if (pid === undefined || stdout === null) throw new Error('the server did not start');
        const memory = watchMemory(pid);
        let serves = false;
        createInterface({ input: stdout }).on('line', (line) => {
          serves ||= (JSON.parse(line) as { msg?: string }).msg === 'serving';
        });
        await waitFor('it serves', () => serves, START_MS);
        await use(async (load) => {
          const before = cpuSeconds(pid);
          const request: DnsLoad = { ...load, server: SERVER };
          const report = await askDns(network.client, request);
          const cpu = ((cpuSeconds(pid) - before) * 1e6) / (report.sent - report.lost);
          if (report.failed > 0) throw new Error(`${report.failed} queries failed`);
          return { report, cpu };
        }, memory.take);
      } finally {
        await Promise.all([node.stop(), client.stop()]);
      }
    });
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

function objects(services: number) {
  const address = (first: number, index: number) =>
    `10.${first + (index >> 16)}.${(index >> 8) & 255}.${index & 255}`;
  const metadata = (name: string) => ({ name, namespace: 'default' });
  const ordinary = Array.from({ length: services }, (_, index) => ({
    apiVersion: 'v1',
    kind: 'Service',
    metadata: metadata(`svc-${index}`),
    spec: { clusterIP: address(96, index), ports: [{ name: 'http', port: 80 }] },
  }));
  const headless = Array.from({ length: 100 }, (_, index) => [
    {
      apiVersion: 'v1',
      kind: 'Service',
      metadata: metadata(`headless-${index}`),
      spec: { clusterIP: 'None', ports: [{ name: 'http', port: 80 }] },
    },
    {
      apiVersion: 'discovery.k8s.io/v1',
      kind: 'EndpointSlice',
      metadata: {
        ...metadata(`headless-${index}-1`),
        labels: { 'kubernetes.io/service-name': `headless-${index}` },
      },
      addressType: 'IPv4',
      ports: [{ name: 'http', port: 80 }],
      endpoints: Array.from({ length: ENDPOINTS }, (__, endpoint) => ({
        addresses: [address(128, index * ENDPOINTS + endpoint)],
      })),
    },
  ]);
  return { apiVersion: 'v1', kind: 'List', items: [...ordinary, ...headless.flat()] };
}

function readFlags(args: readonly string[]): Parameters<typeof main> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      services: { type: 'string', default: '10000' },
      runs: { type: 'string' },
      quick: { type: 'boolean', default: false },
    },
  });
  const services = Number(values.services);
  const runs = Number(values.runs ?? (values.quick ? 1 : 3));
  for (const number of [services, runs]) {
    if (!Number.isInteger(number) || number < 1) throw new TypeError(`not a number: ${number}`);
  }
  return [services, runs, values.quick ? 2 : 5];
}

let flags: Parameters<typeof main> | undefined;
try {
  flags = readFlags(process.argv.slice(2));
} catch (error) {
  console.error(`${error instanceof Error ? error.message : error}\n\n${USAGE}`);
  process.exitCode = 2;
}
if (flags !== undefined) await main(...flags);
