/** Computes answers from the records of the zone, by the rules of DNS. Pure. */
import type { Answer as PacketRecord } from 'dns-packet';
import { REVERSE_DOMAINS } from './names.ts';
import { CLASS_IN, type DnsQuery, type Rcode } from './query.ts';
import { addressRecord, compareRecords, type DnsRecord } from './records.ts';
import { FIRST_META_TYPE, TYPE } from './types.ts';
import type { Zone } from './zone.ts';

/** A record in dns-packet's form. */
export type ResourceRecord = Exclude<PacketRecord, { type: 'OPT' }>;

/** A `DnsRecord` has no TTL; `withTtl` adds the TTL of `Authority`. */
type ZoneRecord = DnsRecord | ResourceRecord;

export interface ZoneAnswer {
  readonly rcode: Rcode;
  /** The AA bit. */
  readonly authoritative: boolean;
  readonly answers: readonly ResourceRecord[];
  readonly authorities: readonly ResourceRecord[];
  readonly additionals: readonly ResourceRecord[];
  /**
   * Number of trailing answer records that are addresses of one name; their order has no meaning.
   */
  readonly addressCount: number;
  /**
   * Whether the answer depends only on records of the zone, so that it is valid until they change.
   */
  readonly isCacheable: boolean;
  /** Target of the last alias if it lies in another domain. A forwarder resolves it further. */
  readonly externalTarget?: string;
}

/** The part of a `Zone` that answers need. */
export type ZoneView = Pick<Zone, 'clusterDomain' | 'lookup' | 'isSynced' | 'serial'>;

export interface Authority {
  readonly zone: ZoneView;
  /** TTL of records in seconds. */
  readonly ttl: number;
  /** Addresses of this server, for the name in the zone's NS record. */
  readonly nameservers: () => readonly string[];
  /** Random number in [0, 1). */
  readonly random: () => number;
}

const REVERSE_ZONES: readonly string[] = Object.values(REVERSE_DOMAINS);
/** Longest alias chain followed. A longer chain, or a loop, is answered with SERVFAIL. */
const MAX_ALIASES = 100;
/** CoreDNS's values in seconds. They have no effect without zone transfers. */
const SOA_TIMES = { refresh: 7200, retry: 1800, expire: 86_400 };
/** Upper bound on the negative TTL in seconds, whatever `ttl` is; CoreDNS's value. */
const MAX_NEGATIVE_TTL = 300;
/**
 * Upper bound on target names with additional address records. Clients query the addresses of other
 * targets themselves.
 */
const MAX_TARGETS = 100;
const NO_RECORDS: readonly never[] = [];

/** The zone of a name, among the zones of this server; undefined for other domains. */
export function zoneOf(name: string, clusterDomain: string): string | undefined {
  if (isWithin(name, clusterDomain)) return clusterDomain;
  return REVERSE_ZONES.find((zone) => isWithin(name, zone));
}

function isWithin(name: string, domain: string): boolean {
  return (
    name.endsWith(domain) && (name.length === domain.length || name.at(-domain.length - 1) === '.')
  );
}

/**
 * Answers a query from the zone.
 * @param maxRecords upper bound on records that fit in the client's message; the rest are skipped.
 * Otherwise a few queries for a Service with thousands of pods would delay all other clients.
 * @returns undefined for names outside the zone: other domains, and reverse names of addresses that
 * the zone does not have.
 */
export function answerFromZone(
  query: DnsQuery,
  authority: Authority,
  maxRecords = Infinity,
): ZoneAnswer | undefined {
  const { zone } = authority;
  if ((query.edns?.version ?? 0) > 0) return errorAnswer('BADVERS');
  if (query.class !== CLASS_IN) return errorAnswer('REFUSED');
  if (query.type === TYPE.OPT) return errorAnswer('FORMERR');
  if (query.type === TYPE.AXFR || query.type === TYPE.IXFR) return errorAnswer('REFUSED');
  if (query.type >= FIRST_META_TYPE && query.type < TYPE.ANY) return errorAnswer('NOTIMP');
  const apex = zoneOf(query.name, zone.clusterDomain);
  if (apex === undefined) return undefined;
  // Until all Services and EndpointSlices are listed, a missing name may still appear.
  if (!zone.isSynced) return errorAnswer('SERVFAIL');
  const records = lookup(query.name, authority, mostSrvFor(query, maxRecords));
  if (records === undefined && apex !== zone.clusterDomain) return undefined;
  return followAliases(query, records, apex, authority, maxRecords);
}

