/**
 * Two agents on nftables under churn: changes, watches cut, API server restarts and restores, changes of the tables by
 * another program, and connections. One agent is killed every 20 seconds; the memory of the other one is followed.
 * Exits with 1 if something does not hold.
 */
import { failuresOf, runSteady, STEP_MS, type SteadyReport } from '../test/e2e/steady/run.ts';
import { createStage } from '../test/e2e/steady/stage.ts';
import { IN_NAMESPACES, numberFlag, printHead, runBench } from './harness.ts';
import { followMemory, type MemorySample, mean, type Slope, slopeOf } from './steady-memory.ts';
import { printRow } from './table.ts';

const LEGEND = `Both agents have the same Services and get the same changes. Memory: the resident set of the agent that lives,
without the warm-up; its slope by least squares, with the standard error.`;

const ROUND_MINUTES = 2.5;
/** Share of the run before memory counts; ten minutes of thirty. */
const WARM_UP = 1 / 3;
/** MB an hour. */
const MOST_SLOPE = 1;
const STEPS_PER_SECOND = 1000 / STEP_MS;

function printReport(report: SteadyReport, samples: readonly MemorySample[], slope?: Slope): void {
  const { faults, traffic, quiet, changes, syncs } = report;
  const { killed, living } = traffic;
  const memoryOf = (part: readonly MemorySample[]) =>
    mean(part.map(({ memory }) => memory)).toFixed(1);
  const [first, last] = [quiet[0]?.living, quiet.at(-1)?.living];
  console.log('| what | |\n|---|---:|');
  printRow('Services changed', changes);
  printRow('syncs', syncs);
  for (const [kind, count] of Object.entries(faults)) printRow(`faults: ${kind}`, count);
  console.log('\n| traffic | killed agent | living agent |\n|---|---:|---:|');
  const compare = (what: string, of: (traffic: typeof killed) => string | number) =>
    printRow(what, of(killed), of(living));
  compare('connections opened', ({ opened }) => opened);
  compare('– answered after more than 0.9 s', ({ slow }) => slow);
  compare('– refused while a flushed table was repaired', (each) => each.refusedInFlush);
  compare('longest repair of a flushed table, s', (each) => each.longestRepair.toFixed(1));
  compare('exchanges on held connections', ({ exchanges }) => exchanges);
  compare('datagrams on UDP flows', ({ datagrams }) => datagrams);
  compare('lost: new connections, held connections, UDP flows', ({ lost }) => lost.length);
  console.log('\n| living agent | |\n|---|---:|');
  printRow('memory in the first minute, MiB', memoryOf(samples.slice(0, 60)));
  printRow('memory in the last minute, MiB', memoryOf(samples.slice(-60)));
  printRow(
    'slope, MB an hour',
    slope === undefined ? '–' : `${slope.slope.toFixed(1)} ± ${slope.error.toFixed(1)}`,
  );
  printRow('threads, first and last', `${first?.threads}, ${last?.threads}`);
  printRow('descriptors, first and last', `${first?.descriptors}, ${last?.descriptors}`);
  printRow('elements in the tables', report.elements);
  printRow('stale conntrack entries', sumLengths(quiet.map((point) => point.staleFlows)));
  printRow(
    'drift, stale elements',
    sumLengths([...quiet.map(({ drift }) => drift), report.differentElements]),
  );
}

function sumLengths(lists: readonly (readonly string[])[]): number {
  return lists.reduce((total, list) => total + list.length, 0);
}

await runBench({
  name: 'steady',
  where: IN_NAMESPACES,
  flags: {
    minutes: numberFlag('minutes of churn', '30', { quick: '3' }),
    changes: numberFlag('Services changed in a second', '100'),
    connections: numberFlag('connections in a second', '2000'),
    services: numberFlag('number of Services', '1000'),
    seed: numberFlag('seed of all random choices', '1'),
  },
  run: async ({ minutes, changes, connections, services, seed }) => {
    const rounds = Math.max(2, Math.round(minutes / ROUND_MINUTES));
    const stage = await createStage();
    try {
      let memory: ReturnType<typeof followMemory> | undefined;
      const report = await runSteady(
        stage,
        {
          seed,
          kept: Math.min(200, Math.ceil(services / 5)),
          passing: services,
          rounds,
          stepsPerRound: Math.round((minutes * 60 * STEPS_PER_SECOND) / rounds),
          changesPerStep: Math.ceil(changes / STEPS_PER_SECOND),
          connections,
          faults: { kill: 200, flush: 150, cut: 30, restart: 300 },
        },
        (pid) => {
          memory = followMemory(pid);
        },
        () => memory?.stop(),
      );
      const samples = memory?.stop() ?? [];
      const steady = samples.slice(Math.floor(samples.length * WARM_UP));
      const slope = slopeOf(steady);
      printHead(LEGEND);
      printReport(report, steady, slope);
      const failures = failuresOf(report);
      // Less than two standard errors is noise of the garbage collector.
      if (slope !== undefined && slope.slope - 2 * slope.error > MOST_SLOPE) {
        failures.push(`memory grows by ${slope.slope.toFixed(1)} MB an hour`);
      }
      for (const failure of failures) console.error(failure);
      if (failures.length > 0) process.exitCode = 1;
    } finally {
      await stage.destroy();
    }
  },
});
