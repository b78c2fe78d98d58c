/**
 * Measures how long an ordinary change waits while Services with the most port ranges are created, changed and deleted.
 * Results go to standard output as Markdown, progress to standard error.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { bootUml, INSIDE } from '../test/uml/boot.ts';
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
import {
  MODES,
  PHASES,
  type Phase,
  type RangesJobs,
  type RangesLoad,
  type RangesMode,
} from './ranges-process.ts';
import { cell, median, percentile, percentiles, printRow, ratio } from './table.ts';

const LEGEND = `IPv4. An ordinary Service gets another endpoint every 10 ms. Latency: from the EndpointSlice until the kernel has it.
CPU: kernel time of the agent and its commands. A ratio is the p99 divided by the p99 of the idle agent in the same run.`;

const SCRIPT = 'ranges-process.ts';
const run = jobsOf<RangesJobs>(SCRIPT);
const UML_TIMEOUT_SECONDS = 3600;

/** Runs the agent in user-mode-linux, which has IPVS. */
async function runInUml(load: RangesLoad): Promise<Phases> {
  const [request, report] = ['request', 'report'].map((name) => `${INSIDE}/${name}`);
  const kernel = bootUml({
    command: ['sh', '-c', `node bench/${SCRIPT} agent <${request} >${report}`],
    files: { request: JSON.stringify(load) },
    timeoutSeconds: UML_TIMEOUT_SECONDS,
  });
  try {
    while (kernel.ended === undefined) await sleep(200);
    const text = kernel.read('report');
    if (text === '') throw new Error(`no report: ${kernel.ended}\n${kernel.output()}`);
    return JSON.parse(text) as Phases;
  } finally {
    await kernel.stop();
  }
}

const modeFlag: Flag<RangesMode> = {
  help: MODES.join(', '),
  read: oneOf(MODES),
  normal: 'nftables',
  presets: {},
};

await runBench({
  name: 'ranges',
  where: `${IN_NAMESPACES} Mode ipvs runs in its own kernel, user-mode-linux: compare with its idle agent only.`,
  flags: {
    services: numberFlag('number of Services with port ranges', '300', { quick: '30' }),
    ranges: numberFlag('ranges of each', '1024'),
    ports: numberFlag('ports of each range', '1'),
    slices: numberFlag('slices of owned ports of each, instead of ranges', '1'),
    namespaces: numberFlag('number of namespaces', '3'),
    period: numberFlag('minimum interval between updates, in milliseconds', '10'),
    mode: modeFlag,
    runs: runsFlag('3', { quick: '1' }),
  },
  run: async ({ mode, runs, ...load }) => {
    printHead(LEGEND);
    const reports = await repeat<Phases>(
      runs,
      `mode ${mode}`,
      () =>
        mode === 'ipvs'
          ? runInUml({ mode, ...load })
          : withNetwork(({ node }) => run(node, 'agent', { mode, ...load })),
      (report) =>
        PHASES.map((phase) => `${phase} ${percentiles(report[phase].latencies, 1)}`).join('; '),
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
