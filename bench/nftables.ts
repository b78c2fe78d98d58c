/**
 * Times the nftables mode on this machine's kernel, and the kernel alone with the same input. Results go to
 * standard output as Markdown, progress to standard error.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { execa } from 'execa';
import { AGENT_ROWS, type AgentRun, clusterObjects, measureAgent } from './agents.ts';
import { IN_NAMESPACES, printHead, runBench, runsFlag, servicesFlag } from './harness.ts';
import { jobsOf, type Report } from './jobs.ts';
import { type Network, withNetwork } from './network.ts';
import type { NftablesJobs } from './nftables-process.ts';
import { collect, connectBare, connectPaths, noTimes, PATHS, pathNames } from './packets.ts';
import { CHANGES, changeKinds } from './subject.ts';
import { cell, percentiles, printRow, ratio, type TableRow } from './table.ts';

const LEGEND = `Each Service has 10 endpoints, one in a hundred of them on this node; IPv4, one TCP port, plus one all-ports Service.
Values are medians, with minimum and maximum; for single changes and connections, p50 and p99 of all. Compared
operations end with the same elements in the kernel: "nft" is \`nft -f\` of a prepared file; "netlink" is the
prepared messages of the elements, sent at once after everything else: the time of the kernel itself. A ratio is
Portwide's value divided by theirs. "Objects to kernel" is the agent without its source, from the first delivered
object; "whole agent" runs from the start of the process, with an API server (a fake, on the same machine) to list
from, and both families. Stalls are of the event loop.`;

const run = jobsOf<NftablesJobs>('nftables-process.ts');
/** Number of changes of each kind, in one run. */
const TIMES = 50;
/** Number of endpoints that change within one second. */
const STORM = 1000;
/** Milliseconds that the kernel gets to tear down the deleted namespaces. */
const SETTLE = 3000;
/** Minimum sync periods in milliseconds: Portwide's default, and kube-proxy's. */
const MIN_SYNC_PERIODS = [100, 1000] as const;

/** Results of all runs: milliseconds for loads, microseconds for new connections. */
class Measured {
  readonly agents: AgentRun[] = [];
  readonly starts: Report<NftablesJobs, 'portwide'>[] = [];
  readonly restarts: Report<NftablesJobs, 'portwide'>[] = [];
  readonly kernel: Report<NftablesJobs, 'netlink'>[] = [];
  readonly nft: Report<NftablesJobs, 'nft'>[] = [];
  /** By minimum sync period; empty if there are too few Services. */
  readonly storms = new Map<number, Report<NftablesJobs, 'storm'>[]>();
  readonly connections = noTimes();
}

/** Measures `runs` times, alternating between the compared programs. */
async function measure(services: number, runs: number, script: string): Promise<Measured> {
  const all = new Measured();
  const { agents, starts, restarts, kernel, nft, storms, connections } = all;
  for (let round = 1; round <= runs; round++) {
    const say = (text: string) =>
      console.error(`nftables, ${services} Services, run ${round} of ${runs}: ${text}`);
    await withSettledNetwork(async ({ node }) => {
      kernel.push(await run(node, 'netlink', { services, changes: TIMES, script }));
    });
    await withSettledNetwork(async ({ node }) => {
      nft.push(await run(node, 'nft', { script }));
    });
    await withSettledNetwork(async (network) => {
      collect(connections, await connectBare(network), (rounds) => rounds.flat());
      starts.push(await run(network.node, 'portwide', { services, changes: 0 }));
      collect(connections, await connectPaths(network, services), (rounds) => rounds.flat());
      restarts.push(await run(network.node, 'portwide', { services, changes: TIMES }));
    });
    checkElements([...kernel.slice(-1), ...nft.slice(-1), ...starts.slice(-1)]);
    const load = starts.at(-1)?.start.total.toFixed(2);
    const text = ((nft.at(-1)?.load ?? 0) / 1000).toFixed(2);
    say(`start ${load} s, nft alone ${text} s`);
    for (const minSyncPeriod of services < STORM ? [] : MIN_SYNC_PERIODS) {
      await withSettledNetwork(async ({ node }) => {
        const report = await run(node, 'storm', { services, changes: STORM, minSyncPeriod });
        storms.set(minSyncPeriod, [...(storms.get(minSyncPeriod) ?? []), report]);
      });
    }
    const agent = await measureAgent(clusterObjects(services), ['--proxy-mode=nftables']);
    agents.push(agent);
    say(`whole agent ${agent.seconds.toFixed(2)} s, ${agent.peak.toFixed()} MiB`);
  }
  return all;
}

