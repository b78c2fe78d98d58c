/** What is to be said to a query: the rules of DNS over the records of the zone. Pure. */
import type { Answer as PacketRecord } from 'dns-packet';
import { REVERSE_DOMAINS } from './names.ts';
import { CLASS_IN, type DnsQuery, type Rcode } from './query.ts';
import { addressRecord, type DnsRecord } from './records.ts';
import { FIRST_META_TYPE, TYPE } from './types.ts';
import type { Zone } from './zone.ts';

/** A record as dns-packet takes it. */
export type ResourceRecord = Exclude<PacketRecord, { type: 'OPT' }>;

/** One without a TTL is the zone's, and gets that of `Authority`. */
type ZoneRecord = DnsRecord | ResourceRecord;

export interface ZoneAnswer {
  readonly rcode: Rcode;
  /** Whether we are the ones who know. */
  readonly authoritative: boolean;
  readonly answers: readonly ResourceRecord[];
  readonly authorities: readonly ResourceRecord[];
  readonly additionals: readonly ResourceRecord[];
  /** How many of the answers, at their end, are addresses of one name: their order says nothing. */
  readonly addressCount: number;
  /** The records of the zone alone say so: it is the same as long as they are. */
  readonly isCacheable: boolean;
  /** Where the last alias leads, when that is elsewhere: who can ask there goes on. */
  readonly externalTarget?: string;
}

/** As much of a `Zone` as answers need. */
export type ZoneView = Pick<Zone, 'clusterDomain' | 'lookup' | 'isSynced' | 'serial'>;

export interface Authority {
  readonly zone: ZoneView;
  /** Seconds that answers may be kept. */
  readonly ttl: number;
  /** Addresses of this server, for the name that the zone's NS record has. */
  readonly nameservers: () => readonly string[];
  /** From 0 up to and without 1. */
  readonly random: () => number;
}

const REVERSE_ZONES: readonly string[] = Object.values(REVERSE_DOMAINS);
/** More aliases in a row than people make; a longer chain, or one that goes round, is SERVFAIL. */
const MAX_ALIASES = 100;
/** CoreDNS's, which nobody uses: nothing is transferred. Seconds. */
const SOA_TIMES = { refresh: 7200, retry: 1800, expire: 86_400 };
/** What there is not is kept no longer, however long `ttl` is: CoreDNS's. Seconds. */
const MAX_NEGATIVE_TTL = 300;
/** Whose addresses come along with their names; the client asks for those of others if it needs them. */
const MAX_TARGETS = 100;
const NO_RECORDS: readonly never[] = [];

/** The zone that a name is in, of those that we may know of; undefined: of other domains. */
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
 * @param maxRecords So many records fit into no message that the client takes: more are not looked at. A few
 * queries for a Service of thousands of pods would otherwise keep all other clients waiting.
 * @returns undefined when the name is somebody else's: of another domain, or of an unknown address.
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
  // That a name is not there cannot be told before everything has been listed.
  if (!zone.isSynced) return errorAnswer('SERVFAIL');
  const records = lookup(query.name, authority);
  if (records === undefined && apex !== zone.clusterDomain) return undefined;
  return followAliases(query, records, apex, authority, maxRecords);
}

function errorAnswer(rcode: Rcode): ZoneAnswer {
  const nothing = { answers: NO_RECORDS, authorities: NO_RECORDS, isCacheable: false };
  return { ...AUTHORITATIVE, ...nothing, rcode, authoritative: false };
}

/** Answers with the records of a name, and of those that it is an alias of. */
function followAliases(
  query: DnsQuery,
  ofName: readonly ZoneRecord[] | undefined,
  apex: string,
  authority: Authority,
  maxRecords: number,
): ZoneAnswer {
  const { clusterDomain } = authority.zone;
  const negative = () => [soa(apex, authority)];
  // Those of this server come and go with addresses of its host.
  const isOfServer = (name: string) => name === clusterDomain || name === nameserver(clusterDomain);
  let isOfZone = !isOfServer(query.name);
  const aliases: ResourceRecord[] = [];
  let records = ofName;
  for (;;) {
    const known = { ...AUTHORITATIVE, answers: aliases, isCacheable: isOfZone };
    if (records === undefined) return { ...known, rcode: 'NXDOMAIN', authorities: negative() };
    const alias = records.find(({ type }) => type === 'CNAME');
    if (alias?.type !== 'CNAME' || query.type === TYPE.CNAME || query.type === TYPE.ANY) break;
    if (aliases.length === MAX_ALIASES) return errorAnswer('SERVFAIL');
    aliases.push(withTtl(alias, authority));
    if (!isWithin(alias.data, clusterDomain)) {
      const { data: target } = alias;
      return {
        ...known,
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
    // RFC 8482, 4.2: nothing is made up beside an alias.
    if (aliases.length > 0) return aliases;
    // So short that nobody gains by asking, and nothing that could be taken for all.
    return [{ name: query.name, type: 'HINFO', ttl, data: { cpu: 'RFC8482', os: '' } }];
  }
  return records.filter(({ type }) => TYPE[type as keyof typeof TYPE] === query.type);
}

/** Members that follow each other, from any on, so that none is always left out. */
function rotatedSlice<T>(list: readonly T[], count: number, random: () => number): readonly T[] {
  const start = Math.floor(random() * list.length);
  const first = list.slice(start, start + count);
  return [...first, ...list.slice(0, count - first.length)];
}

function withTtl(record: ZoneRecord, { ttl }: Authority): ResourceRecord {
  return { ttl, ...record };
}

/** Names in SRV and NS records, whose addresses the client would ask for next (RFC 2782; RFC 1034, 3.6). */
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

/** The zone's records, and those that every zone has: who serves it. */
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

/** CoreDNS's name for itself. */
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
