/** Records by name, and the names above them. Pure. */
import { isDeepStrictEqual } from 'node:util';
import { getOrCreate } from '../api/collections.ts';
import type { ObjectKey } from '../api/objects.ts';
import { compareRecords, type DnsRecord, type SrvGroup, srvRecord } from './records.ts';

const NO_RECORDS: readonly DnsRecord[] = [];
/**
 * Lists with at most this many records are immutable: a change replaces them, and the cache of
 * answers compares them by identity. Longer ones change in place, because copies of 100,000
 * references for each slice would fill the heap. Do not keep them.
 */
export const MAX_IMMUTABLE = 1000;

/**
 * Records by name. Stores a record once, however often it was added: an endpoint may be in two
 * slices while its controller moves it. A change visits the names of its records only.
 */
export class RecordStore {
  /** Each list is sorted and not empty. */
  readonly #lists = new Map<string, DnsRecord[]>();
  /** SRV records of EndpointSlices by name; no set is empty. */
  readonly #srvGroups = new Map<string, Set<SrvGroup>>();
  readonly #groupOfSlice = new Map<ObjectKey, SrvGroup>();
  /** How often a stored record was added besides the first time; usually no record has an entry. */
  readonly #duplicates = new Map<DnsRecord, number>();
  /**
   * By name: the number of existing names directly below it. A name with children exists, possibly
   * as an empty non-terminal.
   */
  readonly #children = new Map<string, number>();
  readonly #apexes: ReadonlySet<string>;

  /** @param apexes names above which no names exist. */
  constructor(apexes: ReadonlySet<string>) {
    this.#apexes = apexes;
  }

  /**
   * Records of a name, sorted; empty for an empty non-terminal, undefined if the name does not exist.
   * @param mostSrv if the name has more SRV records of EndpointSlices, any `mostSrv` + 1 of them are
   * returned. Repeated ones count, and are last.
   */
  get(name: string, mostSrv = Infinity): readonly DnsRecord[] | undefined {
    const list = this.#lists.get(name);
    const groups = this.#srvGroups.get(name);
    if (groups !== undefined) return withSrv(list ?? NO_RECORDS, groups, name, mostSrv);
    return list ?? (this.#children.has(name) ? NO_RECORDS : undefined);
  }

  get sizes() {
    return {
      /** Names that have records. */
      names: this.#lists.size + this.#srvGroups.size,
      /** Names with names below them, which exist even without records (empty non-terminals). */
      parents: this.#children.size,
    };
  }

  /** @returns whether a record is new. */
  add(records: readonly DnsRecord[]): boolean {
    let hasChanged = false;
    for (const [name, sorted] of sortedByName(records)) {
      const before = this.#lists.get(name) ?? NO_RECORDS;
      const added: DnsRecord[] = [];
      const places: number[] = [];
      for (const record of sorted) {
        const place = placeOf(record, before);
        const same = [before[place], added.at(-1)].find((each) => isSame(each, record));
        if (same !== undefined) {
          this.#duplicates.set(same, (this.#duplicates.get(same) ?? 0) + 1);
          continue;
        }
        added.push(record);
        places.push(place);
      }
      if (added.length === 0) continue;
      hasChanged = true;
      this.#change(name, (list) => insertAll(list, added, places));
    }
    return hasChanged;
  }

  /**
   * @param records that were added.
   * @returns whether a record has gone.
   */
  remove(records: readonly DnsRecord[]): boolean {
    let hasChanged = false;
    for (const [name, sorted] of sortedByName(records)) {
      const before = this.#lists.get(name) ?? NO_RECORDS;
      const places: number[] = [];
      for (const record of sorted) {
        const place = placeOf(record, before);
        const stored = before[place];
        if (stored === undefined || this.#forgetDuplicate(stored)) continue;
        places.push(place);
      }
      if (places.length === 0) continue;
      hasChanged = true;
      this.#change(name, (list) => removeAll(list, places));
    }
    return hasChanged;
  }

  /**
   * Replaces the SRV records of an EndpointSlice.
   * @returns whether they differ from those before.
   */
  setSrvGroup(slice: ObjectKey, group: SrvGroup | undefined): boolean {
    const before = this.#groupOfSlice.get(slice);
    const after = group?.ports.size === 0 || group?.targets.length === 0 ? undefined : group;
    if (isDeepStrictEqual(before, after)) return false;
    if (after === undefined) this.#groupOfSlice.delete(slice);
    else this.#groupOfSlice.set(slice, after);
    // Add first: then a name of both exists all the time.
    for (const name of after?.ports.keys() ?? []) {
      const existed = this.#exists(name);
      getOrCreate(this.#srvGroups, name, () => new Set()).add(after as SrvGroup);
      this.#updateParent(name, existed);
    }
    for (const name of before?.ports.keys() ?? []) {
      const groups = this.#srvGroups.get(name);
      groups?.delete(before as SrvGroup);
      if (groups?.size === 0) this.#srvGroups.delete(name);
      this.#updateParent(name, true);
    }
    return true;
  }

  #forgetDuplicate(record: DnsRecord): boolean {
    const count = this.#duplicates.get(record);
    if (count === undefined) return false;
    if (count === 1) this.#duplicates.delete(record);
    else this.#duplicates.set(record, count - 1);
    return true;
  }

  #change(name: string, change: (list: DnsRecord[]) => void): void {
    const before = this.#lists.get(name);
    const existed = this.#exists(name);
    const isLong = before !== undefined && before.length > MAX_IMMUTABLE;
    const list = isLong ? before : [...(before ?? [])];
    change(list);
    if (list.length === 0) this.#lists.delete(name);
    // A copy has no spare capacity.
    else if (!isLong) this.#lists.set(name, list.slice());
    this.#updateParent(name, existed);
  }

  #exists(name: string): boolean {
    return this.#lists.has(name) || this.#srvGroups.has(name) || this.#children.has(name);
  }

