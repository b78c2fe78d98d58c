/**
 * Measures how much memory `portwide dns` takes that an API server feeds, bundled as in the image: at rest, after many queries
 * over UDP and TCP, and at rest again. CoreDNS gets the same, where the variable COREDNS names it or it is on the PATH.
 * Results go to standard output as Markdown, progress to standard error.
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, cpus, loadavg, release, tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { execa } from 'execa';
import { Authority, pemOf } from '../test/api-server/certificates.ts';
import { RemoteDouble } from '../test/api-server/remote.ts';
import { runIn } from '../test/lab/processes.ts';
import { PORTWIDE } from '../test/portwide.ts';
import { apiObjects } from './api-objects.ts';
import type { DnsLoad, DnsReport } from './dns-client.ts';
import { askDns } from './dns-load.ts';
import { withNetwork } from './network.ts';
import { cell } from './table.ts';

const USAGE = `Usage: node bench/dns-memory.ts [--services 0,1000,10000] [--runs N] [--quick]

  --services  how many Services, of 10 endpoints each; one or several numbers
  --runs      how often each is measured (default 3)
  --quick     one run of each, and shorter

Needs root. Works in network namespaces of its own. COREDNS=/path/to/coredns measures CoreDNS beside it.`;

const LEGEND = `Each Service has one TCP port, one EndpointSlice and 10 endpoints, listed from an API server (a double) over TLS. The
load is 2,000 names by turns, A, AAAA, SRV and a name that is not there, as fast as 64 queries at a time are answered: by UDP, over 10
connections, and over 64. "At rest again" is after a pause without queries. "Resident" is Rss of /proc/PID/smaps_rollup, "private" is
Anonymous. MiB; medians, with the least and the greatest.`;

const SERVER = '10.255.0.1';
const AT_A_TIME = 500;
const LOADS: readonly Pick<DnsLoad, 'connections'>[] = [
  {},
  { connections: 10 },
  { connections: 64 },
];
const READY_MS = 120_000;

interface Times {
  readonly settle: number;
  readonly load: number;
  readonly later: number;
}

interface Program {
  readonly name: string;
  /** @param directory for files of its own, which has `kubeconfig`. */
  readonly command: (directory: string) => readonly [string, ...string[]];
}

interface Memory {
  readonly resident: number;
  readonly private: number;
}

type Moment = 'at rest' | 'after the load' | 'at rest again';
type Run = Readonly<Record<Moment, Memory>> & { readonly rates: readonly number[] };

const PORTWIDE_DNS: Program = {
  name: 'portwide dns',
  command: (directory) => [
    PORTWIDE,
    'dns',
    '--kubeconfig',
    join(directory, 'kubeconfig'),
    '--metrics-bind-address=0.0.0.0:9153',
  ],
};

/** As kubeadm deploys it, without what asks others. */
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

async function main(sizes: readonly number[], runs: number, times: Times): Promise<void> {
  const other = await coreDns();
  const programs = [PORTWIDE_DNS, ...(other === undefined ? [] : [other])];
  const processor = `${availableParallelism()} cores (${cpus()[0]?.model ?? 'unknown'})`;
  const load = loadavg()[1]?.toFixed(1);
  console.log(
    `Linux ${release()}, ${processor}, load ${load}, Node ${process.version}\n\n${LEGEND}\nLoad: ${times.load} s each; pause: ${times.later} s.\n`,
  );
  console.log(`| Services | | ${programs.map(({ name }) => `${name} |`).join(' ')}`);
  console.log(`|---:|---|${'---:|'.repeat(programs.length)}`);
  for (const services of sizes) {
    const results: Run[][] = [];
    for (const program of programs) {
      const measured: Run[] = [];
      for (let run = 1; run <= runs; run++) {
        measured.push(await measure(program, services, times));
        const said = JSON.stringify(measured.at(-1));
        console.error(`${program.name}, ${services}: run ${run} of ${runs}: ${said}`);
      }
      results.push(measured);
    }
    const row = (what: string, of: (run: Run) => number) =>
      console.log(
        `| ${services} | ${what} | ${results.map((each) => `${cell(each.map(of), 0)} |`).join(' ')}`,
      );
    for (const moment of ['at rest', 'after the load', 'at rest again'] as const) {
      row(`${moment}: resident`, (run) => run[moment].resident);
      row(`– private`, (run) => run[moment].private);
    }
    for (const [index, what] of ['UDP', 'TCP, 10 connections', 'TCP, 64 connections'].entries()) {
      row(`${what}: answers a second`, ({ rates }) => rates[index] ?? 0);
    }
  }
}