function errorAnswer(rcode: Rcode): ZoneAnswer {
  const nothing = { answers: NO_RECORDS, authorities: NO_RECORDS, isCacheable: false };
  return { ...AUTHORITATIVE, ...nothing, rcode, authoritative: false };
}

/**
 * Answers with the records of a name, following aliases.
 * @param ofName the records of the queried name; undefined if it does not exist.
 * @param apex zone of the queried name, for the SOA record of a negative answer.
 */
function followAliases(
  query: DnsQuery,
  ofName: readonly ZoneRecord[] | undefined,
  apex: string,
  authority: Authority,
  maxRecords: number,
): ZoneAnswer {
  const { clusterDomain } = authority.zone;
  const negative = () => [soa(apex, authority)];
  // The addresses of the NS record are those on which this server listens. They change without a
  // change of the zone, so answers with them are not cacheable.
  const isOfServer = (name: string) => name === clusterDomain || name === nameserver(clusterDomain);
  let isOfZone = !isOfServer(query.name);
  const aliases: ResourceRecord[] = [];
  let records = ofName;
  for (;;) {
    const partial = { ...AUTHORITATIVE, answers: aliases, isCacheable: isOfZone };
    if (records === undefined) return { ...partial, rcode: 'NXDOMAIN', authorities: negative() };
    const alias = records[typeRange(records, 'CNAME').start];
    if (alias?.type !== 'CNAME' || query.type === TYPE.CNAME || query.type === TYPE.ANY) break;
    if (aliases.length === MAX_ALIASES) return errorAnswer('SERVFAIL');
    aliases.push(withTtl(alias, authority));
    if (!isWithin(alias.data, clusterDomain)) {
      const { data: target } = alias;
      return {
        ...partial,
        rcode: 'NOERROR',
        authorities: NO_RECORDS,
        externalTarget: target,
        isCacheable: false,
      };
    }
    records = lookup(alias.data, authority, mostSrvFor(query, maxRecords));
    isOfZone &&= !isOfServer(alias.data);
  }
  const isAddress = query.type === TYPE.A || query.type === TYPE.AAAA;
  const { list, start, end } = ofType(query, records, authority);
  const isCut = end - start > maxRecords;
  const first = isCut && isAddress ? Math.floor(authority.random() * (end - start)) : 0;
  const found = rotatedSlice({ list, start, end }, first, maxRecords).map((record) =>
    withTtl(record, authority),
  );
  return {
    ...AUTHORITATIVE,
    rcode: 'NOERROR',
    answers: [...aliases, ...found],
    authorities: found.length === 0 ? negative() : NO_RECORDS,
    additionals: additionalsOf(found, authority, maxRecords),
    addressCount: isAddress ? found.length : 0,
    isCacheable: isOfZone && !isCut,
  };
}

const AUTHORITATIVE = { authoritative: true, additionals: NO_RECORDS, addressCount: 0 };

/** Consecutive records of a name. A copy of them could be long. */
interface RecordRange {
  readonly list: readonly ZoneRecord[];
  readonly start: number;
  readonly end: number;
}

const TYPE_NAMES: ReadonlyMap<number, string> = new Map(
  Object.entries(TYPE).map(([name, type]) => [type, name]),
);

function ofType(query: DnsQuery, records: readonly ZoneRecord[], { ttl }: Authority): RecordRange {
  if (query.type === TYPE.ANY) {
    const aliases = typeRange(records, 'CNAME');
    // RFC 8482, 4.2: no HINFO record is synthesized for a name with an alias.
    if (aliases.end > aliases.start) return aliases;
    // The HINFO record is short, so it is useless for amplification. Clients cannot mistake it for
    // all records.
    const data = { cpu: 'RFC8482', os: '' };
    return { list: [{ name: query.name, type: 'HINFO', ttl, data }], start: 0, end: 1 };
  }
  return typeRange(records, TYPE_NAMES.get(query.type) ?? '');
}

