/**
 * Encodes responses: dns-packet encodes the records, this module adds name compression and
 * truncation.
 */
import { encode } from 'dns-packet';
import { type BadQuery, type DnsQuery, HEADER_LENGTH, RCODES, type Rcode } from './query.ts';
import { TYPE } from './types.ts';
import { endOfName, RECORD_HEAD_LENGTH } from './wire.ts';
import type { ResourceRecord, ZoneAnswer } from './zone-answer.ts';

/** Flags in the second 16 bits of the header (RFC 1035, 4.1.1). */
export const FLAG = { QR: 0x8000, AA: 0x400, TC: 0x200, RD: 0x100, RA: 0x80 } as const;

/**
 * Longest UDP response in bytes, regardless of the client's buffer size: it avoids IP fragmentation
 * (DNS flag day 2020). Also the buffer size announced to clients.
 */
export const MAX_UDP_LENGTH = 1232;
/** Longest UDP response to a client without EDNS0 (RFC 1035, 2.3.4). */
export const PLAIN_UDP_LENGTH = 512;
export const MAX_TCP_LENGTH = 65_535;

/** Bytes of an OPT record without options. */
export const OPT_LENGTH = 11;
const DNSSEC_OK = 0x8000;
/** Marker bits of a compression pointer, and the largest offset that fits in the other bits. */
const POINTER = 0xc000;
const MAX_POINTER_OFFSET = 0x3fff;

/** RCODE in the header of a response. */
export function rcodeIn(response: Buffer): number {
  return response.readUInt16BE(2) & 0xf;
}

export function isTruncated(response: Buffer): boolean {
  return (response.readUInt16BE(2) & FLAG.TC) !== 0;
}

/** Encodes an error as a header only: the question is left out because it may be malformed. */
export function encodeError({ id, opcode, recursionDesired, rcode }: BadQuery): Buffer {
  const bytes = Buffer.alloc(HEADER_LENGTH);
  bytes.writeUInt16BE(id, 0);
  const flags = FLAG.QR | (opcode << 11) | (recursionDesired ? FLAG.RD : 0) | RCODES[rcode];
  bytes.writeUInt16BE(flags, 2);
  return bytes;
}

/**
 * The records of a response, encoded to follow its question section. They are valid for the same
 * question in any letter case: their compression pointers refer to offsets in the question.
 */
export interface EncodedAnswer {
  readonly rcode: Rcode;
  readonly authoritative: boolean;
  readonly bytes: Buffer;
  /** End offset of each record. */
  readonly recordEnds: readonly number[];
  /** For each record, the index of the first record of its RRset. */
  readonly rrsetStarts: readonly number[];
  /** Number of answer, authority and additional records. */
  readonly counts: readonly [number, number, number];
  /** Number of trailing answer records that may be rotated; they have the same length. */
  readonly addressCount: number;
}

/** The part of a `ZoneAnswer` that is encoded. */
export type AnswerSections = Pick<
  ZoneAnswer,
  'rcode' | 'authoritative' | 'answers' | 'authorities' | 'additionals'
> & { readonly addressCount?: number };

/** @param question the question section: name, type and class. */
export function encodeAnswer(question: Buffer, sections: AnswerSections): EncodedAnswer {
  const { rcode, authoritative, answers, authorities, additionals, addressCount = 0 } = sections;
  const counts = [answers.length, authorities.length, additionals.length] as const;
  const recordEnds: number[] = [];
  const count = counts[0] + counts[1] + counts[2];
  const rrsetStarts: number[] = [];
  const head = {
    rcode,
    authoritative,
    recordEnds,
    rrsetStarts,
    counts,
    addressCount,
  };
  if (count === 0) return { ...head, bytes: Buffer.alloc(0) };
  const records = [...answers, ...authorities, ...additionals];
  const encoded = encode({ answers: records.map(withoutRepeatedName) });
  // The records with compressed names are never longer than with whole names.
  const repeated = records.filter(hasRepeatedName);
  const lengths = repeated.map(({ name }) => name.length + 1);
  const bytes = Buffer.allocUnsafe(encoded.length + lengths.reduce((sum, each) => sum + each, 0));
  const names = new NameCompressor(bytes, question);
  let from = HEADER_LENGTH;
  let at = 0;
  let owner = { start: from, end: from };
  let set = { key: '', first: 0 };
  for (const [index, { name, type }] of records.entries()) {
    const nameEnd = endOfName(encoded, from);
    if (nameEnd === undefined)
      throw new RangeError('dns-packet encoded a name that cannot be parsed');
    if (name !== records[index - 1]?.name) owner = { start: from, end: nameEnd };
    const key = `${type} ${name.toLowerCase()}`;
    const isFirstAdditional = index === counts[0] + counts[1];
    if (key !== set.key || isFirstAdditional) set = { key, first: index };
    rrsetStarts.push(set.first);
    const data = nameEnd + RECORD_HEAD_LENGTH;
    const end = data + encoded.readUInt16BE(nameEnd + 8);
    at = names.write(encoded, owner.start, owner.end, at);
    encoded.copy(bytes, at, nameEnd, end);
    // The target of an alias owns the records that follow, so their names become pointers.
    if (encoded.readUInt16BE(nameEnd) === TYPE.CNAME) {
      names.add(encoded, data, end, at + RECORD_HEAD_LENGTH);
    }
    at += end - nameEnd;
    recordEnds.push(at);
    from = end;
  }
  return { ...head, bytes: bytes.subarray(0, at) };
}

