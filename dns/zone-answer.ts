/** Computes answers from the records of the zone, by the rules of DNS. Pure. */
import type { Answer as PacketRecord } from 'dns-packet';
import { REVERSE_DOMAINS } from './names.ts';
import { CLASS_IN, type DnsQuery, type Rcode } from './query.ts';
import { addressRecord, type DnsRecord } from './records.ts';
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
  const records = lookup(query.name, authority);
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
    const alias = records.find(({ type }) => type === 'CNAME');
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
    records = lookup(alias.data, authority);
    isOfZone &&= !isOfServer(alias.data);
  }
  const all = ofType(query, records, authority);
  const isCut = all.length > maxRecords;
  const isAddress = query.type === TYPE.A || query.type === TYPE.AAAA;
  const found = (
    isCut && isAddress ? rotatedSlice(all, maxRecords, authority.random) : all.slice(0, maxRecords)
  ).map((record) => withTtl(record, authority));
  return {
    ...AUTHORITATIVE,
    rcode: 'NOERROR',
    answers: [...aliases, ...found],
    authorities: found.length === 0 ? negative() : NO_RECORDS,
    additionals: targetsOf(found).flatMap((target) => addressesOf(target, authority)),
    addressCount: isAddress ? found.length : 0,
    isCacheable: isOfZone && !isCut,
  };
}

const AUTHORITATIVE = { authoritative: true, additionals: NO_RECORDS, addressCount: 0 };

function ofType(
  query: DnsQuery,
  records: readonly ZoneRecord[],
  { ttl }: Authority,
): readonly ZoneRecord[] {
  if (query.type === TYPE.ANY) {
    const aliases = records.filter(({ type }) => type === 'CNAME');
    // RFC 8482, 4.2: no HINFO record is synthesized for a name with an alias.
    if (aliases.length > 0) return aliases;
    // The HINFO record is short, so it is useless for amplification. Clients cannot mistake it for
    // all records.
    return [{ name: query.name, type: 'HINFO', ttl, data: { cpu: 'RFC8482', os: '' } }];
  }
  return records.filter(({ type }) => TYPE[type as keyof typeof TYPE] === query.type);
}

/** Consecutive items from a random start, so that no item is always left out. */
function rotatedSlice<T>(list: readonly T[], count: number, random: () => number): readonly T[] {
  const start = Math.floor(random() * list.length);
  const first = list.slice(start, start + count);
  return [...first, ...list.slice(0, count - first.length)];
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

function addressesOf(name: string, authority: Authority): readonly ResourceRecord[] {
  return (lookup(name, authority) ?? [])
    .filter(({ type }) => type === 'A' || type === 'AAAA')
    .map((record) => withTtl(record, authority));
}

/** Records of the zone, plus the SOA and NS records and the address records of this server. */
function lookup(name: string, authority: Authority): readonly ZoneRecord[] | undefined {
  const { zone, ttl, nameservers } = authority;
  const { clusterDomain } = zone;
  if (name === clusterDomain) {
    const ns: ResourceRecord = { name, type: 'NS', ttl, data: nameserver(clusterDomain) };
    return [soa(clusterDomain, authority), ns];
  }
  if (name === nameserver(clusterDomain)) {
    return nameservers().map((address) => addressRecord(name, address));
  }
  if (name === `dns.${clusterDomain}`) return NO_RECORDS;
  return zone.lookup(name);
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
