/** `portwide probe`: connects to ports of a VIP, or of all VIPs of a Service, and reports which answer. */
import { readFile } from 'node:fs/promises';
import { type Command, InvalidArgumentError, Option } from 'commander';
import { readSysctl } from '../agent/node-setup.ts';
import { canonicalAddress, familyOf } from '../api/addresses.ts';
import { isDnsLabel, isDnsSubdomain } from '../api/read-name.ts';
import { parseDuration } from '../config/duration.ts';
import { boundedConcurrency, conntrackProblem, openFilesLimit } from '../probe/limits.ts';
import { runInNamespace, withoutNetns } from '../probe/namespace.ts';
import { PROBE_PROTOCOLS, type ProbeProtocol } from '../probe/outcome.ts';
import { InvalidPorts, type PortSelection, selectPorts } from '../probe/ports.ts';
import {
  isAllAnswered,
  type ProbeReport,
  type ProbeReports,
  reportJson,
  reportJunit,
  reportText,
} from '../probe/report.ts';
import { type ProbePlan, probesOf, runProbes } from '../probe/run.ts';
import { servicePorts } from '../probe/service-ports.ts';
import { sourceError } from '../probe/sockets.ts';
import { UserError } from '../process/errors.ts';
import type { ServiceDetail } from '../status/api/services.ts';
import { StatusClient } from '../status/client.ts';
import { ApiError } from '../status/client-errors.ts';
import { type StatusCommandOptions, servicePath, statusSocketOption } from './status-command.ts';
import { ERROR_STATUS, failsWithTwo } from './usage.ts';

type Format = 'text' | 'json' | 'junit';

/** What is probed. */
type Target =
  | { readonly kind: 'address'; readonly address: string }
  | { readonly kind: 'service'; readonly namespace: string; readonly name: string };

interface ProbeFlags extends StatusCommandOptions {
  readonly ports?: string;
  readonly proto?: readonly ProbeProtocol[];
  readonly netns?: string;
  readonly count: number;
  readonly timeout: number;
  readonly concurrency: number;
  readonly source?: string;
  readonly seed?: number;
  readonly expectText?: RegExp;
  readonly output: Format;
}

const EXIT_HELP = `
Exit status:
  0  every probe was answered
  1  at least one probe was not answered as expected, or no such Service
  2  error: nothing was probed

A UDP probe is answered only by a server that replies to the datagram "hostname".
`;
const MAX_PROBES = 1_000_000;
/** Ports that are probed without `--ports`. */
const MAX_SERVICE_PORTS = 1000;
/** Milliseconds that the process in another namespace may take beyond its probes. */
const START_ALLOWANCE = 60_000;

const REPORTS: Readonly<Record<Format, (reports: ProbeReports) => string>> = {
  text: reportText,
  json: reportJson,
  junit: reportJunit,
};

export function addProbeCommand(program: Command): void {
  failsWithTwo(program.command('probe'))
    .description('connect to ports of VIPs from this node or a pod, and show which answer')
    .addHelpText('after', EXIT_HELP)
    .argument(
      '<vip>',
      'IP address of a Service or any other one; or NAMESPACE/NAME, for all VIPs of this Service',
      target,
    )
    .addOption(
      new Option(
        '--ports <ports>',
        'comma-separated ports, ranges such as 20000-20100, all, and random:200 (default: the ports of the Service)',
      ),
    )
    .addOption(
      new Option(
        '--proto <protocols>',
        'tcp, udp or tcp,udp (default: tcp; without --ports, all of the Service)',
      ).argParser(protocols),
    )
    .option(
      '--netns <namespace>',
      'network namespace to connect from: a name of `ip netns`, or a path such as /proc/PID/ns/net',
    )
    .addOption(integer('--count <number>', 'probes of each port and protocol', 1, 1000, 1))
    .addOption(
      new Option('--timeout <duration>', 'time to wait for the answer of a port')
        .argParser(timeout)
        .default(1000, '1s'),
    )
    .addOption(integer('--concurrency <number>', 'maximum number of open sockets', 1, 5000, 200))
    .addOption(
      new Option('--source <address>', 'source address of the connections').argParser(address),
    )
    .addOption(integer('--seed <number>', 'seed of random ports (default: random)', 0, 2 ** 32 - 1))
    .addOption(
      new Option(
        '--expect-text <regex>',
        'regular expression that the first line of each answer must match',
      ).argParser(regularExpression),
    )
    .addOption(
      new Option('-o, --output <format>', 'output format')
        .choices(Object.keys(REPORTS))
        .default('text'),
    )
    .addOption(statusSocketOption())
    .action(probe);
}