/** Encoding the same name again takes most of the time of a long answer: the root stands for it. */
function withoutRepeatedName(
  record: ResourceRecord,
  index: number,
  all: readonly ResourceRecord[],
): ResourceRecord {
  return hasRepeatedName(record, index, all) ? { ...record, name: '.' } : record;
}

function hasRepeatedName(
  { name }: ResourceRecord,
  index: number,
  all: readonly ResourceRecord[],
): boolean {
  return name === all[index - 1]?.name;
}

interface ResponseOptions {
  readonly recursionAvailable: boolean;
  /** Bytes. */
  readonly limit: number;
  /** Random number in [0, 1). */
  readonly random: () => number;
}

/**
 * Encodes the response to a query, of at most `limit` bytes. Records that do not fit are left out.
 * Missing additional records are not signalled. Missing answer or authority records set TC, so that
 * the client retries over TCP. Clients that ignore TC still get the records that fit. An additional
 * RRset is included completely or not at all: a client could not detect a partial RRset (RFC 2181,
 * 9).
 */
export function encodeResponse(
  query: DnsQuery,
  answer: EncodedAnswer,
  { recursionAvailable, limit, random }: ResponseOptions,
): Buffer {
  const { question } = query;
  const { counts } = answer;
  const bytes = rotateAddresses(answer, random);
  const start = HEADER_LENGTH + question.length;
  const optLength = query.edns === undefined ? 0 : OPT_LENGTH;
  const room = limit - start - optLength;
  const written = bytes.length <= room ? counts : countsWithin(answer, room);
  const [answers, authorities, additionals] = written;
  const isCut = answers < counts[0] || authorities < counts[1];
  const length = answer.recordEnds[answers + authorities + additionals - 1] ?? 0;

  const out = Buffer.allocUnsafe(start + length + optLength);
  out.writeUInt16BE(query.id, 0);
  const flags =
    FLAG.QR |
    (answer.authoritative ? FLAG.AA : 0) |
    (isCut ? FLAG.TC : 0) |
    (query.recursionDesired ? FLAG.RD : 0) |
    (recursionAvailable ? FLAG.RA : 0) |
    (RCODES[answer.rcode] & 0xf);
  out.writeUInt16BE(flags, 2);
  out.writeUInt16BE(1, 4);
  out.writeUInt16BE(answers, 6);
  out.writeUInt16BE(authorities, 8);
  out.writeUInt16BE(additionals + (optLength > 0 ? 1 : 0), 10);
  question.copy(out, HEADER_LENGTH);
  bytes.copy(out, start, 0, length);
  if (optLength > 0) writeOpt(out, start + length, query, answer.rcode);
  return out;
}

/**
 * The records with the addresses rotated by a random amount. Many clients use only the first
 * address. CoreDNS shuffles too, in kubeadm's configuration. Round robin would not balance a client
 * that alternates A and AAAA queries: with two addresses per family, all A answers would start with
 * the same address.
 */
