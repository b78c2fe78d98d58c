/**
 * Measures the memory of `portwide dns` with an API server, bundled as in the image: idle, after
 * many queries over UDP and TCP, and idle again. CoreDNS gets the same load if the variable COREDNS
 * names its binary, or if `coredns` is in the PATH. Results go to standard output as Markdown, progress to standard
 * error.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { execa } from 'execa';
import { PORTWIDE } from '../test/portwide.ts';
import { clusterServices, withTlsApiServer } from './agents.ts';
import type { DnsLoad } from './dns-client.ts';
import { askDns, QUESTIONS, questionsOf } from './dns-load.ts';
import {
  IN_NAMESPACES,
  numberFlag,
  printHead,
  repeat,
  runBench,
  runsFlag,
  servicesFlag,
} from './harness.ts';
import { NODE_ADDRESS } from './network.ts';
import { field } from './processes.ts';
import { cell, printRow } from './table.ts';

const LEGEND = `Each Service has one TCP port, one EndpointSlice and 10 endpoints, listed from an API server (a fake) over TLS. The
load is queries for 2,000 names in turn, A, AAAA, SRV and a nonexistent name, with 64 queries in flight: by UDP, over
10 connections, and over 64. "At rest again" is after a pause without queries. "Resident" is Rss of
/proc/PID/smaps_rollup, "private" is Anonymous. MiB; medians, with minimum and maximum.`;

const LOADS: readonly (readonly [string, Pick<DnsLoad, 'connections'>])[] = [
  ['UDP', {}],
  ['TCP, 10 connections', { connections: 10 }],
  ['TCP, 64 connections', { connections: 64 }],
];
/** Seconds before the first measurement. */
const SETTLE = 5;
/** Seconds without queries after the load. */
const PAUSE = 75;
const READY_MS = 120_000;

interface Program {
  readonly name: string;
  /** @param directory for the program's files; contains `kubeconfig`. */
  readonly command: (directory: string) => readonly [string, ...string[]];
}

/** Rows of the result: MiB, or responses per second. */
type Run = readonly (readonly [what: string, value: number])[];

const PORTWIDE_DNS: Program = {
  name: 'portwide dns',
  command: (directory) => {
    const access = `--kubeconfig=${join(directory, 'kubeconfig')}`;
    return [PORTWIDE, 'dns', access, '--metrics-bind-address=0.0.0.0:9153'];
  },
};

/** kubeadm's Corefile without the plugins that query other servers. */
const COREFILE = (directory: string) => `.:53 {
  errors
  health
  ready
  kubernetes cluster.local in-addr.arpa ip6.arpa {
    kubeconfig ${join(directory, 'kubeconfig')}
    pods insecure
    fallthrough in-addr.arpa ip6.arpa
    ttl 5
  }
  prometheus :9153
  cache 30 {
    disable success cluster.local
    disable denial cluster.local
  }
  loadbalance
}
`;

async function coreDns(): Promise<Program | undefined> {
  const { COREDNS: given = 'coredns' } = process.env;
  const { stdout, failed } = await execa(given, ['-version'], { reject: false });
  if (failed) return undefined;
  return {
    name: stdout.split('\n')[0] ?? given,
    command: (directory) => {
      writeFileSync(join(directory, 'Corefile'), COREFILE(directory));
      return [given, '-conf', join(directory, 'Corefile')];
    },
  };
}

async function measureSize(
  programs: readonly Program[],
  services: number,
  runs: number,
  seconds: number,
): Promise<void> {
  const results: Run[][] = [];
  for (const program of programs) {
    const once = () => measure(program, services, seconds);
    results.push(await repeat(runs, `${program.name}, ${services}`, once));
  }
  for (const [index, [what]] of results[0]?.[0]?.entries() ?? []) {
    const values = (programRuns: Run[]) => programRuns.map((run) => run[index]?.[1] ?? 0);
    printRow(services, what, ...results.map((programRuns) => cell(values(programRuns), 0)));
  }
}

function measure(program: Program, services: number, seconds: number): Promise<Run> {
  return withTlsApiServer(clusterServices(services), async ({ network, spawn }, directory) => {
    const [command, ...args] = program.command(directory);
    const { pid } = spawn(command, args);
    if (pid === undefined) throw new Error(`${command} did not start`);
    return await measureProcess(pid, network.client, services, seconds);
  });
}

async function measureProcess(
  pid: number,
  client: string,
  services: number,
  seconds: number,
): Promise<Run> {
  const questions = questionsOf(services, Object.values(QUESTIONS));
  const ask = (load: Omit<DnsLoad, 'server' | 'questions'>) =>
    askDns(client, { server: NODE_ADDRESS, questions, ...load });
  const deadline = performance.now() + READY_MS;
  for (;;) {
    // The client fails until the server listens.
    const report = await ask({ rate: 10, seconds: 1 }).catch(() => undefined);
    if (report !== undefined && report.sent > 0 && report.lost + report.failed === 0) break;
    if (performance.now() > deadline) throw new Error('the server does not answer');
  }
  await sleep(SETTLE * 1000);
  const atRest = memoryOf(pid, 'at rest');
  const rates: [string, number][] = [];
  for (const [what, load] of LOADS) {
    const { rate } = await ask({ ...load, atATime: 64, seconds });
    rates.push([`${what}: answers a second`, rate]);
  }
  const afterLoad = memoryOf(pid, 'after the load');
  await sleep(PAUSE * 1000);
  return [...atRest, ...afterLoad, ...memoryOf(pid, 'at rest again'), ...rates];
}

function memoryOf(pid: number, moment: string): Run {
  const [resident, anonymous] = ['Rss', 'Anonymous'].map((name) =>
    field(pid, name, 'smaps_rollup'),
  );
  if (!resident) throw new Error('the server has ended');
  return [
    [`${moment}: resident`, resident],
    ['– private', anonymous ?? 0],
  ];
}

await runBench({
  name: 'dns-memory',
  where: `${IN_NAMESPACES} COREDNS=/path/to/coredns also measures CoreDNS.`,
  flags: {
    services: servicesFlag('0,1000,10000', {}, 0),
    runs: runsFlag('3', { quick: '1' }),
    seconds: numberFlag('duration of each load', '5', { quick: '3' }),
  },
  run: async ({ services: sizes, runs, seconds }) => {
    const corednsProgram = await coreDns();
    const programs = [PORTWIDE_DNS, ...(corednsProgram === undefined ? [] : [corednsProgram])];
    printHead(`${LEGEND}\nLoad: ${seconds} s each; pause: ${PAUSE} s.`);
    printRow('Services', '', ...programs.map(({ name }) => name));
    console.log(`|---:|---|${'---:|'.repeat(programs.length)}`);
    for (const services of sizes) await measureSize(programs, services, runs, seconds);
  },
});
