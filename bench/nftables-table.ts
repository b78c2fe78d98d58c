/** The results of the nftables mode as rows of a Markdown table. */
import type { ChangeKind } from './nftables-jobs.ts';
import type { Connections, NftablesMeasured } from './nftables-measure.ts';
import { median, percentile } from './statistics.ts';
import { cell } from './table.ts';

export const LEGEND = `Each Service has 10 endpoints, of which one in a hundred is on this node; IPv4, one TCP port, and one Service
more that is on every port. Medians, with the least and the greatest; of single changes and connections p50
and p99 of all. What is compared has the same elements in the kernel at its end: "nft" is \`nft -f\` of a file
that is ready; "netlink" are messages that are ready, sent in one go, after all that is no element: what the
kernel itself takes. The ratios tell how many times theirs Portwide's figure is. "Objects to kernel" is the
agent without its source, from the first object handed over; "whole agent" runs from the start of the process,
with an API server (a double, on the same machine) to list from, and both families. Stalls are of the event loop.`;

export const HEAD = [
  '| Services | what | Portwide | netlink | × | nft | × |',
  '|---:|---|---:|---:|---:|---:|---:|',
];

const CHANGES: readonly (readonly [ChangeKind, string])[] = [
  ['replace', 'one endpoint replaced'],
  ['add', 'one Service added'],
  ['addAllPorts', 'one all-ports Service added'],
  ['remove', 'one Service removed'],
];

const CONNECTIONS: readonly (readonly [keyof Connections, string])[] = [
  ['first', 'new connection to the first VIP'],
  ['last', 'new connection to the last VIP'],
  ['random', 'new connection to a random VIP'],
  ['direct', 'new connection to no Service'],
  ['bare', 'new connection through a node without rules'],
];

export function nftablesRows(services: number, measured: NftablesMeasured): string[] {
  const { agents, starts, restarts, kernel, nft, storms, connections } = measured;
  const lines: string[] = [];
  const add = (cells: readonly (string | number)[]) =>
    lines.push(`| ${[services, ...cells].join(' | ')} |`);
  const row = (
    what: string,
    ours: readonly number[],
    digits: number,
    alone?: readonly number[],
    text?: readonly number[],
  ) => {
    const theirs = [alone, text].flatMap((values) => [cell(values, digits), over(ours, values)]);
    add([what, cell(ours, digits), ...theirs]);
  };
  const alone = kernel.map(({ load }) => load / 1000);
  const text = nft.map(({ load }) => load / 1000);
  const totals = starts.map(({ start }) => start.total);
  row('objects to kernel, s', totals, 2, alone, text);
  row(
    '– resolve and compare, s',
    starts.map(({ start }) => start.total - start.load),
    2,
  );
  row(
    '– compile and load, s',
    starts.map(({ start }) => start.load),
    2,
    alone,
    text,
  );
  row(
    '– longest stall, ms',
    starts.map(({ stall }) => stall),
    0,
  );
  row(
    'elements in the kernel',
    starts.map(({ elements }) => elements),
    0,
  );
  row(
    'restart, objects to kernel, s',
    restarts.map(({ start }) => start.total),
    2,
  );
  row(
    '– longest stall, ms',
    restarts.map(({ stall }) => stall),
    0,
  );
  const whole = agents.map(({ seconds }) => seconds);
  row('whole agent, s', whole, 2, alone, text);
  row(
    '– CPU until then, s',
    agents.map(({ cpu }) => cpu),
    2,
  );
  row(
    '– memory ten seconds later, MiB',
    agents.map(({ settled }) => settled),
    0,
  );
  row(
    '– peak memory, MiB',
    agents.map(({ peak }) => peak),
    0,
  );
  for (const [kind, what] of CHANGES) {
    const ours = restarts.flatMap(({ changes }) => changes[kind]);
    const milliseconds = ours.map(({ total }) => total * 1000);
    const theirs = kernel.flatMap(({ changes }) => changes[kind]);
    add([
      `${what}, ms`,
      percentiles(milliseconds, 2),
      percentiles(theirs, 2),
      over(milliseconds, theirs),
      '–',
      '',
    ]);
  }
  for (const [period, reports] of storms) {
    const of = `1,000 endpoints in 1 s, sync period ${period} ms`;
    row(
      `${of}: after the last, ms`,
      reports.map(({ settled }) => settled),
      0,
    );
    const latencies = reports.flatMap((report) => report.latencies);
    add(['– each, ms', percentiles(latencies, 0), '–', '', '–', '']);
    row(
      '– syncs',
      reports.map(({ syncs }) => syncs),
      0,
    );
    row(
      '– CPU, ms',
      reports.map(({ cpu }) => cpu),
      0,
    );
    row(
      '– longest stall, ms',
      reports.map(({ stall }) => stall),
      0,
    );
  }
  for (const [target, what] of CONNECTIONS) {
    add([`${what}, µs`, percentiles(connections[target], 1), '–', '', '–', '']);
  }
  return lines;
}

function percentiles(values: readonly number[], digits: number): string {
  if (values.length === 0) return '–';
  const [middle, high] = [50, 99].map((percent) => percentile(values, percent).toFixed(digits));
  return `p50 ${middle}, p99 ${high}`;
}

function over(ours: readonly number[], theirs: readonly number[] | undefined): string {
  if (theirs === undefined || theirs.length === 0 || ours.length === 0) return '';
  return `${(median(ours) / median(theirs)).toPrecision(2)}×`;
}
