/**
 * Measures how long an ordinary change waits while Services with the most port ranges are created, changed and deleted.
 * Results go to standard output as Markdown, progress to standard error.
 */
import {
  type Flag,
  IN_NAMESPACES,
  numberFlag,
  oneOf,
  printHead,
  repeat,
  runBench,
  runsFlag,
} from './harness.ts';
import { jobsOf } from './jobs.ts';
import { withNetwork } from './network.ts';
import { MODES, PHASES, type Phase, type RangesJobs, type RangesMode } from './ranges-process.ts';
import { cell, median, percentile, percentiles, printRow, ratio } from './table.ts';

const LEGEND = `IPv4. An ordinary Service gets another endpoint every 10 ms. Latency: from the EndpointSlice until the kernel has it.
CPU: kernel time of the agent and its commands. A ratio is the p99 divided by the p99 of the idle agent in the same run.`;

const run = jobsOf<RangesJobs>('ranges-process.ts');

const modeFlag: Flag<RangesMode> = {
  help: MODES.join(' or '),
  read: oneOf(MODES),
  normal: 'nftables',
  presets: {},
};

await runBench({
  name: 'ranges',
  where: IN_NAMESPACES,
  flags: {
    services: numberFlag('number of Services with port ranges', '300', { quick: '30' }),
    ranges: numberFlag('ranges of each, of one port', '1024'),
    slices: numberFlag('slices of owned ports of each, instead of ranges', '1'),
    namespaces: numberFlag('number of namespaces', '3'),
    period: numberFlag('minimum interval between updates, in milliseconds', '10'),
    mode: modeFlag,
    runs: runsFlag('3', { quick: '1' }),
  },
  run: async ({ mode, runs, ...load }) => {
    printHead(LEGEND);
    const reports = await repeat(runs, `mode ${mode}`, () =>
      withNetwork(({ node }) => run(node, 'agent', { mode, ...load })),
    );
    console.log('| phase | s | kernel CPU, s | ordinary change, ms | longest | × idle |');
    console.log('|---|---:|---:|---:|---:|---:|');
    const p99 = (of: (phase: (typeof PHASES)[number]) => boolean) => (report: Phases) =>
      percentile(
        PHASES.filter(of).flatMap((phase) => report[phase].latencies),
        99,
      );
    for (const phase of PHASES) {
      const phases = reports.map((report) => report[phase]);
      printRow(
        phase,
        cell(
          phases.map(({ seconds }) => seconds),
          1,
        ),
        cell(
          phases.map(({ cpu }) => cpu),
          1,
        ),
        percentiles(
          phases.flatMap(({ latencies }) => latencies),
          1,
        ),
        median(phases.map(({ latencies }) => Math.max(...latencies))).toFixed(0),
        ratio(
          reports.map(p99((each) => each === 'idle')),
          reports.map(p99((each) => each === phase)),
        ),
      );
    }
  },
});

type Phases = Readonly<Record<(typeof PHASES)[number], Phase>>;