/** @param list sorted by type. */
function typeRange(list: readonly ZoneRecord[], type: string): RecordRange {
  const start = firstIndex(list, (each) => each.type >= type);
  return { list, start, end: firstIndex(list, (each) => each.type > type) };
}

/** The index of the first record for which the condition holds, as it does for all after it. */
function firstIndex(
  list: readonly ZoneRecord[],
  condition: (record: ZoneRecord) => boolean,
): number {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    const record = list[middle];
    if (record === undefined || condition(record)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** At most `count` consecutive records from the `first`, so that a random one leaves none out always. */
function rotatedSlice(
  { list, start, end }: RecordRange,
  first: number,
  count: number,
): readonly ZoneRecord[] {
  const found = list.slice(start + first, Math.min(start + first + count, end));
  return [...found, ...list.slice(start, start + Math.min(first, count - found.length))];
}

function withTtl(record: ZoneRecord, { ttl }: Authority): ResourceRecord {
  return { ttl, ...record };
}

/**
 * Target names of SRV and NS records, whose addresses the client needs next (RFC 2782; RFC 1034,
 * 3.6).
 */
function targetsOf(records: readonly ResourceRecord[]): readonly string[] {
  const targets = records.flatMap((record) => {
    if (record.type === 'SRV') return [record.data.target];
    return record.type === 'NS' ? [record.data] : [];
  });
  return targets.length < 2 ? targets : [...new Set(targets)].slice(0, MAX_TARGETS);
}

/** Address records of targets, until there are more than fit. */
function additionalsOf(
  found: readonly ResourceRecord[],
  authority: Authority,
  maxRecords: number,
): readonly ResourceRecord[] {
  const additionals: ResourceRecord[] = [];
  for (const target of targetsOf(found)) {
    if (additionals.length > maxRecords) break;
    additionals.push(...addressesOf(target, authority, maxRecords));
  }
  return additionals;
}

/** None if they do not fit: a client could not detect that some are missing (RFC 2181, 9). */
function addressesOf(
  name: string,
  authority: Authority,
  maxRecords: number,
): readonly ResourceRecord[] {
  const records = lookup(name, authority) ?? NO_RECORDS;
  if (records.length > maxRecords) return NO_RECORDS;
  return records
    .filter(({ type }) => type === 'A' || type === 'AAAA')
    .map((record) => withTtl(record, authority));
}

/**
 * Records of the zone, plus the SOA and NS records and the address records of this server. Sorted
 * by type.
 * @param mostSrv as in `RecordStore.get`.
 */
function lookup(
  name: string,
  authority: Authority,
  mostSrv = 0,
): readonly ZoneRecord[] | undefined {
  const { zone, ttl, nameservers } = authority;
  const { clusterDomain } = zone;
  if (name === clusterDomain) {
    const ns: ResourceRecord = { name, type: 'NS', ttl, data: nameserver(clusterDomain) };
    return [ns, soa(clusterDomain, authority)];
  }
  if (name === nameserver(clusterDomain)) {
    return nameservers()
      .map((address) => addressRecord(name, address))
      .sort(compareRecords);
  }
  if (name === `dns.${clusterDomain}`) return NO_RECORDS;
  return zone.lookup(name, mostSrv);
}

function mostSrvFor({ type }: DnsQuery, maxRecords: number): number {
  return type === TYPE.SRV ? maxRecords : 0;
}

/** Name of this server in NS and SOA records. CoreDNS uses the same name for itself. */
function nameserver(clusterDomain: string): string {
  return `ns.dns.${clusterDomain}`;
}

function soa(name: string, { zone, ttl: usual }: Authority): ResourceRecord {
  const { clusterDomain, serial } = zone;
  const ttl = Math.min(usual, MAX_NEGATIVE_TTL);
  const data = {
    mname: nameserver(clusterDomain),
    rname: `hostmaster.${clusterDomain}`,
    serial,
    ...SOA_TIMES,
    minimum: ttl,
  };
  return { name, type: 'SOA', ttl, data };
}
