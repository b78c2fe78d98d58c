/** The output of `portwide diff`. Pure. */
import type { KernelDiff, KernelObject } from '../api/kernel.ts';
import { unsyncedText } from '../views/unsynced.ts';
import { type Style, safe } from './style.ts';
import type { Column } from './table.ts';
import { counted, NONE } from './units.ts';

/** Columns of one row for a node, for a table of several nodes. */
export const DIFF_COLUMNS: readonly Column<KernelDiff>[] = [
  { header: 'COMPARED', cell: ({ compared }) => `${compared}` },
  { header: 'DIFFERENT', cell: ({ different }) => `${different}` },
  {
    header: 'FIRST',
    cell: ({ items: [first], unsynced: [unsynced] }) => {
      if (unsynced !== undefined) return safe(unsyncedText(unsynced));
      return first === undefined ? NONE : objectText(first);
    },
  },
];

/** A listing by object: `-` the kernel has, `+` the agent wants, as a patch of the kernel. */
export function kernelDiffText(diff: KernelDiff, style: Style): string {
  const { items, compared, different, inProgress, omitted, unsynced } = diff;
  const lines = [
    ...(items.length === 0 ? [] : ['--- kernel', '+++ desired']),
    ...items.flatMap((object) => [`@@ ${objectText(object, style)} @@`, ...unifiedLines(object)]),
    ...(omitted === 0 ? [] : [`and ${omitted} more`]),
    different === 0
      ? `no differences; ${compared} objects compared`
      : `${different} of ${compared} objects differ`,
    ...(inProgress === 0
      ? []
      : [`${counted(inProgress, 'object')} may be changing in a sync: run it again`]),
    ...unsynced.map((family) => safe(unsyncedText(family))),
  ];
  return lines.map((line) => `${line}\n`).join('');
}

/** Such as `IPv4 element in cluster-ips, Service shop/web: missing`. */
export function objectText(
  { family, type, in: container, service, state, inProgress }: KernelObject,
  style: Style = (word) => word,
): string {
  const owner = service === null ? '' : `, Service ${service}`;
  const progress = inProgress ? ', may be changing' : '';
  return `${safe(`${family} ${type} in ${container}${owner}`)}: ${style(state)}${progress}`;
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