async function probe(given: Target, flags: ProbeFlags): Promise<void> {
  // The status if an error is thrown below.
  process.exitCode = ERROR_STATUS;
  const seed = flags.seed ?? Math.floor(Math.random() * 2 ** 32);
  const { count, timeout, source, expectText: expected } = flags;
  // Before the agent is asked.
  const { ports: text, proto = ['TCP'] } = flags;
  const selected =
    text === undefined ? undefined : proto.map((protocol) => selection(protocol, text, seed));
  const { vips: all, ports: served } = await servedBy(given, flags);
  const vips = sameFamily(all, source);
  const selections = selected ?? portsOfService(given, served, flags, seed);
  const concurrency = await socketsAtOnce(flags.concurrency);
  const plans = vips.map(
    (vip): ProbePlan => ({ vip, source, timeout, expected, selections, count, concurrency }),
  );
  const probes = plans.reduce((sum, plan) => sum + probesOf(plan), 0);
  await checkSize(probes);
  if (flags.netns !== undefined) {
    const limit = START_ALLOWANCE + 2 * timeout * Math.ceil(probes / concurrency);
    const args = withoutNetns(process.argv.slice(2));
    const { output, status } = await runInNamespace(flags.netns, args, limit);
    process.stdout.write(output.endsWith('\n') ? output : `${output}\n`);
    process.exitCode = status;
    return;
  }
  if (source !== undefined) await checkSource(source);
  const reports: ProbeReport[] = [];
  for (const plan of plans) {
    const started = performance.now();
    const tally = await runProbes(plan);
    const duration = performance.now() - started;
    reports.push({ vip: plan.vip, seed, selections, tally, duration });
  }
  const service = given.kind === 'service' ? `${given.namespace}/${given.name}` : undefined;
  process.stdout.write(REPORTS[flags.output]({ service, reports }));
  process.exitCode = reports.every(isAllAnswered) ? 0 : 1;
}

/** @throws UserError */
function selection(protocol: ProbeProtocol, text: string, seed: number): PortSelection {
  try {
    return selectPorts(protocol, text, seed);
  } catch (error) {
    if (!(error instanceof InvalidPorts)) throw error;
    throw new UserError(`--ports: ${error.message}`, { cause: error });
  }
}

/** @param served ports as in the status API. @throws UserError if they are too many to probe unasked, or none. */
function portsOfService(
  given: Target,
  served: readonly string[],
  { proto }: ProbeFlags,
  seed: number,
): PortSelection[] {
  if (given.kind === 'address') throw new UserError('--ports is needed for an address');
  const service = `Service "${given.namespace}/${given.name}" serves`;
  const found = servicePorts(served, proto)?.map(({ protocol, ports }) =>
    selection(protocol, ports, seed),
  );
  const count = new Set(found?.flatMap(({ ports }) => ports)).size;
  if (found === undefined || count > MAX_SERVICE_PORTS) {
    const what = found === undefined ? 'all ports' : served.join(', ');
    throw new UserError(`${service} ${what}: select some with --ports`);
  }
  if (count > 0) return found;
  throw new UserError(`${service} no ${(proto ?? PROBE_PROTOCOLS).join(' or ')} port`);
}

/** Asks the agent for the VIPs and ports of a Service. @throws UserError if it has no VIP; StatusClientError */
async function servedBy(
  given: Target,
  { statusSocket }: ProbeFlags,
): Promise<Pick<ServiceDetail['summary'], 'vips' | 'ports'>> {
  if (given.kind === 'address') return { vips: [given.address], ports: [] };
  const client = new StatusClient({ socketPath: statusSocket });
  const { summary } = await client
    .get<ServiceDetail>(servicePath(given.namespace, given.name), ['summary'])
    .catch((error: unknown) => {
      if (error instanceof ApiError && error.code === 404) process.exitCode = 1;
      throw error;
    });
  if (summary.vips.length > 0) return summary;
  throw new UserError(
    `this node serves no VIP of Service "${given.namespace}/${given.name}", which is in state ${summary.state}`,
  );
}

