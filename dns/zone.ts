/** The DNS records of the whole cluster, updated from API objects. */
import { isDeepStrictEqual } from 'node:util';
import type { InvalidObject } from '../api/errors.ts';
import type { ApiObject, EndpointSlice, Kind, ObjectKey, Service } from '../api/objects.ts';
import type { ObjectSink } from '../sources/source.ts';
import { REVERSE_DOMAINS } from './names.ts';
import { RecordStore } from './record-store.ts';
import {
  type DnsRecord,
  fieldsOfRecords,
  podRecords,
  SCHEMA_VERSION,
  type ServiceRecords,
  serviceRecords,
  sliceRecords,
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

/** One Service with its slices. */
interface Entry {
  readonly service: Service | undefined;
  readonly slices: readonly EndpointSlice[];
}

const NO_RECORDS: readonly DnsRecord[] = [];
const NOTHING: ServiceRecords = { records: [], problems: [] };
const EMPTY_ENTRY: Entry = { service: undefined, slices: [] };

/**
 * The records of a cluster: the cluster domain, plus reverse names of cluster IPs and headless
 * endpoints under `in-addr.arpa` and `ip6.arpa`. Updated object by object: a change recomputes the
 * records of one Service, or of one slice, and touches no other names.
 */
export class Zone implements ObjectSink {
  readonly clusterDomain: string;
  readonly #options: ZoneOptions;
  readonly #entries = new Map<ObjectKey, Entry>();
  readonly #slices = new Map<ObjectKey, EndpointSlice>();
  /** Records of all Services. Only reverse names can have records of several Services. */
  readonly #records: RecordStore;
  /** Records that exist without any Service. */
  readonly #staticRecords: ReadonlyMap<string, readonly DnsRecord[]>;
  readonly #unsynced = new Set<Kind>(['Service', 'EndpointSlice']);
  #serial = 1;

  constructor(options: ZoneOptions) {
    const { clusterDomain } = options;
    this.#options = options;
    this.clusterDomain = clusterDomain;
    // Names above the zone apexes are outside this server's zones.
    this.#records = new RecordStore(new Set([clusterDomain, ...Object.values(REVERSE_DOMAINS)]));
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
   * not exist (NXDOMAIN). Do not keep a list longer than `MAX_IMMUTABLE`.
   */
  lookup(name: string): readonly DnsRecord[] | undefined {
    return (
      this.#records.get(name) ??
      this.#staticRecords.get(name) ??
      podRecords(name, this.clusterDomain)
    );
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
      slices: this.#slices.size,
      ...this.#records.sizes,
    };
  }

  upsert(object: ApiObject): void {
    if (object.kind === 'Service') this.#setService(object.key, object);
    else if (object.kind === 'EndpointSlice') this.#upsertSlice(object);
  }

  remove(kind: Kind, key: ObjectKey): void {
    if (kind === 'Service') this.#setService(key, undefined);
    else if (kind === 'EndpointSlice') this.#removeSlice(key);
  }

  synced(kind: Kind): void {
    this.#unsynced.delete(kind);
  }

  #setService(key: ObjectKey, service: Service | undefined): void {
    const before = this.#entry(key);
    const after = { ...before, service };
    this.#setEntry(after, key);
    // Services change for many reasons, and one may have many endpoints.
    if (hasSameRecordFields(before.service, service)) return;
    this.#replace(this.#recordsOf(before), this.#recordsOf(after));
  }

  #upsertSlice(slice: EndpointSlice): void {
    const { key, serviceKey, triggerTime } = slice;
    const moved = this.#slices.get(key)?.serviceKey !== serviceKey;
    if (moved) this.#removeSlice(key);
    const before = this.#slices.get(key);
    this.#slices.set(key, slice);
    this.#replaceSlice(serviceKey, before, slice);
    if (triggerTime === undefined || !this.isSynced) return;
    if (before?.triggerTime === triggerTime || !this.#entry(serviceKey).service?.headless) return;
    this.#options.onEndpoints?.(triggerTime);
  }

  #removeSlice(key: ObjectKey): void {
    const slice = this.#slices.get(key);
    if (slice === undefined) return;
    this.#slices.delete(key);
    this.#replaceSlice(slice.serviceKey, slice, undefined);
  }

  #replaceSlice(
    owner: ObjectKey,
    before: EndpointSlice | undefined,
    after: EndpointSlice | undefined,
  ): void {
    const { service, slices } = this.#entry(owner);
    const others = before === undefined ? slices : slices.filter((slice) => slice !== before);
    this.#setEntry({ service, slices: after === undefined ? others : others.concat(after) }, owner);
    // Endpoints of other Services have no records, so their frequent changes need no update.
    if (service?.headless !== true) return;
    const recordsOf = (slice: EndpointSlice | undefined) =>
      slice === undefined ? NOTHING : sliceRecords(service, slice, this.clusterDomain);
    this.#replace(recordsOf(before), recordsOf(after));
  }

  #entry(key: ObjectKey): Entry {
    return this.#entries.get(key) ?? EMPTY_ENTRY;
  }

  #setEntry(entry: Entry, key: ObjectKey): void {
    if (entry.service === undefined && entry.slices.length === 0) this.#entries.delete(key);
    else this.#entries.set(key, entry);
  }

  #recordsOf({ service, slices }: Entry): ServiceRecords {
    return service === undefined ? NOTHING : serviceRecords(service, slices, this.clusterDomain);
  }

  #replace(before: ServiceRecords, after: ServiceRecords): void {
    // Add first: then a record of both stays where it is.
    const hasAdded = this.#records.add(after.records);
    const hasRemoved = this.#records.remove(before.records);
    if (hasAdded || hasRemoved) this.#serial += 1;
    if (after.problems.length === 0) return;
    const known = new Set(before.problems.map(({ message }) => message));
    for (const problem of after.problems) {
      if (!known.has(problem.message)) this.#options.onProblem?.(problem);
    }
  }
}

function hasSameRecordFields(before: Service | undefined, after: Service | undefined): boolean {
  if (before === undefined || after === undefined) return before === after;
  return isDeepStrictEqual(fieldsOfRecords(before), fieldsOfRecords(after));
}
