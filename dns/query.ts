/** Parses queries, and finds what makes a query invalid. */
import { TYPE } from './types.ts';
import { MAX_LABEL_LENGTH, type RecordOffsets, recordOffsets } from './wire.ts';

/** RFC 1035, 4.1.1. BADVERS is defined by RFC 6891 and exceeds the four bits of the header. */
export const RCODES = {
  NOERROR: 0,
  FORMERR: 1,
  SERVFAIL: 2,
  NXDOMAIN: 3,
  NOTIMP: 4,
  REFUSED: 5,
  BADVERS: 16,
} as const;
export type Rcode = keyof typeof RCODES;

export const CLASS_IN = 1;

export type Transport = 'udp' | 'tcp';

/** EDNS0 parameters of a client, from the OPT record (RFC 6891). */
export interface Edns {
  /** Longest UDP response that the client accepts, in bytes. */
  readonly size: number;
  readonly version: number;
  readonly dnssecOk: boolean;
  /** Whether the Client Subnet option is present (RFC 7871). */
  readonly hasSubnet: boolean;
}

/** A query with one question. */
export interface DnsQuery {
  readonly id: number;
  readonly recursionDesired: boolean;
  /** The question section as received. The response repeats it, including letter case. */
  readonly question: Buffer;
  /**
   * Lower-case, without the final dot; empty for the root. A dot within a label is written `\.`.
   */
  readonly name: string;
  readonly type: number;
  readonly class: number;
  readonly edns: Edns | undefined;
}

/** A query that can only be answered with an error. */
export interface BadQuery {
  readonly id: number;
  readonly opcode: number;
  readonly recursionDesired: boolean;
  readonly rcode: 'FORMERR' | 'NOTIMP';
}

export const HEADER_LENGTH = 12;
/** Bytes. Enough for the longest name and an OPT record with many options. */
export const MAX_QUERY_LENGTH = 4096;
/** Bytes of a name on the wire (RFC 1035, 2.3.4). */
const MAX_NAME_LENGTH = 255;
/** Option code of Client Subnet (RFC 7871): the response may apply to one client network only. */
const CLIENT_SUBNET = 8;
/**
 * Upper bounds on records besides the question, as in CoreDNS. Additional records may be an OPT
 * record and a signature. Answer and authority records are ignored.
 */
const MAX_RECORDS = { answers: 1, authorities: 1, additionals: 2 };

/**
 * @returns undefined for messages that get no response: responses (two servers could loop),
 * messages without a full header, and messages too long for a query.
 */
export function readQuery(bytes: Buffer): DnsQuery | BadQuery | undefined {
  if (bytes.length < HEADER_LENGTH || bytes.length > MAX_QUERY_LENGTH) return undefined;
  const id = bytes.readUInt16BE(0);
  const flags = bytes.readUInt16BE(2);
  if ((flags & 0x8000) !== 0) return undefined;
  const opcode = (flags >> 11) & 0xf;
  const recursionDesired = (flags & 0x100) !== 0;
  const bad = (rcode: BadQuery['rcode']) => ({ id, opcode, recursionDesired, rcode });
  if (opcode !== 0) return bad('NOTIMP');
  if (
    bytes.readUInt16BE(4) !== 1 ||
    bytes.readUInt16BE(6) > MAX_RECORDS.answers ||
    bytes.readUInt16BE(8) > MAX_RECORDS.authorities ||
    bytes.readUInt16BE(10) > MAX_RECORDS.additionals
  ) {
    return bad('FORMERR');
  }
  const name = readName(bytes, HEADER_LENGTH);
  if (name === undefined || name.end + 4 > bytes.length) return bad('FORMERR');
  const count = bytes.readUInt16BE(6) + bytes.readUInt16BE(8) + bytes.readUInt16BE(10);
  const edns = readEdns(bytes, name.end + 4, count);
  if (edns === 'malformed') return bad('FORMERR');
  return {
    id,
    recursionDesired,
    question: bytes.subarray(HEADER_LENGTH, name.end + 4),
    name: name.text,
    type: bytes.readUInt16BE(name.end),
    class: bytes.readUInt16BE(name.end + 2),
    edns,
  };
}

/**
 * Parses the name of a question. dns-packet's parser decodes UTF-8 and joins labels with dots, so
 * different names could look like a cluster name. Compression pointers are invalid here: no earlier
 * name exists.
 */
function readName(bytes: Buffer, start: number): { text: string; end: number } | undefined {
  const labels: string[] = [];
  let at = start;
  for (;;) {
    const length = bytes[at++];
    if (length === undefined || length > MAX_LABEL_LENGTH) return undefined;
    if (length === 0) break;
    if (at + length > bytes.length || at + length - start >= MAX_NAME_LENGTH) return undefined;
    const label = bytes.toString('latin1', at, at + length);
    labels.push(label.includes('.') ? label.replaceAll('.', '\\.') : label);
    at += length;
  }
  return { text: labels.join('.').toLowerCase(), end: at };
}

/**
 * Reads the OPT record. At most one is allowed, owned by the root (RFC 6891, 6.1.1). Other records
 * are skipped.
 * @param start offset of the first record.
 * @param count number of records.
 * @returns undefined without an OPT record; 'malformed' also if any record exceeds the message.
 */
function readEdns(bytes: Buffer, start: number, count: number): Edns | undefined | 'malformed' {
  const records = recordOffsets(bytes, start, count);
  if (records === undefined) return 'malformed';
  const opts = records.filter(({ type }) => type === TYPE.OPT);
  const [opt] = opts;
  if (opt === undefined) return undefined;
  const options = optionsIn(bytes, opt);
  if (opts.length > 1 || bytes[opt.start] !== 0 || options === undefined) return 'malformed';
  return {
    size: opt.class,
    version: bytes.readUInt8(opt.typeOffset + 5),
    dnssecOk: (bytes.readUInt8(opt.typeOffset + 6) & 0x80) !== 0,
    hasSubnet: options.includes(CLIENT_SUBNET),
  };
}

/** Option codes of an OPT record (RFC 6891, 6.1.2); undefined if an option exceeds the record. */
function optionsIn(bytes: Buffer, { data, end }: RecordOffsets): readonly number[] | undefined {
  const codes: number[] = [];
  let at = data;
  while (at + 4 <= end) {
    codes.push(bytes.readUInt16BE(at));
    at += 4 + bytes.readUInt16BE(at + 2);
  }
  return at === end ? codes : undefined;
}
