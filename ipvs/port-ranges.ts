/**
 * Port ranges in ipsets. A range is added as one entry, and the kernel stores an entry for each
 * port. Overlapping ranges must therefore be compared port by port.
 */
import { getOrCreate } from '../api/collections.ts';
import type { IpsetEntry } from '../netlink/ipset/ipset.ts';
import type { EntryItem } from './items.ts';
import type { SetName } from './sets.ts';

/** Sets whose entries may be port ranges. */
const RANGED: ReadonlySet<SetName> = new Set([
  'KUBE-PORT-RANGES',
  'KUBE-INSIDE-PORT-RANGES',
  'KUBE-PORT-RANGES-SOURCE',
]);

export function isRanged(set: SetName): boolean {
  return RANGED.has(set);
}

type Span = readonly [from: number, to: number];

interface RangeGroup {
  readonly entries: Set<IpsetEntry>;
  /** The ports of all entries in order, disjoint; undefined: not computed since an entry changed. */
  spans: readonly Span[] | undefined;
}

/** Entries with port ranges, grouped by all fields but the ports. */
export class RangeIndex {
  readonly #groups = new Map<string, RangeGroup>();

  add({ set, entry }: EntryItem): void {
    const newGroup = (): RangeGroup => ({ entries: new Set(), spans: undefined });
    const group = getOrCreate(this.#groups, groupOf(set, entry), newGroup);
    group.entries.add(entry);
    group.spans = undefined;
  }

  delete({ set, entry }: EntryItem): void {
    const key = groupOf(set, entry);
    const group = this.#groups.get(key);
    if (group === undefined) return;
    group.entries.delete(entry);
    group.spans = undefined;
    if (group.entries.size === 0) this.#groups.delete(key);
  }

  /**
   * Ports of an entry that no entry of the index covers. Only these ports may be deleted from the
   * kernel. After a change of the group, costs the size of the group once.
   */
  uncovered({ set, entry }: EntryItem): IpsetEntry[] {
    const group = this.#groups.get(groupOf(set, entry));
    const [start, last] = bounds(entry);
    let first = start;
    const rest: IpsetEntry[] = [];
    const leave = (port: number, portTo: number) => {
      if (port <= portTo) rest.push({ ...entry, port, portTo });
    };
    if (group !== undefined) {
      group.spans ??= joinSpans([...group.entries].map(bounds));
      const { spans } = group;
      for (let index = firstAtOrAfter(spans, first); ; index++) {
        const [from, to] = spans[index] ?? [Infinity, Infinity];
        if (from > last) break;
        leave(first, from - 1);
        first = to + 1;
      }
    }
    leave(first, last);
    return rest;
  }
}

function joinSpans(spans: readonly Span[]): Span[] {
  const joined: Span[] = [];
  for (const [from, to] of spans.toSorted(([a], [b]) => a - b)) {
    const [start, end] = joined.at(-1) ?? [0, -1];
    if (joined.length > 0 && from <= end) joined[joined.length - 1] = [start, Math.max(end, to)];
    else joined.push([from, to]);
  }
  return joined;
}

/** Index of the first span that ends at a port or after it. */
function firstAtOrAfter(spans: readonly Span[], port: number): number {
  let [low, high] = [0, spans.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((spans[middle]?.[1] ?? Infinity) < port) low = middle + 1;
    else high = middle;
  }
  return low;
}

interface PortGroup {
  readonly set: SetName;
  /** All fields but the ports. */
  readonly entry: IpsetEntry;
  /** Mark by port. Stores no entries, because a set may have millions of them. */
  readonly marks: Map<number, number | undefined>;
}

/** Ipset entries read from the kernel, which stores one entry for each port of a range. */
export class KernelPorts {
  readonly #groups = new Map<string, PortGroup>();

  add(set: SetName, { port = 0, skbMark, ...entry }: IpsetEntry): void {
    const text = groupOf(set, entry);
    const group = getOrCreate(this.#groups, text, () => ({ set, entry, marks: new Map() }));
    group.marks.set(port, skbMark);
  }

  /** All entries without their marks; adjacent ports form one range. */
  *items(): Iterable<EntryItem> {
    for (const { set, entry, marks } of this.#groups.values()) {
      let from: number | undefined;
      for (const port of [...marks.keys()].sort((a, b) => a - b)) {
        from ??= port;
        if (marks.has(port + 1)) continue;
        yield { kind: 'entry', set, entry: { ...entry, port: from, portTo: port } };
        from = undefined;
      }
    }
  }

  /** The ports of an entry that the kernel has, with their marks; adjacent ports form one range. */
  within({ set, entry }: EntryItem): EntryItem[] {
    const group = this.#groups.get(groupOf(set, entry));
    const ranges: EntryItem[] = [];
    const [first, last] = bounds(entry);
    let from = first;
    for (let port = first; group !== undefined && port <= last; port++) {
      if (!group.marks.has(port)) {
        from = port + 1;
        continue;
      }
      const skbMark = group.marks.get(port);
      const next = port < last && group.marks.has(port + 1);
      if (next && group.marks.get(port + 1) === skbMark) continue;
      const marked = skbMark === undefined ? {} : { skbMark };
      const ports = { port: from, portTo: port };
      ranges.push({ kind: 'entry', set, entry: { ...group.entry, ...ports, ...marked } });
      from = port + 1;
    }
    return ranges;
  }

  /** Whether the kernel has every port of an entry, with its mark. */
  has({ set, entry }: EntryItem): boolean {
    const marks = this.#groups.get(groupOf(set, entry))?.marks;
    const [from, to] = bounds(entry);
    for (let port = from; port <= to; port++) {
      if (marks?.has(port) !== true || marks.get(port) !== entry.skbMark) return false;
    }
    return true;
  }
}

function bounds({ port = 0, portTo = port }: IpsetEntry): Span {
  return [port, portTo];
}

function groupOf(set: SetName, { ip, protocol, ip2 }: IpsetEntry): string {
  return `${set} ${ip} ${protocol} ${ip2}`;
}
