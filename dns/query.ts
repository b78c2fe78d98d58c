/** Reads queries: what a client wants to know, or what is wrong with the way it asks. */
import { TYPE } from './types.ts';
import { MAX_LABEL_LENGTH, type RecordOffsets, recordOffsets } from './wire.ts';

/** RFC 1035, 4.1.1; BADVERS is RFC 6891's, and does not fit into the header. */
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

/** What a client says of itself by an OPT record (RFC 6891). */
export interface Edns {
  /** The longest answer by UDP that it takes, in bytes. */
  readonly size: number;
  readonly version: number;
  readonly dnssecOk: boolean;
  /** There is an option that says whose network the answer is for. */
  readonly hasSubnet: boolean;
}

/** A query with one question. */
export interface DnsQuery {
  readonly id: number;
  readonly recursionDesired: boolean;
  /** The question's name, type and class as they came: an answer repeats them, case included. */
  readonly question: Buffer;
  /** Lower-case, without the final dot; empty for the root. A dot within a label is `\.`. */
  readonly name: string;
  readonly type: number;
  readonly class: number;
  readonly edns: Edns | undefined;
}

/** A query that can only be answered by an error. */
export interface BadQuery {
  readonly id: number;
  readonly opcode: number;
  readonly recursionDesired: boolean;
  readonly rcode: 'FORMERR' | 'NOTIMP';
}

export const HEADER_LENGTH = 12;
/** Bytes; a name of the greatest length, with an OPT record full of options, has room in it. */
export const MAX_QUERY_LENGTH = 4096;
/** Bytes of a name on the wire (RFC 1035, 2.3.4). */
const MAX_NAME_LENGTH = 255;
/** RFC 7871: the answer is for clients of one network. */
const CLIENT_SUBNET = 8;
/** Records beside the question: an OPT, and a signature. The same numbers as CoreDNS takes. */
const MAX_RECORDS = { answers: 1, authorities: 1, additionals: 2 };

/**
 * @returns undefined for what is not to be answered: answers, lest two servers talk to each other
 * for ever, what has not even a header, and what is too long for a query.
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
 * The name of a question. Not dns-packet's: it takes bytes for UTF-8 and joins labels with dots,
 * so that other names look like one of ours. There is nothing yet that a pointer could point to.
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
 * The OPT record, if there is one: at most one, owned by the root (RFC 6891, 6.1.1). Other records are skipped.
 * @param start where the records begin.
 * @param count how many there are.
 * @returns 'malformed' also when a record, or an option of the OPT record, goes past the end.
 */
function readEdns(bytes: Buffer, start: number, count: number): Edns | undefined | 'malformed' {
  const places = recordOffsets(bytes, start, count);
  if (places === undefined) return 'malformed';
  const found = places.filter(({ type }) => type === TYPE.OPT);
  const [opt] = found;
  if (opt === undefined) return undefined;
  const options = optionsIn(bytes, opt);
  if (found.length > 1 || bytes[opt.start] !== 0 || options === undefined) return 'malformed';
  return {
    size: opt.class,
    version: bytes.readUInt8(opt.typeOffset + 5),
    dnssecOk: (bytes.readUInt8(opt.typeOffset + 6) & 0x80) !== 0,
    hasSubnet: options.includes(CLIENT_SUBNET),
  };
}

/** Codes of the options of an OPT record (RFC 6891, 6.1.2); undefined when one goes past its end. */
function optionsIn(bytes: Buffer, { data, end }: RecordOffsets): readonly number[] | undefined {
  const codes: number[] = [];
  let at = data;
  while (at + 4 <= end) {
    codes.push(bytes.readUInt16BE(at));
    at += 4 + bytes.readUInt16BE(at + 2);
  }
  return at === end ? codes : undefined;
}