/** The VIPs of the IP family of `--source`. @throws UserError */
function sameFamily(vips: readonly string[], source: string | undefined): readonly string[] {
  if (source === undefined) return vips;
  const found = vips.filter((vip) => familyOf(vip) === familyOf(source));
  if (found.length > 0) return found;
  throw new UserError(`--source ${source} and ${vips.join(', ')} are not of the same IP family`);
}

/** @throws UserError if no connection can have this source address, in the network namespace of this process. */
async function checkSource(source: string): Promise<void> {
  const code = await sourceError(source);
  if (code === undefined) return;
  const what =
    code === 'EADDRNOTAVAIL'
      ? 'no interface in this network namespace has this address'
      : 'the kernel refuses this address';
  throw new UserError(`--source ${source}: ${what} (${code})`);
}

/** Limits the concurrency to the open files that this process may have. */
async function socketsAtOnce(wanted: number): Promise<number> {
  const limits = await readFile('/proc/self/limits', 'utf8').catch(() => '');
  const possible = boundedConcurrency(wanted, openFilesLimit(limits));
  if (possible < wanted) {
    process.stderr.write(
      `warning: --concurrency is ${possible}: limit of open files (ulimit -n)\n`,
    );
  }
  return possible;
}

/** @throws UserError if there are too many probes for this program or for the conntrack table. */
async function checkSize(probes: number): Promise<void> {
  if (probes > MAX_PROBES) {
    throw new UserError(`${probes} probes are more than ${MAX_PROBES}: reduce --ports or --count`);
  }
  const [used, max] = await Promise.all([
    readSysctl('net.netfilter.nf_conntrack_count'),
    readSysctl('net.netfilter.nf_conntrack_max'),
  ]);
  const problem = conntrackProblem(probes, used, max);
  if (problem !== undefined) throw new UserError(problem);
}

/** @throws InvalidArgumentError */
function address(given: string): string {
  const found = canonicalAddress(given);
  if (found !== undefined) return found;
  throw new InvalidArgumentError('Use an IP address.');
}

/** @throws InvalidArgumentError */
function target(given: string): Target {
  const found = canonicalAddress(given);
  if (found !== undefined) return { kind: 'address', address: found };
  const [namespace = '', name = '', ...rest] = given.replace(/^service\/(?=.+\/)/, '').split('/');
  if (rest.length === 0 && isDnsLabel(namespace) && isDnsSubdomain(name)) {
    return { kind: 'service', namespace, name };
  }
  throw new InvalidArgumentError(
    'Use an IP address, or NAMESPACE/NAME of a Service. `portwide get services` shows both.',
  );
}

/** @throws InvalidArgumentError */
function protocols(given: string): ProbeProtocol[] {
  const names = [...new Set(given.toUpperCase().split(','))];
  const found = PROBE_PROTOCOLS.filter((each) => names.includes(each));
  if (found.length === names.length) return found;
  throw new InvalidArgumentError('Use tcp, udp or tcp,udp.');
}

/** @throws InvalidArgumentError */
function timeout(given: string): number {
  const milliseconds = parseDuration(given);
  if (milliseconds !== undefined && milliseconds >= 10 && milliseconds <= 60_000) {
    return milliseconds;
  }
  throw new InvalidArgumentError('Use a duration from 10ms to 1m, such as 1s or 500ms.');
}

/** @throws InvalidArgumentError */
function regularExpression(given: string): RegExp {
  try {
    return new RegExp(given);
  } catch (error) {
    throw new InvalidArgumentError((error as Error).message);
  }
}

function integer(flags: string, help: string, min: number, max: number, value?: number): Option {
  const option = new Option(flags, help).argParser((given: string) => {
    const number = Number(given);
    if (/^\d+$/.test(given) && number >= min && number <= max) return number;
    throw new InvalidArgumentError(`Use a number from ${min} to ${max}.`);
  });
  return value === undefined ? option : option.default(value);
}
