/** The results as rows of a Markdown table. */
import { LIMIT, type Measured } from './measure.ts';
import { median } from './statistics.ts';
import type { Timing } from './subject.ts';

/** Values of one operation; `late`: it took longer than the limit. */
export type Values = readonly number[] | 'late' | undefined;

export const HEAD = [
  '| iptables | Services | what | Portwide | kube-proxy’s shape | ratio |',
  '|---|---:|---|---:|---:|---:|',
];

/** Rows for one variant and size; the ratio tells how many times Portwide's figure the other is. */
export function rows(
  variant: string,
  services: number,
  portwide: Measured,
  kubeProxy: Measured,
): string[] {
  const lines: string[] = [];
  const row = (what: string, ours: Values, theirs: Values, digits: number, notes = ['', '']) => {
    const cells = [ours, theirs].map(
      (values, index) => cell(values, digits) + (notes[index] ?? ''),
    );
    lines.push(`| ${[variant, services, what, ...cells, ratio(ours, theirs)].join(' | ')} |`);
  };
  const both = (of: (measured: Measured) => Values): [Values, Values] => [
    of(portwide),
    of(kubeProxy),
  ];
  const starts = (of: (timing: Timing) => number) => (measured: Measured) =>
    measured.late.start ? 'late' : measured.starts.map(({ start }) => of(start));

  row('full sync from nothing, s', ...both(starts(({ total }) => total)), 2);
  const compile = starts(({ total, load }) => total - load)(portwide);
  row('– resolve and compile, s', compile, undefined, 2);
  row('– load, s', ...both(starts(({ load }) => load)), 2);
  const stalls = portwide.starts.map(({ stall }) => stall);
  row('– longest stall of the event loop, ms', stalls, undefined, 0);
  row(
    '– peak memory, MiB',
    portwide.starts.map(({ memory }) => memory),
    undefined,
    0,
  );
  const restarted = both((measured) =>
    measured.late.restart ? 'late' : measured.restarts.map(({ total }) => total),
  );
  row('restart, s', ...restarted, 2, [portwide, kubeProxy].map(writtenByRestart));

  for (const [what, of] of CHANGES) {
    const timings = [portwide, kubeProxy].map(({ changes }) => changes && of(changes));
    const [ours, theirs] = timings.map((list) => list?.map(({ total }) => total * 1000));
    row(`${what}, ms`, ours, theirs, 1, timings.map(written));
    if (what === REPLACED) {
      const alone = portwide.changes?.alone?.map((seconds) => seconds * 1000);
      row('– the same lines by iptables-restore alone, ms', alone, undefined, 1);
    }
  }
  const counts = [portwide, kubeProxy].map(({ changes }) => changes?.rules);
  for (const [what, field] of RULES) {
    const [ours, theirs] = counts.map((rules) => {
      const count = rules?.[field];
      return count === undefined ? undefined : [count];
    });
    row(what, ours, theirs, 0);
  }
  for (const [what, field] of PACKETS) {
    row(`${what}, µs`, ...both(({ packets }) => packets[field]), 1);
  }
  row('new connection through a node without rules, µs', ...both(({ bare }) => bare), 1);
  return lines;
}

type ChangesOf = (changes: NonNullable<Measured['changes']>) => readonly Timing[];

const REPLACED = 'one endpoint replaced';
const CHANGES: readonly (readonly [string, ChangesOf])[] = [
  ['first change after a restart', ({ first }) => [first]],
  [REPLACED, ({ replace }) => replace],
  ['one Service added', ({ add }) => add],
  ['one Service removed', ({ remove }) => remove],
];

const RULES = [
  ['rules in all', 'total'],
  ['rules that one ordinary Service adds', 'ordinary'],
  ['rules that one all-ports Service adds', 'allPorts'],
] as const;

const PACKETS = [
  ['new connection to the first VIP', 'first'],
  ['new connection to the last VIP', 'last'],
  ['new connection to no Service', 'direct'],
] as const;

export function cell(values: Values, digits: number): string {
  if (values === 'late') return `> ${LIMIT}`;
  if (values === undefined || values.length === 0) return '–';
  const middle = median(values).toFixed(digits);
  if (values.length === 1) return middle;
  return `${middle} (${Math.min(...values).toFixed(digits)}–${Math.max(...values).toFixed(digits)})`;
}

export function ratio(ours: Values, theirs: Values): string {
  if (ours === 'late' || ours === undefined || theirs === undefined) return '';
  if (ours.length === 0 || theirs.length === 0) return '';
  const times = (value: number) => {
    const quotient = value / median(ours);
    return `${quotient < 99.5 ? quotient.toPrecision(2) : quotient.toFixed()}×`;
  };
  return theirs === 'late' ? `> ${times(LIMIT)}` : times(median(theirs));
}

function written(timings: readonly Timing[] | undefined): string {
  if (timings === undefined) return '';
  return `; ${median(timings.map((timing) => timing.written))} chains`;
}

function writtenByRestart({ restarts }: Measured): string {
  return restarts.length === 0 ? '' : written(restarts);
}
