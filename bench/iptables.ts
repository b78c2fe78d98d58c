/**
 * Times the iptables mode on this machine's kernel: full syncs, single changes, and the first
 * packet of connections. Measures the same with kube-proxy's rules. Results go to standard output as Markdown, progress to
 * standard error.
 */
import { iptablesCommands, type Variant } from '../iptables/commands.ts';
import {
  IN_NAMESPACES,
  printHead,
  runBench,
  runsFlag,
  servicesFlag,
  variantsFlag,
} from './harness.ts';
import type { IptablesJobs, Job } from './iptables-process.ts';
import { jobsOf, type Report } from './jobs.ts';
import { type Network, withNetwork } from './network.ts';
import {
  collect,
  connectBare,
  connectPaths,
  medians,
  noTimes,
  PATHS,
  type Path,
  pathNames,
} from './packets.ts';
import { CHANGES, type SyncTiming } from './subject.ts';
import { type CellValues, cell, LIMIT, median, printRow, ratio, type TableRow } from './table.ts';

const LEGEND = `Each Service has 10 endpoints; IPv4, one TCP port, plus one all-ports Service. Values are medians, with
minimum and maximum. Portwide's time runs from the first object to the kernel; at a restart the kernel already has
all rules. "kube-proxy’s shape" is not kube-proxy itself: only iptables-restore of the rules that kube-proxy would
write is timed. A change sends the chains of the Service and all of KUBE-SERVICES; the first and the last VIP are
those of that chain. Rules that did not load within ${LIMIT} s were loaded in several transactions for the
measurements that follow.`;

type Start = Report<IptablesJobs, 'start'>;
type Changes = NonNullable<Start['changes']>;

/** Number of changes of each kind. */
const TIMES = 11;

/** Results, without operations that timed out and operations that depend on them. */
interface Measured {
  readonly starts: readonly Start[];
  readonly restarts: readonly SyncTiming[];
  readonly changes: Changes | undefined;
  /** Microseconds of a new connection: the median of each round. */
  readonly packets: Readonly<Record<Path, readonly number[]>>;
  readonly late: { readonly start: boolean; readonly restart: boolean };
}

const runJob = jobsOf<IptablesJobs>('iptables-process.ts');

/**
 * Starts and restarts `runs` times, each in new namespaces. The last run continues with changes. If
 * kube-proxy's rules time out, changes and packets are measured after a load in several transactions.
 */
async function measure(subject: Omit<Job, 'changes' | 'inParts'>, runs: number): Promise<Measured> {
  const { ruleset, variant, services } = subject;
  const starts: Start[] = [];
  const restarts: SyncTiming[] = [];
  const late = { start: false, restart: false };
  let changes: Changes | undefined;
  const packets = noTimes();
  const connect = async (network: Network) =>
    collect(packets, await connectPaths(network, services), medians);

  const start = async (network: Network, what: string, fields: Partial<Job> = {}) => {
    const job = { ...subject, changes: 0, inParts: false, ...fields };
    const report = await runJob(network.node, 'start', job);
    const seconds = report?.start.total.toFixed(2) ?? `> ${LIMIT}`;
    console.error(`iptables-${variant}, ${services} Services, ${ruleset}: ${what}: ${seconds} s`);
    changes ??= report?.changes;
    return report;
  };
  for (let run = 1; run <= runs && !late.start && !late.restart; run++) {
    await withNetwork(async (network) => {
      collect(packets, await connectBare(network), medians);
      const first = await start(network, `full sync ${run} of ${runs}`);
      late.start = first === null;
      if (first === null) return;
      starts.push(first);
      const fields = { changes: run === runs ? TIMES : 0 };
      const again = await start(network, `restart ${run} of ${runs}`, fields);
      late.restart = again === null;
      if (again !== null) restarts.push(again.start);
      await connect(network);
    });
  }
  if (late.start && ruleset === 'kube-proxy') {
    await withNetwork(async (network) => {
      const fields = { inParts: true, changes: TIMES };
      if ((await start(network, 'load in parts', fields)) !== null) await connect(network);
    });
  }
  return { starts, restarts, changes, packets, late };
}

