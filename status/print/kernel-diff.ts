/** The output of `portwide diff`. Pure. */
import type { KernelDiff, KernelObject } from '../api/kernel.ts';
import { type Style, safe } from './style.ts';
import type { Column } from './table.ts';
import { NONE } from './units.ts';

/** Columns of one row for a node, for a table of several nodes. */
export const DIFF_COLUMNS: readonly Column<KernelDiff>[] = [
  { header: 'COMPARED', cell: ({ compared }) => `${compared}` },
  { header: 'DIFFERENT', cell: ({ items }) => `${items.length}` },
  {
    header: 'FIRST',
    cell: ({ items: [first] }) => (first === undefined ? NONE : objectText(first)),
  },
];

/** A listing by object: `-` the kernel has, `+` the agent wants, as a patch of the kernel. */
export function kernelDiffText({ items, compared, stable }: KernelDiff, style: Style): string {
  if (items.length === 0) return `no differences; ${compared} objects compared\n`;
  const lines = [
    '--- kernel',
    '+++ desired',
    ...items.flatMap((object) => [`@@ ${objectText(object, style)} @@`, ...unifiedLines(object)]),
    `${items.length} of ${compared} objects differ`,
    ...(stable
      ? []
      : [
          'Rules changed during the comparison, so these may be changes in progress: run it again.',
        ]),
  ];
  return lines.map((line) => `${line}\n`).join('');
}

/** Such as `IPv4 element in cluster-ips, Service shop/web: missing`. */
export function objectText(
  { family, type, in: container, service, state }: KernelObject,
  style: Style = (word) => word,
): string {
  const owner = service === null ? '' : `, Service ${service}`;
  return `${safe(`${family} ${type} in ${container}${owner}`)}: ${style(state)}`;
}

/** Lines at the beginning that both have are not marked. */
function unifiedLines({ actual, desired }: KernelObject): string[] {
  const [before, after] = [linesOf(actual), linesOf(desired)];
  const first = before.findIndex((line, index) => line !== after[index]);
  const common = first < 0 ? before.length : first;
  return [
    ...before.slice(0, common).map((line) => ` ${safe(line)}`),
    ...before.slice(common).map((line) => `-${safe(line)}`),
    ...after.slice(common).map((line) => `+${safe(line)}`),
  ];
}

function linesOf(text: string | null): string[] {
  return text === null ? [] : text.split('\n');
}

/** Each line of a text with a mark before it; no line for null. */
export function markedLines(mark: string, text: string | null): string[] {
  return linesOf(text).map((line) => mark + safe(line));
}
