/** The results of the IPVS mode as rows of a Markdown table. */
import type { IpvsMeasured, PortwideChanges, StalledTiming } from './ipvs-jobs.ts';
import type { Longest } from './stalls.ts';
import { cell, ratio, type Values } from './table.ts';

export const LEGEND = `Each Service has 10 endpoints; IPv4, one TCP port, and one Service more that is on every port.
Medians, with the least and the greatest. Portwide's time runs from the first object to the kernel, and
all is in it: sets, addresses, iptables-legacy's rules. At a restart the kernel has everything already.
ipvsadm has its text ready, which ipvsadm --save wrote; what starts it for one endpoint is a shell.
Stalls are of the event loop.`;

const HEAD = ['| Services | what | Portwide | by commands | ratio |', '|---:|---|---:|---:|---:|'];

/** The ratio tells how many times Portwide's figure the other is. */
export function ipvsRows(services: number, measured: IpvsMeasured): string[] {
  const { portwide, restarts, netlink, commands } = measured;
  const lines = [...HEAD];
  const row = (what: string, ours: Values, theirs: Values, digits: number, note = '') => {
    const cells = [cell(ours, digits), cell(theirs, digits) + note];
    lines.push(`| ${[services, what, ...cells, ratio(ours, theirs)].join(' | ')} |`);
  };
  const stalls = (doing: string, timings: readonly StalledTiming[], kind: keyof Longest) => {
    const longest = timings.map((timing) => timing.stalls[kind]);
    row(`– longest stall while ${doing}, ms`, longest, undefined, 0);
  };
  const seconds = (values: readonly number[]) => values.map((value) => value / 1000);
  const restore = seconds(commands.map((each) => each.restore));
  const both = seconds(commands.map((each) => each.restore + each.restoreSets));
  const add = commands.flatMap(({ adds }) => adds);

  row(
    'IPVS services and destinations, s',
    seconds(netlink.map(({ load }) => load)),
    restore,
    2,
    ' `ipvsadm --restore`',
  );
  row(
    'one destination, ms',
    netlink.flatMap(({ changes }) => changes),
    add,
    1,
    ' `ipvsadm -a`',
  );
  const starts = portwide.map(({ start }) => start);
  const total = starts.map((timing) => timing.total);
  const compile = starts.map(({ total: all, load }) => all - load);
  const load = starts.map((timing) => timing.load);
  row('full sync from nothing, s', total, restore, 2, ' `ipvsadm --restore`');
  row('– beside the sets too, s', total, both, 2, ' and `ipset restore`');
  row('– resolve and compile, s', compile, undefined, 2);
  row('– load, s', load, restore, 2, ' `ipvsadm --restore`');
  stalls('compiling', starts, 'compile');
  stalls('loading', starts, 'apply');
  stalls('starting a command', starts, 'start');
  row('– peak memory, MiB', memories(portwide), undefined, 0);
  const again = restarts.map(({ start }) => start);
  row(
    'restart, s',
    again.map((timing) => timing.total),
    undefined,
    2,
  );
  stalls('comparing', again, 'apply');
  const replace = commands.flatMap(({ adds, removes }) =>
    adds.map((milliseconds, index) => milliseconds + (removes[index] ?? 0)),
  );
  const byCommands = { none: undefined, add, replace };
  const notes = { none: '', add: ' `ipvsadm -a`', replace: ' `ipvsadm -a`, `-d`' };
  for (const [what, of, command] of CHANGES) {
    const timings = restarts.flatMap(({ changes }) => (changes === undefined ? [] : of(changes)));
    const milliseconds = timings.map((timing) => timing.total * 1000);
    row(`${what}, ms`, milliseconds, byCommands[command], 1, notes[command]);
    stalls('applying', timings, 'apply');
  }
  return lines;
}

const CHANGES: readonly (readonly [
  what: string,
  of: (changes: PortwideChanges) => readonly StalledTiming[],
  command: 'none' | 'add' | 'replace',
])[] = [
  ['first change after a restart: one endpoint added', ({ first }) => [first], 'add'],
  ['one endpoint added', ({ grow }) => grow, 'add'],
  ['one endpoint replaced', ({ replace }) => replace, 'replace'],
  ['one Service added', ({ add }) => add, 'none'],
  ['one all-ports Service added', ({ addAllPorts }) => addAllPorts, 'none'],
  ['one Service removed', ({ remove }) => remove, 'none'],
];

function memories(reports: IpvsMeasured['portwide']): number[] {
  return reports.map(({ memory }) => memory);
}
