/**
 * Compares Service proxies as whole programs: Portwide and kube-proxy in each mode, or any other by its command line. Results go to
 * standard output as Markdown, and as a plot to a file.
 */
import { writeFileSync } from 'node:fs';
import { AGENT_ROWS } from './agents.ts';
import { apiServerVersion } from './api-servers.ts';
import { printHead, runBench, runsFlag, servicesFlag } from './harness.ts';
import { PATHS, pathNames } from './packets.ts';
import { type Panel, plot } from './plot.ts';
import { measureProgram, type ProgramRun } from './program-run.ts';
import { kubeProxyVersion, type Program, programsFlag, WHERE } from './programs.ts';
import { type CellValues, cell, LIMIT, median, printRow, ratio } from './table.ts';

const LEGEND = `All programs run with their defaults and both families. Their rules are in effect when connections to the first,
the middle and the last VIP succeed. A change of one API object, made while idle, is timed from the API server until
a connection succeeds. CPU excludes the commands they run, memory includes them. Values are medians, with minimum
and maximum; for connections, the median of each round. Ratios are to the first program: 2.0× is twice as much. A program that did not serve
within ${LIMIT} s is not measured further.`;

interface Row {
  readonly what: string;
  readonly of: (run: ProgramRun) => readonly number[];
  readonly digits: number;
  readonly isPlotted: boolean;
}

const START = 'start until the rules are in effect, s';
const ROWS: readonly Row[] = [
  { what: START, of: ({ seconds }) => [seconds], digits: 2, isPlotted: true },
  ...AGENT_ROWS.map(([what, of, digits]) => ({
    what,
    of: (run: ProgramRun) => [of(run)],
    digits,
    isPlotted: !what.includes('peak'),
  })),
  { what: 'one Service added, ms', of: ({ added }) => added, digits: 1, isPlotted: true },
  {
    what: 'endpoints of one Service replaced, ms',
    of: ({ replaced }) => replaced,
    digits: 1,
    isPlotted: true,
  },
  ...pathNames.map((path) => ({
    what: `new connection ${PATHS[path]}, µs`,
    of: ({ packets }: ProgramRun) => packets[path],
    digits: 1,
    isPlotted: path === 'last',
  })),
];

/** Runs of each program with one number of Services, in the order of the programs. */
type Runs = readonly (readonly (ProgramRun | null)[])[];

await runBench({
  name: 'compare',
  where: WHERE,
  flags: {
    services: servicesFlag('100,1000,10000', { quick: '100', all: '100,1000,10000,30000' }),
    programs: programsFlag(
      process.env.KUBE_PROXY ? 'portwide-nftables,kube-proxy-nftables' : 'portwide-nftables',
    ),
    svg: { help: 'file for the plot', read: (text: string) => text, normal: '', presets: {} },
    runs: runsFlag('3', { quick: '1' }),
  },
  run: async ({ services: sizes, programs, svg, runs }) => {
    printHead(LEGEND, [...(await kubeProxyVersion()), await apiServerVersion()]);
    printRow('Services', 'what', ...programs.map(({ name }) => name));
    console.log(`|---:|---|${'---:|'.repeat(programs.length)}`);
    const measured = new Map<number, Runs>();
    for (const services of sizes) {
      const results = await measureAll(programs, services, runs);
      measured.set(services, results);
      for (const row of ROWS) printRow(services, row.what, ...cellsOf(row, results));
    }
    if (svg !== '') writeFileSync(svg, plot(panelsOf(programs, measured)));
  },
});

/** Alternates the programs, so that other load on the machine affects all. */
async function measureAll(
  programs: readonly Program[],
  services: number,
  runs: number,
): Promise<Runs> {
  const results: (ProgramRun | null)[][] = programs.map(() => []);
  for (let run = 1; run <= runs; run++) {
    for (const [index, program] of programs.entries()) {
      const result = await measureProgram(program, services);
      results[index]?.push(result);
      const text = result === null ? 'late' : `${result.seconds.toFixed(2)} s`;
      console.error(`${program.name}, ${services} Services, run ${run} of ${runs}: ${text}`);
    }
  }
  return results;
}

function valuesOf({ what, of }: Row, runs: readonly (ProgramRun | null)[]): CellValues {
  if (what === START && runs.includes(null)) return 'late';
  return runs.flatMap((run) => (run === null ? [] : of(run)));
}

function cellsOf(row: Row, results: Runs): string[] {
  const [first, ...others] = results.map((runs) => valuesOf(row, runs));
  return [
    cell(first, row.digits),
    ...others.map((values) => `${cell(values, row.digits)} ${ratio(first, values)}`.trim()),
  ];
}

function panelsOf(programs: readonly Program[], measured: ReadonlyMap<number, Runs>): Panel[] {
  return ROWS.filter(({ isPlotted }) => isPlotted).map((row) => ({
    title: row.what.replace('– ', ''),
    lines: programs.map(({ name }, index) => ({
      name,
      points: [...measured].flatMap(([services, results]): [number, number][] => {
        const values = valuesOf(row, results[index] ?? []);
        if (values === undefined || values === 'late' || values.length === 0) return [];
        return [[services, median(values)]];
      }),
    })),
  }));
}
