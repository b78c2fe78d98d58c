/**
 * Times network policy on this machine's kernel. Results go to standard output as Markdown, progress to
 * standard error.
 */
import { availableParallelism, cpus, release } from 'node:os';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { runScript } from './jobs.ts';
import { type Network, withNetwork } from './network.ts';
import { measurePolicyAgent, type PolicyAgentRun } from './policy-agent.ts';
import type { ClusterSize } from './policy-cluster.ts';
import {
  POLICY_CHANGES,
  type PolicyChangeKind,
  type PolicyJob,
  type PolicyReport,
} from './policy-jobs.ts';
import { type PacketCost, packetCost } from './policy-packets.ts';
import { median, percentile } from './statistics.ts';
import { cell } from './table.ts';

const USAGE = `Usage: node bench/policy.ts [--runs N] [--quick]

  --runs   how often everything is measured (default 3)
  --quick  a tenth of the cluster and 2 runs, unless --runs says otherwise

Needs root. Works in network namespaces of its own.`;

const LEGEND = `Pods have labels of one app of 20 in one of 50 namespaces, two addresses and a named port; each policy isolates
one app of a namespace both ways, with three rules for ingress and two for egress: pods of its own
and of other namespaces, a network, a named port. Both families. Medians, with the least and the greatest; of
changes and packets p50 and p99 of all. A change is timed from the object handed over until both families
have it in the kernel. "Objects to kernel" is without the source; "whole agent" runs from the start of the
process, in nftables mode without Services, with an API server (a double, on the same machine) to list from.`;

const PROCESS = fileURLToPath(new URL('policy-process.ts', import.meta.url));
/** Of each kind, in one run. */
const CHANGES = 50;
const WAYS = ['policy', 'conntrack', 'bare'] as const;

interface Measured {
  readonly starts: readonly PolicyReport[];
  readonly restarts: readonly PolicyReport[];
  readonly agents: readonly PolicyAgentRun[];
  readonly packets: ReadonlyMap<(typeof WAYS)[number], readonly PacketCost[]>;
}

async function measure(size: ClusterSize, runs: number): Promise<Measured> {
  const starts: PolicyReport[] = [];
  const restarts: PolicyReport[] = [];
  const agents: PolicyAgentRun[] = [];
  const packets = new Map<(typeof WAYS)[number], PacketCost[]>(WAYS.map((way) => [way, []]));
  const run = (network: Network, job: PolicyJob) => runScript(network.node, PROCESS, job);
  for (let round = 1; round <= runs; round++) {
    await withNetwork(async (network) => {
      starts.push((await run(network, { kind: 'start', size, changes: 0 })) as PolicyReport);
      const again = await run(network, { kind: 'start', size, changes: CHANGES });
      restarts.push(again as PolicyReport);
    });
    await withNetwork(async (network) => {
      const cost = async (way: (typeof WAYS)[number]) => {
        packets.get(way)?.push(await packetCost(network));
      };
      await cost('bare');
      await run(network, { kind: 'conntrack' });
      await cost('conntrack');
      await run(network, { kind: 'load', size, address: CLIENT });
      await cost('policy');
    });
    agents.push(await measurePolicyAgent(size));
    console.error(
      `policy, run ${round} of ${runs}: start ${starts.at(-1)?.start.toFixed(2)} s, one pod added ` +
        `${median(restarts.at(-1)?.changes.added ?? []).toFixed(2)} ms, whole agent ` +
        `${agents.at(-1)?.seconds.toFixed(2)} s`,
    );
  }
  return { starts, restarts, agents, packets };
}

/** See network.ts. */
const CLIENT = '10.255.0.2';

