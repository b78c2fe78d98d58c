/**
 * Measures the memory of `portwide run` in mode nftables with an API server, from a checkout and
 * bundled as in the image. Results go to standard output as Markdown, progress to standard error.
 */
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { execa } from 'execa';
import { PORTWIDE as BUNDLE } from '../test/portwide.ts';
import {
  PORTWIDE as CHECKOUT,
  clusterObjects,
  logged,
  type NodeWithApiServer,
  nftablesArguments,
  withTlsApiServer,
} from './agents.ts';
import { IN_NAMESPACES, printHead, repeat, runBench, runsFlag, servicesFlag } from './harness.ts';
import { field } from './processes.ts';
import { cell, printRow, type TableRow } from './table.ts';

const LEGEND = `Each Service has one TCP port, one EndpointSlice and 10 endpoints, listed from an API server (a fake) over TLS. MiB from
/proc/PID/smaps_rollup, ten seconds after the agent has served both IP families. Medians, with minimum and maximum.`;

const PROGRAMS = { checkout: CHECKOUT, bundle: BUNDLE } as const;
/** Milliseconds without changes before memory is measured. */
const SETTLE_MS = 10_000;

interface Memory {
  /** Seconds from the start of the process until both IP families are served. */
  readonly served: number;
  readonly resident: number;
  /** Pages of the program and its libraries: clean, and shared by processes of the same program. */
  readonly file: number;
  readonly anonymous: number;
  readonly proportional: number;
  readonly peak: number;
}

const ROWS: readonly TableRow<Memory>[] = [
  ['resident', ({ resident }) => resident, 0],
  ['– file-backed', ({ file }) => file, 0],
  ['– anonymous', ({ anonymous }) => anonymous, 0],
  ['proportional', ({ proportional }) => proportional, 0],
  ['peak', ({ peak }) => peak, 0],
  ['start until served, s', ({ served }) => served, 2],
];

async function measure(
  program: string,
  { spawn }: NodeWithApiServer,
  directory: string,
): Promise<Memory> {
  const began = performance.now();
  const agent = spawn(program, nftablesArguments(directory));
  const { pid, stdout } = agent;
  if (stdout === null || pid === undefined) throw new Error('the agent did not start');
  await logged(stdout, 'serving', 2);
  const served = (performance.now() - began) / 1000;
  await sleep(SETTLE_MS);
  const memory = { served, ...memoryOf(pid) };
  agent.kill('SIGTERM');
  await agent;
  return memory;
}

function memoryOf(pid: number): Omit<Memory, 'served'> {
  const inRollup = (name: string) => field(pid, name, 'smaps_rollup');
  const [resident, anonymous, proportional] = [
    inRollup('Rss'),
    inRollup('Anonymous'),
    inRollup('Pss'),
  ];
  if (!resident) throw new Error('the process has ended');
  const peak = field(pid, 'VmHWM');
  return { resident, anonymous, file: resident - anonymous, proportional, peak };
}

/** Memory of a process of Node.js that does nothing: the agent cannot use less. */
async function emptyProcess(): Promise<Omit<Memory, 'served'>> {
  const child = execa(process.execPath, ['--eval', 'console.log(); setInterval(() => {}, 1000)']);
  try {
    await once(child.stdout, 'data');
    return memoryOf(child.pid ?? 0);
  } finally {
    child.kill();
    await child.catch(() => undefined);
  }
}

await runBench({
  name: 'memory',
  where: IN_NAMESPACES,
  flags: {
    services: servicesFlag('100,1000,10000', { quick: '100', all: '100,1000,10000,30000' }),
    runs: runsFlag('3', { quick: '1' }),
  },
  run: async ({ services: sizes, runs }) => {
    const { resident, file } = await emptyProcess();
    const floor = `An empty process of Node.js: ${resident.toFixed()} MiB, ${file.toFixed()} of them file-backed.`;
    printHead(`${LEGEND}\n${floor}`);
    printRow('Services', '', ...Object.keys(PROGRAMS));
    console.log(`|---:|---|${'---:|'.repeat(Object.keys(PROGRAMS).length)}`);
    for (const services of sizes) {
      const results: Memory[][] = [];
      for (const [name, program] of Object.entries(PROGRAMS)) {
        const once = () =>
          withTlsApiServer(clusterObjects(services), (node, directory) =>
            measure(program, node, directory),
          );
        results.push(await repeat(runs, `${services} Services, ${name}`, once));
      }
      for (const [what, of, digits] of ROWS) {
        printRow(services, what, ...results.map((each) => cell(each.map(of), digits)));
      }
    }
  },
});