async function measure(program: Program, services: number, times: Times): Promise<Run> {
  const directory = mkdtempSync(join(tmpdir(), 'portwide-bench-dns-'));
  const authority = await Authority.create();
  try {
    const certificate = pemOf(await authority.issue('kube-apiserver', ['IP:127.0.0.1']));
    return await withNetwork(async ({ node, client }) => {
      const host = runIn('node', node);
      try {
        const double = await RemoteDouble.start(host.spawn, { tls: certificate });
        await fill(double, services);
        writeFileSync(join(directory, 'kubeconfig'), kubeconfig(double.port, authority.cert));
        const [command, ...args] = program.command(directory);
        const { pid } = host.spawn(command, args);
        if (pid === undefined) throw new Error(`${command} did not start`);
        return await measureProcess(pid, client, services, times);
      } finally {
        await host.stop();
      }
    });
  } finally {
    authority.destroy();
    rmSync(directory, { recursive: true, force: true });
  }
}

async function measureProcess(
  pid: number,
  client: string,
  services: number,
  { settle, load: seconds, later }: Times,
): Promise<Run> {
  const questions = questionsOf(services);
  const ask = (load: Omit<DnsLoad, 'server' | 'questions'>): Promise<DnsReport> =>
    askDns(client, { server: SERVER, questions, ...load });
  const deadline = performance.now() + READY_MS;
  for (;;) {
    // Until it listens, the client ends with an error.
    const report = await ask({ rate: 10, seconds: 1 }).catch(() => undefined);
    if (report !== undefined && report.sent > 0 && report.lost + report.failed === 0) break;
    if (performance.now() > deadline) throw new Error('the server does not answer');
  }
  await sleep(settle * 1000);
  const atRest = memoryOf(pid);
  const rates: number[] = [];
  for (const load of LOADS) rates.push((await ask({ ...load, atATime: 64, seconds })).rate);
  const afterLoad = memoryOf(pid);
  await sleep(later * 1000);
  return {
    'at rest': atRest,
    'after the load': afterLoad,
    'at rest again': memoryOf(pid),
    rates,
  };
}

async function fill(double: RemoteDouble, services: number): Promise<void> {
  for (let at = 0; at < services; at += AT_A_TIME) {
    const length = Math.min(AT_A_TIME, services - at);
    const objects = Array.from({ length }, (_, index) => apiObjects(at + index));
    await double.call('put', ...objects.flat());
  }
}

function questionsOf(services: number): (readonly [string, string])[] {
  return Array.from({ length: 2000 }, (_, count) => {
    const name = `service-${(count * 7919) % Math.max(1, services)}.default.svc.cluster.local`;
    const kinds = [
      [name, 'A'],
      [name, 'AAAA'],
      [`_http._tcp.${name}`, 'SRV'],
      [`${name}.default.svc.cluster.local`, 'A'],
    ] as const;
    return kinds[count % kinds.length] ?? kinds[0];
  });
}

function kubeconfig(port: number, ca: string): string {
  const cluster = { server: `https://127.0.0.1:${port}`, 'certificate-authority': ca };
  return JSON.stringify({
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [{ name: 'bench', cluster }],
    users: [{ name: 'bench', user: {} }],
    contexts: [{ name: 'bench', context: { cluster: 'bench', user: 'bench' } }],
    'current-context': 'bench',
  });
}

function memoryOf(pid: number): Memory {
  const text = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8');
  const field = (name: string) =>
    Number(new RegExp(`^${name}:\\s+(\\d+)`, 'm').exec(text)?.[1] ?? Number.NaN) / 1024;
  return { resident: field('Rss'), private: field('Anonymous') };
}

function readFlags(args: readonly string[]): Parameters<typeof main> {
  const { values } = parseArgs({
    args: [...args],
    options: {
      services: { type: 'string', default: '0,1000,10000' },
      runs: { type: 'string' },
      quick: { type: 'boolean', default: false },
    },
  });
  const sizes = values.services.split(',').map(Number);
  const runs = Number(values.runs ?? (values.quick ? 1 : 3));
  for (const number of [...sizes, runs]) {
    if (!Number.isInteger(number) || number < 0) throw new TypeError(`not a number: ${number}`);
  }
  const times = values.quick
    ? { settle: 5, load: 3, later: 75 }
    : { settle: 20, load: 5, later: 120 };
  return [sizes, runs, times];
}

let flags: Parameters<typeof main> | undefined;
try {
  flags = readFlags(process.argv.slice(2));
} catch (error) {
  console.error(`${error instanceof Error ? error.message : error}\n\n${USAGE}`);
  process.exitCode = 2;
}
if (flags !== undefined) await main(...flags);
