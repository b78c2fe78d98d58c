/**
 * Ranges of ports in ipsets. They are one entry to whoever adds them, and one for each port to the
 * kernel, so that ranges which overlap must be told apart port by port.
 */
import { getOrCreate } from '../api/collections.ts';
import type { IpsetEntry } from '../netlink/ipset/ipset.ts';
import type { EntryItem } from './items.ts';
import type { SetName } from './sets.ts';

/** Sets whose entries may be ranges. */
const RANGED: ReadonlySet<SetName> = new Set([
  'KUBE-PORT-RANGES',
  'KUBE-INSIDE-PORT-RANGES',
  'KUBE-PORT-RANGES-SOURCE',
]);

export function isRanged(set: SetName): boolean {
  return RANGED.has(set);
}

/** Entries of the ranged sets, by all but their ports. */
export class RangeIndex {
  readonly #groups = new Map<string, Set<IpsetEntry>>();

  add({ set, entry }: EntryItem): void {
    getOrCreate(this.#groups, groupOf(set, entry), () => new Set()).add(entry);
  }

  delete({ set, entry }: EntryItem): void {
    const group = groupOf(set, entry);
    const entries = this.#groups.get(group);
    entries?.delete(entry);
    if (entries?.size === 0) this.#groups.delete(group);
  }

  /** What of an entry no entry of the index covers: what may be deleted. */
  uncovered({ set, entry }: EntryItem): IpsetEntry[] {
    let rest = [bounds(entry)];
    for (const other of this.#groups.get(groupOf(set, entry)) ?? []) {
      const [from, to] = bounds(other);
      rest = rest.flatMap(([first, last]): [number, number][] => [
        ...(first < from ? [[first, Math.min(last, from - 1)] as [number, number]] : []),
        ...(last > to ? [[Math.max(first, to + 1), last] as [number, number]] : []),
      ]);
    }
    return rest.map(([from, to]) => ({ ...entry, port: from, portTo: to }));
  }
}

interface PortGroup {
  readonly set: SetName;
  /** All but its ports. */
  readonly entry: IpsetEntry;
  /** Ports, to their marks. Not entries: there may be millions. */
  readonly marks: Map<number, number | undefined>;
}

/** The kernel's entries of the ranged sets, port by port. */
export class KernelPorts {
  readonly #groups = new Map<string, PortGroup>();

  add(set: SetName, { port = 0, skbMark, ...entry }: IpsetEntry): void {
    const text = groupOf(set, entry);
    const group = getOrCreate(this.#groups, text, () => ({ set, entry, marks: new Map() }));
    group.marks.set(port, skbMark);
  }

  /** All of them, without their marks, neighbours as one range. */
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

  /** Whether every port of an entry is there, with its mark. */
  has({ set, entry }: EntryItem): boolean {
    const marks = this.#groups.get(groupOf(set, entry))?.marks;
    const [from, to] = bounds(entry);
    for (let port = from; port <= to; port++) {
      if (marks?.has(port) !== true || marks.get(port) !== entry.skbMark) return false;
    }
    return true;
  }
}

function bounds({ port = 0, portTo = port }: IpsetEntry): [from: number, to: number] {
  return [port, portTo];
}

function groupOf(set: SetName, { ip, protocol, ip2 }: IpsetEntry): string {
  return `${set} ${ip} ${protocol} ${ip2}`;
}
