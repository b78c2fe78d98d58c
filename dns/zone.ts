/** The DNS records of the whole cluster, updated from API objects. */
import { setList } from '../api/collections.ts';
import type { InvalidObject } from '../api/errors.ts';
import type { ApiObject, EndpointSlice, Kind, ObjectKey, Service } from '../api/objects.ts';
import type { ObjectSink } from '../sources/source.ts';
import { REVERSE_DOMAINS } from './names.ts';
import {
  compareRecords,
  type DnsRecord,
  podRecords,
  SCHEMA_VERSION,
  type ServiceRecords,
  sameRecords,
  serviceRecords,
} from './records.ts';

interface ZoneOptions {
  /** Such as `cluster.local`: lower-case, without the final dot. */
  readonly clusterDomain: string;
  /**
   * Called for each field that produces no record, when the problem appears and when it reappears.
   */
  readonly onProblem?: (problem: InvalidObject) => void;
  /**
   * Called when the records follow a change of a headless Service's endpoints, with the trigger
   * time of the change (milliseconds since 1970). Not called for the initial lists, whose changes
   * are long past.
   */
  readonly onEndpoints?: (triggerTime: number) => void;
}

/** One Service with its slices and records. */
interface Entry extends ServiceRecords {
  readonly service: Service | undefined;
  readonly slices: readonly EndpointSlice[];
}

type RecordsByName = ReadonlyMap<string, readonly DnsRecord[]>;

const NO_RECORDS: readonly DnsRecord[] = [];
const EMPTY_ENTRY: Entry = { service: undefined, slices: [], records: new Map(), problems: [] };

/**
 * The records of a cluster: the cluster domain, plus reverse names of cluster IPs and headless
 * endpoints under `in-addr.arpa` and `ip6.arpa`. Updated object by object: a change recomputes the
 * records of one Service and touches no other names.
 */
export class Zone implements ObjectSink {
  readonly clusterDomain: string;
  readonly #options: ZoneOptions;
  readonly #entries = new Map<ObjectKey, Entry>();
  /** Service of each slice, to detect a change of the slice's service-name label. */
  readonly #sliceOwner = new Map<ObjectKey, ObjectKey>();
  /** Records of all Services. Only reverse names can have records of several Services. */
  readonly #records = new Map<string, readonly DnsRecord[]>();
  /**
   * By name: the number of existing names directly below it. A name with children exists, possibly
   * as an empty non-terminal.
   */
  readonly #children = new Map<string, number>();
  /** Records that exist without any Service. */
  readonly #staticRecords: RecordsByName;
  /** Zone apexes. Names above them are outside this server's zones. */
  readonly #apexes: ReadonlySet<string>;
  readonly #unsynced = new Set<Kind>(['Service', 'EndpointSlice']);
  #serial = 1;

