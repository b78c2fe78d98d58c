/**
 * Measures an agent that an API server feeds: the first list, a list after the server has forgotten
 * the version, and the memory of the whole agent at rest. The server is the double of the tests, in
 * the agent's namespace. Results go to standard output as Markdown, progress to standard error.
 */
import { availableParallelism, cpus, release } from 'node:os';
import { fileURLToPath } from 'node:url';
import { type AgentRun, type ListRun, measureAgent, measureList } from './api-jobs.ts';
import { apiObjects } from './api-objects.ts';
import { type Flags, readFlags } from './flags.ts';
import { cell } from './table.ts';

const RUNS = 3;

const USAGE = `Usage: node bench/api.ts [--services 1000,10000] [--variants nft,legacy] [--runs N] [--quick]

  --services  how many Services, one or several numbers of at least 200
  --variants  which iptables the whole agent uses
  --runs      how often each is measured (default ${RUNS})
  --quick     1,000 Services, unless --services says otherwise

Needs root. Works in network namespaces of its own.`;

const LEGEND = `Each Service has one TCP port, one EndpointSlice and 10 endpoints; both objects are as an API server
has them, managed fields and all. The list is that of Services, EndpointSlices and the Node, in pages
of 500, until the agent has all of them. Medians, with the least and the greatest.`;

async function main(flags: Flags): Promise<void> {
  const processor = `${availableParallelism()} cores (${cpus()[0]?.model ?? 'unknown'})`;
  console.log(`Linux ${release()}, ${processor}, Node ${process.version}\n\n${LEGEND}\n`);
  console.log('| Services | what | |\n|---:|---|---:|');
  for (const services of flags.services) {
    const runs = flags.runs ?? RUNS;
    const lists = await repeat(runs, () => measureList(services), `${services} Services, list`);
    for (const [what, of, digits] of LIST_ROWS) row(services, what, lists.map(of), digits);
    row(services, '– JSON of it, MB', [megabytes(services)], 1);
    for (const variant of flags.variants) {
      const measure = () => measureAgent(services, [`--iptables-variant=${variant}`]);
      const agents = await repeat(runs, measure, `${services} Services, iptables-${variant}`);
      for (const [what, of, digits] of AGENT_ROWS) {
        row(services, `iptables-${variant}: ${what}`, agents.map(of), digits);
      }
    }
  }
}

const LIST_ROWS: readonly (readonly [string, (run: ListRun) => number, number])[] = [
  ['first list, s', ({ first }) => first.seconds, 2],
  ['– CPU, s', ({ first }) => first.cpu, 2],
  ['– longest stall of the event loop, ms', ({ first }) => first.stall, 0],
  ['– memory then, without any rules, MiB', ({ first }) => first.memory, 0],
  ['list again after 410, nothing changed: CPU, s', ({ again }) => again.cpu, 2],
  ['– longest stall of the event loop, ms', ({ again }) => again.stall, 0],
];

const AGENT_ROWS: readonly (readonly [string, (run: AgentRun) => number, number])[] = [
  ['CPU from the start until it serves, s', ({ cpu }) => cpu, 2],
  ['– memory ten seconds later, MiB', ({ settled }) => settled, 0],
  ['– peak, MiB', ({ peak }) => peak, 0],
];

async function repeat<Run>(
  runs: number,
  measure: () => Promise<Run>,
  what: string,
): Promise<Run[]> {
  const results: Run[] = [];
  for (let run = 1; run <= runs; run++) {
    results.push(await measure());
    console.error(`${what}: run ${run} of ${runs}: ${JSON.stringify(results.at(-1))}`);
  }
  return results;
}

function row(services: number, what: string, values: readonly number[], digits: number): void {
  console.log(`| ${services} | ${what} | ${cell(values, digits)} |`);
}

function megabytes(services: number): number {
  return (services * JSON.stringify(apiObjects(0)).length) / 1e6;
}

let flags: Flags | undefined;
try {
  flags = readFlags(process.argv.slice(2));
} catch (error) {
  console.error(`${error instanceof Error ? error.message : error}\n\n${USAGE}`);
  process.exitCode = 2;
}
if (flags !== undefined) {
  // As in iptables.ts: other programs must not wait for the benchmark.
  process.env.XTABLES_LOCKFILE = fileURLToPath(import.meta.url);
  await main(flags);
}
