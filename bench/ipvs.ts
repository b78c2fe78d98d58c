/**
 * Times the IPVS mode in user-mode-linux, and ipvsadm in the same kernel. Results go to standard
 * output as Markdown, progress to standard error.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { bootUml, INSIDE } from '../test/uml/boot.ts';
import { printHead, runBench, runsFlag, servicesFlag } from './harness.ts';
import type { IpvsMeasured } from './ipvs-inside.ts';
import type { StalledTiming } from './ipvs-process.ts';
import type { LongestStalls } from './stalls.ts';
import { CHANGES, changeKinds } from './subject.ts';
import { type CellValues, cell, printRow, ratio } from './table.ts';

const LEGEND = `Each Service has 10 endpoints; IPv4, one TCP port, plus one all-ports Service.
Values are medians, with minimum and maximum. Portwide's time runs from the first object to the kernel and includes
ipsets, addresses, and iptables-legacy's rules. At a restart the kernel already has everything. ipvsadm gets text
that ipvsadm --save wrote; a shell starts it for single endpoints. Stalls are of the event loop.`;

type Changes = NonNullable<IpvsMeasured['portwide'][number]['changes']>;

const REPORT = 'report';
const SCRIPT = fileURLToPath(new URL('ipvs-inside.ts', import.meta.url));
const TIMEOUT_SECONDS = 3600;

async function measure(services: number, runs: number): Promise<IpvsMeasured> {
  const kernel = bootUml({
    command: ['node', SCRIPT, `${services}`, `${runs}`, `${INSIDE}/${REPORT}`],
    timeoutSeconds: TIMEOUT_SECONDS,
  });
  try {
    let printed = 0;
    for (let over = false; !over; ) {
      over = kernel.ended !== undefined;
      const lines = kernel.read('output').split('\n').slice(0, -1);
      for (const line of lines.slice(printed)) console.error(`ipvs, ${services} Services, ${line}`);
      printed = lines.length;
      if (!over) await sleep(500);
    }
    const text = kernel.read(REPORT);
    if (text === '') throw new Error(`no report: ${kernel.ended}\n${kernel.output()}`);
    return JSON.parse(text) as IpvsMeasured;
  } finally {
    await kernel.stop();
  }
}

/** The ratio is the value of the commands divided by Portwide's. */
function printAll(services: number, measured: IpvsMeasured): void {
  const { portwide, restarts, netlink, commands } = measured;
  const row = (what: string, ours: CellValues, digits: number, theirs?: CellValues, by = '') => {
    const cells = [cell(ours, digits), cell(theirs, digits) + by];
    printRow(services, what, ...cells, ratio(ours, theirs));
  };
  const stalls = (doing: string, timings: readonly StalledTiming[], kind: keyof LongestStalls) => {
    const longest = timings.map((timing) => timing.stalls[kind]);
    row(`– longest stall while ${doing}, ms`, longest, 0);
  };
  const seconds = (values: readonly number[]) => values.map((value) => value / 1000);
  const restore = seconds(commands.map((each) => each.restore));
  const both = seconds(commands.map((each) => each.restore + each.restoreSets));
  const add = commands.flatMap(({ adds }) => adds);
  const replace = commands.flatMap(({ adds, removes }) =>
    adds.map((milliseconds, index) => milliseconds + (removes[index] ?? 0)),
  );
  const byRestore = ' `ipvsadm --restore`';
  const byAdding = ' `ipvsadm -a`';

  const messages = seconds(netlink.map(({ load }) => load));
  row('IPVS services and destinations, s', messages, 2, restore, byRestore);
  const destinations = netlink.flatMap(({ changes }) => changes);
  row('one destination, ms', destinations, 1, add, byAdding);
  const starts = portwide.map(({ start }) => start);
  const [totals, loads] = [starts.map(({ total }) => total), starts.map(({ load }) => load)];
  const compiles = starts.map(({ total, load }) => total - load);
  row('full sync from nothing, s', totals, 2, restore, byRestore);
  row('– including ipsets, s', totals, 2, both, ' and `ipset restore`');
  row('– resolve and compile, s', compiles, 2);
  row('– load, s', loads, 2, restore, byRestore);
  stalls('compiling', starts, 'compile');
  stalls('loading', starts, 'apply');
  stalls('starting a command', starts, 'start');
  const memories = portwide.map(({ memory }) => memory);
  row('– peak memory, MiB', memories, 0);
  const again = restarts.map(({ start }) => start);
  const restarted = again.map(({ total }) => total);
  row('restart, s', restarted, 2);
  stalls('comparing', again, 'apply');
  const change = (
    what: string,
    of: (changes: Changes) => readonly StalledTiming[],
    theirs?: CellValues,
    by = '',
  ) => {
    const timings = restarts.flatMap(({ changes }) => (changes === undefined ? [] : of(changes)));
    const milliseconds = timings.map(({ total }) => total * 1000);
    row(`${what}, ms`, milliseconds, 1, theirs, by);
    stalls('applying', timings, 'apply');
  };
  const first = 'first change after a restart: one endpoint added';
  change(first, (changes) => [changes.first], add, byAdding);
  change('one endpoint added', ({ grow }) => grow, add, byAdding);
  for (const kind of changeKinds) {
    const ofKind = (changes: Changes) => changes[kind];
    if (kind === 'replace') change(CHANGES[kind], ofKind, replace, ' `ipvsadm -a`, `-d`');
    else change(CHANGES[kind], ofKind);
  }
}

await runBench({
  name: 'ipvs',
  where: 'Needs root. Runs in its own kernel, user-mode-linux.',
  flags: {
    services: servicesFlag('1000', {}),
    runs: runsFlag('5', { quick: '2' }),
  },
  run: async ({ services: sizes, runs }) => {
    for (const services of sizes) {
      const measured = await measure(services, runs);
      printHead(LEGEND, [`user-mode-linux ${measured.kernel}`, measured.ipvsadm]);
      console.log('| Services | what | Portwide | by commands | ratio |');
      console.log('|---:|---|---:|---:|---:|');
      printAll(services, measured);
    }
  },
});