function printRows(
  { variant, services }: Pick<Job, 'variant' | 'services'>,
  portwide: Measured,
  kubeProxy: Measured,
): void {
  const row = (
    what: string,
    ours: CellValues,
    theirs: CellValues,
    digits: number,
    notes = ['', ''],
  ) => {
    const cells = [ours, theirs].map(
      (values, index) => cell(values, digits) + (notes[index] ?? ''),
    );
    printRow(variant, services, what, ...cells, ratio(ours, theirs));
  };
  const both = (of: (measured: Measured) => CellValues) => [of(portwide), of(kubeProxy)] as const;
  const starts = (of: (timing: SyncTiming) => number) => (measured: Measured) =>
    measured.late.start ? 'late' : measured.starts.map(({ start }) => of(start));
  const own = (...[what, of, digits]: TableRow<Start>) =>
    row(what, portwide.starts.map(of), undefined, digits);

  row('full sync from nothing, s', ...both(starts(({ total }) => total)), 2);
  own('– resolve and compile, s', ({ start }) => start.total - start.load, 2);
  row('– load, s', ...both(starts(({ load }) => load)), 2);
  own('– longest stall of the event loop, ms', ({ stall }) => stall, 0);
  own('– peak memory, MiB', ({ memory }) => memory, 0);
  const restarted = both((measured) =>
    measured.late.restart ? 'late' : measured.restarts.map(({ total }) => total),
  );
  const rewritten = [portwide, kubeProxy].map(({ restarts }) => written(restarts));
  row('restart, s', ...restarted, 2, rewritten);

  for (const [what, of] of CHANGE_ROWS) {
    const timings = [portwide, kubeProxy].map(({ changes }) => changes && of(changes));
    const [ours, theirs] = timings.map((list) => list?.map(({ total }) => total * 1000));
    row(`${what}, ms`, ours, theirs, 1, timings.map(written));
    if (what === CHANGES.replace) {
      const alone = portwide.changes?.alone?.map((seconds) => seconds * 1000);
      row('– the same lines by iptables-restore alone, ms', alone, undefined, 1);
    }
  }
  for (const [what, field] of RULE_ROWS) {
    const counts = both(({ changes }) => {
      const count = changes?.rules[field];
      return count === undefined ? undefined : [count];
    });
    row(what, ...counts, 0);
  }
  for (const path of pathNames) {
    row(`new connection ${PATHS[path]}, µs`, ...both(({ packets }) => packets[path]), 1);
  }
}

function written(timings: readonly SyncTiming[] | undefined): string {
  if (timings === undefined || timings.length === 0) return '';
  return `; ${median(timings.map((timing) => timing.written))} chains`;
}

const CHANGE_ROWS: readonly (readonly [string, (changes: Changes) => readonly SyncTiming[]])[] = [
  ['first change after a restart', ({ first }) => [first]],
  [CHANGES.replace, ({ replace }) => replace],
  [CHANGES.add, ({ add }) => add],
  [CHANGES.remove, ({ remove }) => remove],
];

const RULE_ROWS = [
  ['rules in all', 'total'],
  ['rules that one ordinary Service adds', 'ordinary'],
  ['rules that one all-ports Service adds', 'allPorts'],
] as const;

await runBench({
  name: 'iptables',
  where: IN_NAMESPACES,
  flags: {
    // A smaller cluster would not fill the dispatch trees.
    services: servicesFlag('1000,10000', { quick: '1000' }, 200),
    variants: variantsFlag,
    runs: runsFlag('3'),
  },
  run: async ({ services: sizes, variants, runs }) => {
    const version = (variant: Variant) => iptablesCommands('IPv4', variant).version();
    const versions = await Promise.all(variants.map(version));
    printHead(LEGEND, versions);
    console.log('| iptables | Services | what | Portwide | kube-proxy’s shape | ratio |');
    console.log('|---|---:|---|---:|---:|---:|');
    for (const variant of variants) {
      for (const services of sizes) {
        const size = { variant, services };
        const portwide = await measure({ ...size, ruleset: 'portwide' }, runs);
        const kubeProxy = await measure({ ...size, ruleset: 'kube-proxy' }, runs);
        printRows(size, portwide, kubeProxy);
      }
    }
  },
});