  #updateParent(name: string, existed: boolean): void {
    const exists = this.#exists(name);
    if (exists && !existed) this.#countInParent(name);
    else if (existed && !exists) this.#uncountInParent(name);
  }

  /** Counts a new name in its parent. The first child makes the parent exist. */
  #countInParent(name: string): void {
    if (this.#apexes.has(name)) return;
    const parent = parentOf(name);
    const existed = this.#exists(parent);
    this.#children.set(parent, (this.#children.get(parent) ?? 0) + 1);
    this.#updateParent(parent, existed);
  }

  #uncountInParent(name: string): void {
    if (this.#apexes.has(name)) return;
    const parent = parentOf(name);
    const count = this.#children.get(parent) ?? 0;
    if (count > 1) {
      this.#children.set(parent, count - 1);
      return;
    }
    this.#children.delete(parent);
    this.#updateParent(parent, true);
  }
}

/** Records of a name together with its SRV records of EndpointSlices. */
function withSrv(
  list: readonly DnsRecord[],
  groups: ReadonlySet<SrvGroup>,
  name: string,
  mostSrv: number,
): readonly DnsRecord[] {
  const records = [...list];
  for (const record of srvRecordsOf(groups, name)) {
    if (records.length > list.length + mostSrv) break;
    records.push(record);
  }
  const isCut = records.length > list.length + mostSrv;
  const unique: DnsRecord[] = [];
  const repeated: DnsRecord[] = [];
  for (const record of records.sort(compareRecords))
    (isSame(unique.at(-1), record) ? repeated : unique).push(record);
  return isCut ? [...unique, ...repeated] : unique;
}

function* srvRecordsOf(groups: ReadonlySet<SrvGroup>, name: string): Iterable<DnsRecord> {
  for (const { ports, targets } of groups) {
    for (const port of ports.get(name) ?? [])
      for (const target of targets) yield srvRecord(name, port, target);
  }
}

function parentOf(name: string): string {
  return name.slice(name.indexOf('.') + 1);
}

function sortedByName(records: readonly DnsRecord[]): ReadonlyMap<string, readonly DnsRecord[]> {
  const byName = new Map<string, DnsRecord[]>();
  for (const record of records) getOrCreate(byName, record.name, () => []).push(record);
  for (const list of byName.values()) list.sort(compareRecords);
  return byName;
}

function isSame(stored: DnsRecord | undefined, record: DnsRecord): boolean {
  return stored !== undefined && compareRecords(stored, record) === 0;
}

/** Index of the first record of a sorted list that is not before this one. */
function placeOf(record: DnsRecord, sorted: readonly DnsRecord[]): number {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    const other = sorted[middle];
    if (other !== undefined && compareRecords(other, record) < 0) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** @param places ascending; for each added record the index in `list` of the record after it. */
function insertAll(
  list: DnsRecord[],
  added: readonly DnsRecord[],
  places: readonly number[],
): void {
  let from = list.length;
  // Makes room; the loop overwrites these.
  for (const record of added) list.push(record);
  let to = list.length;
  for (let index = added.length - 1; index >= 0; index--) {
    const place = places[index] as number;
    while (from > place) list[--to] = list[--from] as DnsRecord;
    list[--to] = added[index] as DnsRecord;
  }
}

/** @param places ascending. */
function removeAll(list: DnsRecord[], places: readonly number[]): void {
  let to = places[0] ?? list.length;
  for (const [index, place] of places.entries()) {
    const end = places[index + 1] ?? list.length;
    for (let from = place + 1; from < end; from++) list[to++] = list[from] as DnsRecord;
  }
  list.length = to;
}