function rows({ starts, restarts, agents, packets }: Measured): string[] {
  const lines = ['| what | |', '|---|---:|'];
  const row = (what: string, text: string) => lines.push(`| ${what} | ${text} |`);
  const of = (reports: readonly PolicyReport[], what: (report: PolicyReport) => number) =>
    reports.map(what);
  row(
    'objects to kernel, s',
    cell(
      of(starts, ({ start }) => start),
      2,
    ),
  );
  row(
    '– until it is known what is wanted, s',
    cell(
      of(starts, ({ compile }) => compile),
      2,
    ),
  );
  row(
    '– longest stall of the event loop, ms',
    cell(
      of(starts, ({ stall }) => stall),
      0,
    ),
  );
  row(
    '– elements in the kernel',
    cell(
      of(starts, ({ elements }) => elements),
      0,
    ),
  );
  row(
    '– chains of profiles',
    cell(
      of(starts, ({ chains }) => chains),
      0,
    ),
  );
  row(
    '– heap of all that, MiB',
    cell(
      of(starts, ({ heap }) => heap),
      0,
    ),
  );
  row(
    'restart, objects to kernel, s',
    cell(
      of(restarts, ({ start }) => start),
      2,
    ),
  );
  row(
    'whole agent, start to enforced, s',
    cell(
      agents.map(({ seconds }) => seconds),
      2,
    ),
  );
  row(
    '– CPU until then, s',
    cell(
      agents.map(({ cpu }) => cpu),
      2,
    ),
  );
  row(
    '– memory ten seconds later, MiB',
    cell(
      agents.map(({ settled }) => settled),
      0,
    ),
  );
  row(
    '– peak memory, MiB',
    cell(
      agents.map(({ peak }) => peak),
      0,
    ),
  );
  for (const [kind, what] of Object.entries(POLICY_CHANGES)) {
    const all = restarts.flatMap(({ changes }) => changes[kind as PolicyChangeKind]);
    row(`${what}, ms`, percentiles(all, 2));
  }
  const packetRows = [
    ['opening', 'new connection'],
    ['established', 'packet and answer of an established connection'],
  ] as const;
  for (const [kind, what] of packetRows) {
    const all = (way: (typeof WAYS)[number]) =>
      (packets.get(way) ?? []).flatMap((cost) => cost[kind]);
    row(`${what}, policy on, µs`, percentiles(all('policy'), 1));
    row('– off, with conntrack, µs', percentiles(all('conntrack'), 1));
    row('– off, without conntrack, µs', percentiles(all('bare'), 1));
    const ratio = median(all('policy')) / median(all('conntrack'));
    row('– on to off, with conntrack', `${ratio.toFixed(2)}×`);
  }
  return lines;
}

function percentiles(values: readonly number[], digits: number): string {
  const [middle, high] = [50, 99].map((percent) => percentile(values, percent).toFixed(digits));
  return `p50 ${middle}, p99 ${high}`;
}

interface Flags {
  readonly size: ClusterSize;
  readonly runs: number;
}

function readFlags(args: readonly string[]): Flags {
  const { values } = parseArgs({
    args: [...args],
    options: { runs: { type: 'string' }, quick: { type: 'boolean', default: false } },
  });
  const runs = Number(values.runs ?? (values.quick ? 2 : 3));
  if (!Number.isInteger(runs) || runs < 1) {
    throw new TypeError(`--runs: expected a number from 1, got "${values.runs}"`);
  }
  const size = values.quick
    ? { pods: 1000, policies: 100, local: 110 }
    : { pods: 10_000, policies: 1000, local: 110 };
  return { size, runs };
}

async function main({ size, runs }: Flags): Promise<void> {
  const processor = `${availableParallelism()} cores (${cpus()[0]?.model ?? 'unknown'})`;
  console.log(`Linux ${release()}, ${processor}, Node ${process.version}\n`);
  const { pods, policies, local } = size;
  console.log(
    `${policies} NetworkPolicies, ${pods} pods in the cluster, ${local} on the node. ${LEGEND}\n`,
  );
  console.log(rows(await measure(size, runs)).join('\n'));
}

let flags: Flags | undefined;
try {
  flags = readFlags(process.argv.slice(2));
} catch (error) {
  console.error(`${error instanceof Error ? error.message : error}\n\n${USAGE}`);
  process.exitCode = 2;
}
if (flags !== undefined) await main(flags);
