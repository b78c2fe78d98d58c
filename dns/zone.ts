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
  hasEndpointRecords,
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
  /** Endpoints and records that a change of a Service visits in one turn of the event loop. */
  readonly workPerTurn?: number;
}

/** About 5 ms. A Service may have 100,000 endpoints, and a tenant may change it again and again. */
const WORK_PER_TURN = 2000;

/** One Service with its slices. */
interface Entry {
  readonly service: Service | undefined;
  readonly slices: readonly EndpointSlice[];
}

/** A change of a Service that the records of its slices do not follow yet. */
interface Transition {
  /** The Service whose own records are stored, without records of its slices. */
  own: Service | undefined;
  /** The remaining slices. The values are the Services that their stored records were computed for. */
  readonly slices: Map<EndpointSlice, Service | undefined>;
  /** Own records that hide the records of slices at the same names. */
  shown: readonly DnsRecord[];
}

const NO_RECORDS: readonly DnsRecord[] = [];
const NOTHING: ServiceRecords = { records: [], problems: [] };
const EMPTY_ENTRY: Entry = { service: undefined, slices: [] };

/**
 * The records of a cluster: the cluster domain, plus reverse names of cluster IPs and headless
 * endpoints under `in-addr.arpa` and `ip6.arpa`. Updated object by object: a change recomputes the
 * records of one Service, or of one slice, and touches no other names. After the first lists, a
 * change of a Service with many endpoints takes several turns of the event loop, slice by slice.
 * Until then, its names may have the addresses of a part of the endpoints.
 */
export class Zone implements ObjectSink {
  readonly clusterDomain: string;
  readonly #options: ZoneOptions;
  readonly #entries = new Map<ObjectKey, Entry>();
  readonly #slices = new Map<ObjectKey, EndpointSlice>();
  /** Records of all Services. Only reverse names can have records of several Services. */
  readonly #records: RecordStore;
  readonly #transitions = new Map<ObjectKey, Transition>();
  /**
   * Own records of Services in transition: a name must not have a CNAME, or cluster IPs, together
   * with addresses of endpoints (RFC 1034, 3.6.2).
   */
  readonly #shown: RecordStore;
  /** Records that exist without any Service. */
  readonly #staticRecords: ReadonlyMap<string, readonly DnsRecord[]>;
  readonly #unsynced = new Set<Kind>(['Service', 'EndpointSlice']);
  #serial = 1;
  #isScheduled = false;

  constructor(options: ZoneOptions) {
    const { clusterDomain } = options;
    this.#options = options;
    this.clusterDomain = clusterDomain;
    // Names above the zone apexes are outside this server's zones.
    const apexes = new Set([clusterDomain, ...Object.values(REVERSE_DOMAINS)]);
    this.#records = new RecordStore(apexes);
    this.#shown = new RecordStore(apexes);
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
   * @param mostSrv as in `RecordStore.get`.
   */
  lookup(name: string, mostSrv?: number): readonly DnsRecord[] | undefined {
    return (
      this.#shown.get(name) ??
      this.#records.get(name, mostSrv) ??
      this.#staticRecords.get(name) ??
      podRecords(name, this.clusterDomain)
    );
  }

  /** Whether all Services and EndpointSlices are listed. Until then, a missing name may appear. */
  get isSynced(): boolean {
    return this.#unsynced.size === 0;
  }

  /** SOA serial. Starts at 1 and increases with every change of the records, and may do so without. */
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
    const { service: before, slices } = this.#entry(key);
    this.#setEntry({ service, slices }, key);
    // Services change for many reasons, and one may have many endpoints.
    if (hasSameRecordFields(before, service)) return;
    const transition: Transition = this.#transitions.get(key) ?? {
      own: before,
      slices: new Map(),
      shown: NO_RECORDS,
    };
    if (hasEndpointRecords(before) || hasEndpointRecords(service)) {
      for (const slice of slices) {
        if (!transition.slices.has(slice)) transition.slices.set(slice, before);
      }
    }
    this.#transitions.set(key, transition);
    // Otherwise the own records stay until the records of slices are complete.
    if (!hasEndpointRecords(service)) this.#setOwn(transition, service);
    if (this.#advance(key, transition)) return;
    this.#show(transition, this.#ownRecords(transition.own).records);
    this.#continueInNextTurn();
  }

