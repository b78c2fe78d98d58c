/**
 * Measures an agent with an API server: the initial list, a list after `410 Gone`, and the CPU time
 * and memory of the whole agent. The tests' fake API server runs in the agent's namespace. Results go to standard output as Markdown, progress to standard error.
 */
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import type { Variant } from '../iptables/commands.ts';
import { waitFor } from '../test/lab/wait.ts';
import { type AgentRun, clusterObjects, measureAgent, START_MS, withApiServer } from './agents.ts';
import { apiObjects } from './api-objects.ts';
import type { ListReport } from './api-process.ts';
import {
  IN_NAMESPACES,
  printHead,
  repeat,
  runBench,
  runsFlag,
  servicesFlag,
  variantsFlag,
} from './harness.ts';
import { printRow, printRows, type TableRow } from './table.ts';

const LEGEND = `Each Service has one TCP port, one EndpointSlice and 10 endpoints; both objects are complete, with managed
fields. A list consists of Services, EndpointSlices and the Node, in pages of 500. It is timed until the agent
has processed all of it. Values are medians, with minimum and maximum.`;

const PROCESS = fileURLToPath(new URL('api-process.ts', import.meta.url));

/** The initial list, and a list after a 410. */
interface ListRun {
  readonly first: ListReport;
  readonly again: ListReport;
}

const LIST_ROWS: readonly TableRow<ListRun>[] = [
  ['first list, s', ({ first }) => first.seconds, 2],
  ['– CPU, s', ({ first }) => first.cpu, 2],
  ['– longest stall of the event loop, ms', ({ first }) => first.stall, 0],
  ['– memory then, without any rules, MiB', ({ first }) => first.memory, 0],
  ['list again after 410, nothing changed: CPU, s', ({ again }) => again.cpu, 2],
  ['– longest stall of the event loop, ms', ({ again }) => again.stall, 0],
];

const agentRows = (variant: Variant): readonly TableRow<AgentRun>[] => [
  [`iptables-${variant}: CPU from the start until it serves, s`, ({ cpu }) => cpu, 2],
  [`iptables-${variant}: – memory ten seconds later, MiB`, ({ settled }) => settled, 0],
  [`iptables-${variant}: – peak, MiB`, ({ peak }) => peak, 0],
];

function measureList(services: number): Promise<ListRun> {
  return withApiServer(clusterObjects(services), async ({ spawn, double }) => {
    // The same options as in the launcher, ./portwide.
    const env = { MALLOC_TRIM_THRESHOLD_: '131072', MALLOC_ARENA_MAX: '2' };
    const args = ['--max-semi-space-size=4', PROCESS, double.url];
    const child = spawn(process.execPath, args, { stdin: 'pipe', env });
    const reports: ListReport[] = [];
    if (child.stdout === null) throw new Error('the list process has no output');
    createInterface({ input: child.stdout }).on('line', (line) => {
      reports.push(JSON.parse(line) as ListReport);
    });
    const report = (number: number) =>
      waitFor('the list process reports', () => reports[number], START_MS);
    const first = await report(0);
    const openWatches = async (lists: number) => {
      const requests = await double.call('requests');
      const watches = requests.filter(({ verb }) => verb === 'watch').length;
      return watches === 3 * lists;
    };
    await waitFor('the source watches', () => openWatches(1), START_MS);
    await double.call('breakWatches', 'expire');
    await waitFor('the source has listed again', () => openWatches(2), START_MS);
    child.stdin?.write('\n');
    const again = await report(1);
    return { first, again };
  });
}

await runBench({
  name: 'api',
  where: IN_NAMESPACES,
  flags: {
    services: servicesFlag('1000,10000', { quick: '1000' }),
    variants: variantsFlag,
    runs: runsFlag('3'),
  },
  run: async ({ services: sizes, variants, runs }) => {
    printHead(LEGEND);
    console.log('| Services | what | |\n|---:|---|---:|');
    for (const services of sizes) {
      const lists = await repeat(runs, `${services} Services, list`, () => measureList(services));
      printRows(lists, LIST_ROWS, services);
      const bytes = services * JSON.stringify(apiObjects(0)).length;
      printRow(services, '– size of the listed JSON, MB', (bytes / 1e6).toFixed(1));
      for (const variant of variants) {
        const agents = await repeat(runs, `${services} Services, iptables-${variant}`, () =>
          measureAgent(clusterObjects(services), [`--iptables-variant=${variant}`]),
        );
        printRows(agents, agentRows(variant), services);
      }
    }
  },
});
