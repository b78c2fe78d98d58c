/** DNS messages for tests: bytes by dns-packet, records as lines of text. */
import {
  decode,
  encode,
  type Answer as PacketRecord,
  type RecordClass,
  type RecordType,
} from 'dns-packet';
import type { DnsRecord } from '../../dns/records.ts';
import type { Authority, ZoneView } from '../../dns/zone-answer.ts';

export interface QueryFields {
  readonly id?: number;
  readonly class?: RecordClass;
  /** UDP size of the OPT record; undefined for no OPT record. */
  readonly size?: number;
  readonly version?: number;
  readonly dnssecOk?: boolean;
  readonly recursionDesired?: boolean;
}

export function queryBytes(name: string, type: string, fields: QueryFields = {}): Buffer {
  const { id = 4711, size, version = 0, dnssecOk = false, recursionDesired = true } = fields;
  const flags = dnssecOk ? 0x8000 : 0;
  return encode({
    id,
    type: 'query',
    flags: recursionDesired ? 0x100 : 0,
    questions: [{ name, type: type as RecordType, class: fields.class ?? 'IN' }],
    additionals:
      size === undefined
        ? []
        : [
            {
              name: '.',
              type: 'OPT',
              udpPayloadSize: size,
              extendedRcode: 0,
              ednsVersion: version,
              flags,
              flag_do: dnssecOk,
              options: [],
            },
          ],
  });
}

/** A parsed response. */
export interface DnsReply {
  readonly id: number;
  readonly opcode: number;
  /** Including the extended part of the OPT record. */
  readonly rcode: number;
  /** The flags that are set, from `qr aa tc rd ra`. */
  readonly flags: string;
  /** As text, in its own letter case. */
  readonly question: string | undefined;
  /** `NAME TTL TYPE DATA`. */
  readonly answers: readonly string[];
  readonly authorities: readonly string[];
  /** Without the OPT record. */
  readonly additionals: readonly string[];
  readonly opt: { readonly size: number; readonly dnssecOk: boolean } | undefined;
}

const FLAGS = [
  [0x8000, 'qr'],
  [0x400, 'aa'],
  [0x200, 'tc'],
  [0x100, 'rd'],
  [0x80, 'ra'],
] as const;

/** @throws the errors of dns-packet for malformed messages */
export function readReply(bytes: Buffer): DnsReply {
  const { questions = [], answers = [], authorities = [], additionals = [] } = decode(bytes);
  const flags = bytes.readUInt16BE(2);
  const opt = additionals.find((record) => record.type === 'OPT');
  const extended = opt?.type === 'OPT' ? opt.extendedRcode : 0;
  return {
    id: bytes.readUInt16BE(0),
    opcode: (flags >> 11) & 0xf,
    rcode: (extended << 4) | (flags & 0xf),
    flags: FLAGS.filter(([bit]) => (flags & bit) !== 0)
      .map(([, name]) => name)
      .join(' '),
    question: questions[0] && `${questions[0].name} ${questions[0].type}`,
    answers: answers.map(recordLine),
    authorities: authorities.map(recordLine),
    additionals: additionals.filter(({ type }) => type !== 'OPT').map(recordLine),
    opt: opt?.type === 'OPT' ? { size: opt.udpPayloadSize, dnssecOk: opt.flag_do } : undefined,
  };
}

/** `web.default.svc.cluster.local 5 A 10.0.0.1`; structured data as JSON. */
export function recordLine(record: PacketRecord): string {
  if (record.type === 'OPT') return 'OPT';
  const { name, ttl, type, data } = record;
  const shown = Array.isArray(data) ? data.map(String).join(' ') : text(data);
  return `${name} ${ttl} ${type} ${shown}`;
}

function text(data: unknown): string {
  return typeof data === 'string' ? data : JSON.stringify(data);
}

/** A zone of records, including the empty non-terminals above their names. */
export function fakeZone(
  records: readonly DnsRecord[],
  { isSynced = true, clusterDomain = 'cluster.local' } = {},
): ZoneView {
  const lists = new Map<string, DnsRecord[]>();
  for (const record of records) {
    for (let name = record.name; name.includes('.'); name = name.slice(name.indexOf('.') + 1)) {
      const list = lists.get(name) ?? [];
      lists.set(name, list);
      if (name === record.name) list.push(record);
    }
  }
  return { clusterDomain, isSynced, serial: 7, lookup: (name) => lists.get(name) };
}

export function authority(zone: ZoneView, changes: Partial<Authority> = {}): Authority {
  return { zone, ttl: 5, nameservers: () => [], random: () => 0, ...changes };
}

export function a(name: string, data: string): DnsRecord {
  return { name, type: data.includes(':') ? 'AAAA' : 'A', data };
}

export function srv(name: string, port: number, target: string): DnsRecord {
  return { name, type: 'SRV', data: { priority: 0, weight: 100, port, target } };
}

export function cname(name: string, data: string): DnsRecord {
  return { name, type: 'CNAME', data };
}