  /** Recomputes slices of a Service in transition. @returns whether all are done. */
  #advance(key: ObjectKey, transition: Transition): boolean {
    const { service } = this.#entry(key);
    // Before the first lists are complete, the server is not ready, and the rest of the lists waits.
    let left = this.isSynced ? (this.#options.workPerTurn ?? WORK_PER_TURN) : Infinity;
    for (const [slice, stored] of transition.slices) {
      if (left <= 0) return false;
      transition.slices.delete(slice);
      const [before, after] = [this.#ofSlice(stored, slice), this.#ofSlice(service, slice)];
      this.#replace(before, after, slice.key);
      left -= slice.endpoints.length + slice.ports.length;
      left -= before.records.length + after.records.length;
    }
    this.#transitions.delete(key);
    this.#show(transition, NO_RECORDS);
    this.#setOwn(transition, service);
    return true;
  }

  #continueInNextTurn(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    setImmediate(() => {
      this.#isScheduled = false;
      // One Service at a time, in turn: a large one does not delay others.
      const [first] = this.#transitions;
      if (first === undefined) return;
      const [key, transition] = first;
      this.#transitions.delete(key);
      if (!this.#advance(key, transition)) this.#transitions.set(key, transition);
      if (this.#transitions.size > 0) this.#continueInNextTurn();
    });
  }

  #setOwn(transition: Transition, service: Service | undefined): void {
    if (transition.own === service) return;
    this.#replace(this.#ownRecords(transition.own), this.#ownRecords(service));
    transition.own = service;
  }

  #show(transition: Transition, records: readonly DnsRecord[]): void {
    this.#shown.remove(transition.shown);
    // Reverse names belong to all Services with the address.
    transition.shown = records.filter(({ type }) => type !== 'PTR');
    this.#shown.add(transition.shown);
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
    const remaining = this.#transitions.get(owner)?.slices;
    const isRemaining = before !== undefined && remaining?.has(before) === true;
    const stored = isRemaining ? remaining?.get(before) : service;
    if (isRemaining) remaining?.delete(before);
    // Endpoints of other Services have no records, so their frequent changes need no update.
    if (!hasEndpointRecords(stored) && !hasEndpointRecords(service)) return;
    const key = (after ?? before)?.key;
    this.#replace(this.#ofSlice(stored, before), this.#ofSlice(service, after), key);
  }

  #entry(key: ObjectKey): Entry {
    return this.#entries.get(key) ?? EMPTY_ENTRY;
  }

  #setEntry(entry: Entry, key: ObjectKey): void {
    if (entry.service === undefined && entry.slices.length === 0) this.#entries.delete(key);
    else this.#entries.set(key, entry);
  }

  #ownRecords(service: Service | undefined): ServiceRecords {
    return service === undefined ? NOTHING : serviceRecords(service, this.clusterDomain);
  }

  #ofSlice(service: Service | undefined, slice: EndpointSlice | undefined): ServiceRecords {
    if (service === undefined || slice === undefined) return NOTHING;
    return sliceRecords(service, slice, this.clusterDomain);
  }

  /** @param slice the EndpointSlice whose records these are; undefined for a Service's own. */
  #replace(before: ServiceRecords, after: ServiceRecords, slice?: ObjectKey): void {
    // Add first: then a record of both stays where it is.
    const hasAdded = this.#records.add(after.records);
    const hasRemoved = this.#records.remove(before.records);
    const hasSrvChanged = slice !== undefined && this.#records.setSrvGroup(slice, after.srvGroup);
    if (hasAdded || hasRemoved || hasSrvChanged) this.#serial += 1;
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