  constructor(options: ZoneOptions) {
    const { clusterDomain } = options;
    this.#options = options;
    this.clusterDomain = clusterDomain;
    this.#apexes = new Set([clusterDomain, ...Object.values(REVERSE_DOMAINS)]);
    const version = `dns-version.${clusterDomain}`;
    this.#staticRecords = new Map<string, readonly DnsRecord[]>([
      [clusterDomain, NO_RECORDS],
      [`svc.${clusterDomain}`, NO_RECORDS],
      [`pod.${clusterDomain}`, NO_RECORDS],
      [version, [{ name: version, type: 'TXT', data: SCHEMA_VERSION }]],
    ]);
  }

  /**
   * All records of a name (lower-case, no final dot). An empty list means that the name exists
   * without records (NODATA), possibly as an empty non-terminal. undefined means that the name does
   * not exist (NXDOMAIN).
   */
  lookup(name: string): readonly DnsRecord[] | undefined {
    const records = this.#records.get(name);
    if (records !== undefined) return records;
    if (this.#children.has(name)) return NO_RECORDS;
    return this.#staticRecords.get(name) ?? podRecords(name, this.clusterDomain);
  }

  /** Whether all Services and EndpointSlices are listed. Until then, a missing name may appear. */
  get isSynced(): boolean {
    return this.#unsynced.size === 0;
  }

  /** SOA serial. Starts at 1 and increases with every change of the records. */
  get serial(): number {
    return this.#serial;
  }

  /** Numbers of objects and names that the zone stores. */
  get sizes() {
    return {
      /** Services that exist or have EndpointSlices. */
      services: this.#entries.size,
      slices: this.#sliceOwner.size,
      /** Names that have records. */
      names: this.#records.size,
      /** Names with names below them, which exist even without records (empty non-terminals). */
      parents: this.#children.size,
    };
  }

  upsert(object: ApiObject): void {
    if (object.kind === 'Service') {
      this.#update({ ...this.#entry(object.key), service: object }, object.key);
    } else if (object.kind === 'EndpointSlice') this.#upsertSlice(object);
  }

  remove(kind: Kind, key: ObjectKey): void {
    if (kind === 'Service') this.#update({ ...this.#entry(key), service: undefined }, key);
    else if (kind === 'EndpointSlice') this.#removeSlice(key);
  }

  synced(kind: Kind): void {
    this.#unsynced.delete(kind);
  }

  #upsertSlice(slice: EndpointSlice): void {
    const owner = this.#sliceOwner.get(slice.key);
    if (owner !== undefined && owner !== slice.serviceKey) this.#removeSlice(slice.key);
    this.#sliceOwner.set(slice.key, slice.serviceKey);
    const { service, slices } = this.#entry(slice.serviceKey);
    this.#replaceSlice(slice.serviceKey, slice.key, [slice]);
    const { triggerTime } = slice;
    if (triggerTime === undefined || !service?.headless || !this.isSynced) return;
    const before = slices.find(({ key }) => key === slice.key)?.triggerTime;
    if (before !== triggerTime) this.#options.onEndpoints?.(triggerTime);
  }

  #removeSlice(key: ObjectKey): void {
    const owner = this.#sliceOwner.get(key);
    if (owner === undefined) return;
    this.#sliceOwner.delete(key);
    this.#replaceSlice(owner, key, []);
  }

  #replaceSlice(owner: ObjectKey, key: ObjectKey, by: readonly EndpointSlice[]): void {
    const entry = this.#entry(owner);
    const slices = entry.slices.filter((slice) => slice.key !== key).concat(by);
    // Endpoints of other Services have no records, so their frequent changes need no update.
    if (entry.service?.headless === true) this.#update({ ...entry, slices }, owner);
    else this.#setEntry({ ...entry, slices }, owner);
  }

  #entry(key: ObjectKey): Entry {
    return this.#entries.get(key) ?? EMPTY_ENTRY;
  }

  #setEntry(entry: Entry, key: ObjectKey): void {
    if (entry.service === undefined && entry.slices.length === 0) this.#entries.delete(key);
    else this.#entries.set(key, entry);
  }

  /** @param entry the current objects with the previous records. */
  #update(entry: Entry, key: ObjectKey): void {
    const { service, slices } = entry;
    const { records, problems } =
      service === undefined ? EMPTY_ENTRY : serviceRecords(service, slices, this.clusterDomain);
    this.#setEntry(
      { service, slices, problems, records: this.#replace(entry.records, records) },
      key,
    );
    const known = new Set(entry.problems.map(({ message }) => message));
    for (const problem of problems) {
      if (!known.has(problem.message)) this.#options.onProblem?.(problem);
    }
  }

  /**
   * Replaces the records of one Service.
   * @returns `after`, with unchanged lists taken from `before`: `#replaceList` compares identities.
   */
  #replace(before: RecordsByName, after: RecordsByName): RecordsByName {
    const stored = new Map<string, readonly DnsRecord[]>();
    let hasChanged = false;
    for (const [name, list] of after) {
      const old = before.get(name) ?? NO_RECORDS;
      const isSame = sameRecords(old, list);
      stored.set(name, isSame ? old : list);
      if (isSame) continue;
      hasChanged = true;
      this.#replaceList(name, old, list);
    }
    for (const [name, old] of before) {
      if (after.has(name)) continue;
      hasChanged = true;
      this.#replaceList(name, old, NO_RECORDS);
    }
    if (hasChanged) this.#serial += 1;
    return stored;
  }

  #replaceList(name: string, before: readonly DnsRecord[], after: readonly DnsRecord[]): void {
    const all = this.#records.get(name);
    const isShared = all !== undefined && all !== before;
    const others = isShared ? all.filter((record) => !before.includes(record)) : NO_RECORDS;
    const merged = others.length === 0 ? after : [...others, ...after].sort(compareRecords);
    setList(this.#records, name, merged);
    if (this.#children.has(name)) return;
    if (all === undefined) this.#countInParent(name);
    if (merged.length === 0) this.#uncountInParent(name);
  }

  /** Counts a new name in its parent. The first child makes the parent exist. */
  #countInParent(name: string): void {
    if (this.#apexes.has(name)) return;
    const parent = parentOf(name);
    const count = this.#children.get(parent) ?? 0;
    this.#children.set(parent, count + 1);
    if (count === 0 && !this.#records.has(parent)) this.#countInParent(parent);
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
    if (!this.#records.has(parent)) this.#uncountInParent(parent);
  }
}

function parentOf(name: string): string {
  return name.slice(name.indexOf('.') + 1);
}