function rotateAddresses(
  { bytes, addressCount, recordEnds, counts }: EncodedAnswer,
  random: () => number,
): Buffer {
  if (addressCount < 2) return bytes;
  const from = recordEnds[counts[0] - addressCount - 1] ?? 0;
  const to = recordEnds[counts[0] - 1] ?? 0;
  const first = Math.floor(random() * addressCount) * ((to - from) / addressCount);
  return Buffer.concat([
    bytes.subarray(0, from),
    bytes.subarray(from + first, to),
    bytes.subarray(from, from + first),
    bytes.subarray(to),
  ]);
}

/** Number of records of each section that fit in `room` bytes, in their order. */
function countsWithin(answer: EncodedAnswer, room: number): EncodedAnswer['counts'] {
  const { recordEnds, rrsetStarts, counts } = answer;
  const fit = recordEnds.findIndex((end) => end > room);
  const answers = Math.min(fit, counts[0]);
  const authorities = Math.min(fit - answers, counts[1]);
  const before = answers + authorities;
  const isAdditional = before === counts[0] + counts[1];
  const end = isAdditional ? (rrsetStarts[fit] ?? fit) : fit;
  return [answers, authorities, end - before];
}

/**
 * Writes the OPT record of a response (RFC 6891, 6.1.2).
 * @param at offset with room for `OPT_LENGTH` bytes.
 */
export function writeOpt(out: Buffer, at: number, { edns }: DnsQuery, rcode: Rcode): void {
  out.writeUInt8(0, at); // name: the root
  out.writeUInt16BE(TYPE.OPT, at + 1);
  out.writeUInt16BE(MAX_UDP_LENGTH, at + 3);
  out.writeUInt8(RCODES[rcode] >> 4, at + 5);
  out.writeUInt8(0, at + 6); // EDNS version
  // RFC 3225: the DO bit is copied to the response, with or without signatures.
  out.writeUInt16BE(edns?.dnssecOk ? DNSSEC_OK : 0, at + 7);
  out.writeUInt16BE(0, at + 9);
}

/**
 * Name compression (RFC 1035, 4.1.4): pointers may refer to names of the question, of record owners
 * and of CNAME targets. Names within record data are not compressed; most are short. The question
 * has the client's letter case, and record names that point to it have the same.
 */
class NameCompressor {
  readonly #out: Buffer;
  /** Offset in the message at which `out` begins. */
  readonly #start: number;
  /**
   * Offset of each name by its bytes in lower case. Length bytes of labels are less than `A`, so
   * they are unaffected.
   */
  readonly #offsets = new Map<string, number>();

  /** @param out buffer for the records of the message. */
  constructor(out: Buffer, question: Buffer) {
    this.#out = out;
    this.#start = HEADER_LENGTH + question.length;
    this.#addSuffixes(question, 0, question.length - 4, HEADER_LENGTH);
  }

  /**
   * Registers a name in the records as a pointer target.
   * @param at its offset in `out`.
   */
  add(bytes: Buffer, start: number, end: number, at: number): void {
    this.#addSuffixes(bytes, start, end, this.#start + at);
  }

  /**
   * Writes a name, with its longest known suffix as a pointer.
   * @returns the end offset.
   */
  write(bytes: Buffer, start: number, end: number, at: number): number {
    for (let label = start; label < end - 1; label += (bytes[label] ?? 0) + 1) {
      const offset = this.#offsets.get(keyOf(bytes, label, end));
      if (offset === undefined) continue;
      bytes.copy(this.#out, at, start, label);
      const afterLabels = at + label - start;
      this.#out.writeUInt16BE(POINTER | offset, afterLabels);
      this.#addSuffixes(bytes, start, end, this.#start + at, label);
      return afterLabels + 2;
    }
    bytes.copy(this.#out, at, start, end);
    this.#addSuffixes(bytes, start, end, this.#start + at);
    return at + end - start;
  }

  /**
   * @param at offset of the name in the message.
   * @param until offset in `bytes` of the first label that is already registered.
   */
  #addSuffixes(bytes: Buffer, start: number, end: number, at: number, until = end - 1): void {
    for (let label = start; label < until; label += (bytes[label] ?? 0) + 1) {
      const offset = at + label - start;
      if (offset <= MAX_POINTER_OFFSET) this.#offsets.set(keyOf(bytes, label, end), offset);
    }
  }
}

function keyOf(bytes: Buffer, start: number, end: number): string {
  return bytes.toString('latin1', start, end).toLowerCase();
}
