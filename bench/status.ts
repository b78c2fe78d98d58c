/**
 * Measures what the status API costs: syncs while a client sends requests, an agent without requests, and memory. Results
 * go to standard output as Markdown, progress to standard error.
 */
import { fileURLToPath } from 'node:url';
import { runIn } from '../test/lab/processes.ts';
import {
  IN_NAMESPACES,
  numberFlag,
  printHead,
  runBench,
  runsFlag,
  servicesFlag,
} from './harness.ts';
import { jobsOf } from './jobs.ts';
import { withNetwork } from './network.ts';
import type { StatusJobs } from './status-process.ts';
import { median, percentile, printRow } from './table.ts';

const LEGEND = `Mode nftables, an agent with an API server (a fake). "sync" is the duration of a sync of one changed Service, "to
kernel" the time from the change at the API server until the kernel has it. Rounds without requests, with requests that
another process refuses, and with requests to the agent alternate: a fifth each for the first page of Services, one Service, the status, the comparison with the kernel, and who may reach the
pods of a namespace (2,000 pods, 200 policies).`;

const run = jobsOf<StatusJobs>('status-process.ts');

const FLOOD = fileURLToPath(new URL('flood.ts', import.meta.url));

async function measureSyncs(services: number, rate: number, rounds: number, changes: number) {
  const report = await withNetwork(({ node }) =>
    run(node, 'syncs', { services, rate, rounds, changes }),
  );
  const { quiet, elsewhere, loaded, loads, cpus } = report;
  for (const what of ['sync', 'kernel'] as const) {
    const title = what === 'sync' ? 'sync' : 'to kernel';
    for (const percent of [50, 90]) {
      const [without = 0, other = 0, during = 0] = [quiet, elsewhere, loaded].map((times) =>
        percentile(times[what], percent),
      );
      const cells = [without, other, during].map((value) => value.toFixed(2));
      const ratios = [without, other].map((value) => (during / value).toFixed(2));
      printRow(services, `${title}, p${percent}, ms`, ...cells, ...ratios);
    }
  }
  const middle = (of: (load: (typeof loads)[number]) => number) => median(loads.map(of)).toFixed();
  console.error(
    `${services} Services: ${middle(({ rate }) => rate)} requests/s, ${middle(({ answered }) => answered)} answered, ` +
      `${middle(({ refused }) => refused)} refused; the agent used ${(median(cpus) * 100).toFixed(1)} % of a core`,
  );
}

/** Agents with and without the status API run at the same time, so that other load of the machine hits both. */
async function measureIdle(services: number, seconds: number): Promise<void> {
  const share = (isOn: boolean) =>
    withNetwork(({ node }) => run(node, 'idle', { services, seconds, isOn }));
  const [without, during] = await Promise.all([share(false), share(true)]);
  const cells = [without, during].map((value) => (value * 100).toFixed(3));
  const [off = '', on = ''] = cells;
  printRow(services, 'CPU without requests, % of a core', off, '', on, '', '');
}

/** CPU of an agent while connections open and close, each for an instant. */
async function measureTraffic(connections: number, seconds: number, rounds: number) {
  const services = 100;
  const looks = await withNetwork(async ({ node, client }) => {
    const { spawn, stop } = runIn('client', client);
    spawn(process.execPath, [FLOOD, String(connections), String(services)]);
    try {
      return await run(node, 'traffic', { services, seconds, rounds });
    } finally {
      await stop();
    }
  });
  const byLook = Map.groupBy(looks, ({ look }) => look);
  const shareOf = (of: typeof looks) => median(of.map(({ share }) => share)) * 100;
  const quiet = shareOf(byLook.get('nothing') ?? []);
  for (const [look, of] of byLook) {
    if (look === 'nothing') continue;
    const lines = median(of.map(({ linesPerSecond }) => linesPerSecond));
    const shown = look === 'top' ? '' : `, ${lines.toFixed()} events/s shown`;
    const title = `CPU at ${connections} connections/s, ${look}${shown}, % of a core`;
    printRow(services, title, quiet.toFixed(2), '', shareOf(of).toFixed(2), '', '');
  }
}

await runBench({
  name: 'status',
  where: IN_NAMESPACES,
  flags: {
    services: servicesFlag('1000,5000', { quick: '1000' }),
    rate: numberFlag('requests a second', '1000'),
    changes: numberFlag('changes of a round', '40', { quick: '20' }),
    runs: runsFlag('5', { quick: '2' }),
    connections: numberFlag('connections a second', '10000'),
    seconds: numberFlag('seconds without requests', '60', { quick: '20' }),
  },
  run: async ({ services: sizes, rate, changes, connections, runs, seconds }) => {
    printHead(LEGEND);
    console.log(
      '| Services | what | without | requests to another process | with requests or API | ratio | ratio to another |\n' +
        '|---:|---|---:|---:|---:|---:|---:|',
    );
    for (const services of sizes) {
      await measureSyncs(services, rate, runs, changes);
      await measureIdle(services, seconds);
    }
    await measureTraffic(connections, seconds / 2, runs);
    const { series, changes: log } = await withNetwork(({ node }) => run(node, 'memory', {}));
    const kibibytes = ((series + log) / 1024).toFixed();
    printRow('', 'memory of series and change log, KiB', '', '', kibibytes, '', '');
  },
});
