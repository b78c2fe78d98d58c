/** `portwide probe`: connects to ports of a VIP and reports which answer. */
import { readFile } from 'node:fs/promises';
import { type Command, InvalidArgumentError, Option } from 'commander';
import { readSysctl } from '../agent/node-setup.ts';
import { canonicalAddress, familyOf } from '../api/addresses.ts';
import { parseDuration } from '../config/duration.ts';
import { boundedConcurrency, conntrackProblem, openFilesLimit } from '../probe/limits.ts';
import { runInNamespace, withoutNetns } from '../probe/namespace.ts';
import { PROBE_PROTOCOLS, type ProbeProtocol } from '../probe/outcome.ts';
import { InvalidPorts, type PortGroup, readPortGroups } from '../probe/ports.ts';
import {
  isAllAnswered,
  type ProbeReport,
  reportJson,
  reportJunit,
  reportText,
} from '../probe/report.ts';
import { type ProbePlan, probesOf, runProbes } from '../probe/run.ts';
import { UserError } from '../process/errors.ts';

type Format = 'text' | 'json' | 'junit';

interface ProbeFlags {
  readonly ports: string;
  readonly proto: readonly ProbeProtocol[];
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
  1  at least one probe was not answered as expected
  2  error: nothing was probed

A UDP probe is answered only by a server that replies to the datagram "hostname".
`;
const ERROR_STATUS = 2;
const MAX_PROBES = 1_000_000;
/** Milliseconds that the process in another namespace may take beyond its probes. */
const START_ALLOWANCE = 60_000;

const REPORTS: Readonly<Record<Format, (report: ProbeReport) => string>> = {
  text: reportText,
  json: reportJson,
  junit: reportJunit,
};

export function addProbeCommand(program: Command): void {
  program
    .command('probe')
    .description('connect to ports of a VIP from this node or a pod, and show which answer')
    .addHelpText('after', EXIT_HELP)
    .exitOverride(({ exitCode }) => process.exit(exitCode === 0 ? 0 : ERROR_STATUS))
    .argument('<vip>', 'IP address of a Service, or any other address', address)
    .addOption(
      new Option(
        '--ports <ports>',
        'comma-separated ports, ranges such as 20000-20100, all, and random:200',
      ).makeOptionMandatory(),
    )
    .addOption(
      new Option('--proto <protocols>', 'tcp, udp or tcp,udp')
        .argParser(protocols)
        .default(['TCP'], 'tcp'),
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
    .action(probe);
}

async function probe(vip: string, flags: ProbeFlags): Promise<void> {
  // The status if an error is thrown below.
  process.exitCode = ERROR_STATUS;
  const seed = flags.seed ?? Math.floor(Math.random() * 2 ** 32);
  const groups = portGroups(flags.ports, seed);
  const ports = [...new Set(groups.flatMap((group) => group.ports))].sort((a, b) => a - b);
  const { proto, count, timeout, source } = flags;
  if (source !== undefined && familyOf(source) !== familyOf(vip)) {
    throw new UserError(`--source ${source} and ${vip} are not of the same IP family`);
  }
  const concurrency = await socketsAtOnce(flags.concurrency);
  const expected = flags.expectText;
  const plan: ProbePlan = {
    ...{ vip, source, timeout, expected, protocols: proto, ports, count, concurrency },
  };
  await checkSize(probesOf(plan));
  if (flags.netns !== undefined) {
    const limit = START_ALLOWANCE + 2 * timeout * Math.ceil(probesOf(plan) / concurrency);
    const args = withoutNetns(process.argv.slice(2));
    const { output, status } = await runInNamespace(flags.netns, args, limit);
    process.stdout.write(output.endsWith('\n') ? output : `${output}\n`);
    process.exitCode = status;
    return;
  }
  const started = performance.now();
  const tally = await runProbes(plan);
  const duration = performance.now() - started;
  const report = { vip, seed, protocols: proto, groups, ports, tally, duration };
  process.stdout.write(REPORTS[flags.output](report));
  process.exitCode = isAllAnswered(report) ? 0 : 1;
}

/** @throws UserError */
function portGroups(text: string, seed: number): PortGroup[] {
  try {
    return readPortGroups(text, seed);
  } catch (error) {
    if (!(error instanceof InvalidPorts)) throw error;
    throw new UserError(`--ports: ${error.message}`, { cause: error });
  }
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
  throw new InvalidArgumentError('Use an IP address. `portwide get services` shows VIPs.');
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