/** The kernel tears down a deleted namespace asynchronously and holds locks meanwhile. */
async function withSettledNetwork(use: (network: Network) => Promise<void>): Promise<void> {
  await sleep(SETTLE);
  await withNetwork(use);
}

/** Compared programs must have loaded the same state. */
function checkElements(reports: readonly { readonly elements: number }[]): void {
  const counts = new Set(reports.map(({ elements }) => elements));
  if (counts.size !== 1)
    throw new Error(`different numbers of elements in the kernel: ${[...counts].join(', ')}`);
}

function printAll(services: number, measured: Measured): void {
  const { agents, starts, restarts, kernel, nft, storms, connections } = measured;
  const row = (what: string, ours: string, ...theirs: readonly string[]) =>
    printRow(services, what, ours, ...[...theirs, '–', '', '–', ''].slice(0, 4));
  const rows = <Report>(reports: readonly Report[], ...each: readonly TableRow<Report>[]) => {
    for (const [what, of, digits] of each) row(what, cell(reports.map(of), digits));
  };
  const alone = [kernel, nft].map((reports) => reports.map(({ load }) => load / 1000));
  const compared = (what: string, ours: readonly number[]) =>
    row(what, cell(ours, 2), ...alone.flatMap((each) => [cell(each, 2), ratio(each, ours)]));
  const totals = (reports: Measured['starts']) => reports.map(({ start }) => start.total);
  const loads = starts.map(({ start }) => start.load);
  const stall: TableRow<{ readonly stall: number }> = [
    '– longest stall, ms',
    (report) => report.stall,
    0,
  ];

  compared('objects to kernel, s', totals(starts));
  rows(starts, ['– resolve and compare, s', ({ start }) => start.total - start.load, 2]);
  compared('– compile and load, s', loads);
  rows(starts, stall, ['elements in the kernel', ({ elements }) => elements, 0]);
  row('restart, objects to kernel, s', cell(totals(restarts), 2));
  rows(restarts, stall);
  compared(
    'whole agent, s',
    agents.map(({ seconds }) => seconds),
  );
  rows(agents, ...AGENT_ROWS);
  for (const kind of changeKinds) {
    const timings = restarts.flatMap(({ changes }) => changes[kind]);
    const ours = timings.map(({ total }) => total * 1000);
    const theirs = kernel.flatMap(({ changes }) => changes[kind]);
    row(`${CHANGES[kind]}, ms`, percentiles(ours, 2), percentiles(theirs, 2), ratio(theirs, ours));
  }
  for (const [period, reports] of storms) {
    const title = `1,000 endpoints in 1 s, sync period ${period} ms`;
    rows(reports, [`${title}: after the last, ms`, ({ settled }) => settled, 0]);
    const latencies = reports.flatMap((report) => report.latencies);
    row('– each, ms', percentiles(latencies, 0));
    rows(reports, ['– syncs', ({ syncs }) => syncs, 0], ['– CPU, ms', ({ cpu }) => cpu, 0], stall);
  }
  for (const path of pathNames) {
    row(`new connection ${PATHS[path]}, µs`, percentiles(connections[path], 1));
  }
}

await runBench({
  name: 'nftables',
  where: IN_NAMESPACES,
  flags: {
    services: servicesFlag('100,10000', { quick: '100,1000', all: '100,1000,10000,30000' }),
    runs: runsFlag('3', { quick: '2' }),
  },
  run: async ({ services, runs }) => {
    const { stdout: nft } = await execa('nft', ['--version']);
    printHead(LEGEND, [nft]);
    console.log('| Services | what | Portwide | netlink | × | nft | × |');
    console.log('|---:|---|---:|---:|---:|---:|---:|');
    const directory = mkdtempSync(join(tmpdir(), 'portwide-bench-'));
    try {
      for (const count of services) {
        printAll(count, await measure(count, runs, join(directory, 'table.nft')));
      }
    } finally {
      rmSync(directory, { recursive: true });
    }
  },
});
