/** Writes answers: dns-packet encodes records, here names are shortened and what is too long is cut. */
import { encode } from 'dns-packet';
import { type BadQuery, type DnsQuery, HEADER_LENGTH, RCODES, type Rcode } from './query.ts';
import { TYPE } from './types.ts';
import { endOfName, RECORD_HEAD_LENGTH } from './wire.ts';
import type { ZoneAnswer } from './zone-answer.ts';

/** Bits of the header's second 16 (RFC 1035, 4.1.1). */
export const FLAG = { QR: 0x8000, AA: 0x400, TC: 0x200, RD: 0x100, RA: 0x80 } as const;

/**
 * The longest answer by UDP, in bytes, whatever the client would take: one that is sure to come in one
 * piece (DNS flag day 2020). It is what we say that we take, too.
 */
export const MAX_UDP_LENGTH = 1232;
/** Without EDNS a client takes so much (RFC 1035, 2.3.4). */
export const PLAIN_UDP_LENGTH = 512;
export const MAX_TCP_LENGTH = 65_535;

/** Bytes of an OPT record without options. */
export const OPT_LENGTH = 11;
const DNSSEC_OK = 0x8000;
/** A pointer, and how far it can reach. */
const POINTER = 0xc000;
const MAX_POINTER_OFFSET = 0x3fff;

/** The code in the header of an answer. */
export function rcodeIn(response: Buffer): number {
  return response.readUInt16BE(2) & 0xf;
}

export function isTruncated(response: Buffer): boolean {
  return (response.readUInt16BE(2) & FLAG.TC) !== 0;
}

/** An answer with nothing but an error: not even the question, which may be what is wrong. */
export function encodeError({ id, opcode, recursionDesired, rcode }: BadQuery): Buffer {
  const bytes = Buffer.alloc(HEADER_LENGTH);
  bytes.writeUInt16BE(id, 0);
  const flags = FLAG.QR | (opcode << 11) | (recursionDesired ? FLAG.RD : 0) | RCODES[rcode];
  bytes.writeUInt16BE(flags, 2);
  return bytes;
}

/**
 * An answer's records as they stand behind its question. They fit behind the same question in any
 * case of letters, for its names point into it and lie where they did.
 */
export interface EncodedAnswer {
  readonly rcode: Rcode;
  readonly authoritative: boolean;
  readonly bytes: Buffer;
  /** Where each record ends. */
  readonly recordEnds: readonly number[];
  /** Of each record, which is the first of its name and type. */
  readonly rrsetStarts: readonly number[];
  /** Answers, authorities and additional records. */
  readonly counts: readonly [number, number, number];
  /** How many of the answers, at their end, may change places; they are of one length. */
  readonly addressCount: number;
}

/** As much of an `Answer` as is written. */
export type AnswerSections = Pick<
  ZoneAnswer,
  'rcode' | 'authoritative' | 'answers' | 'authorities' | 'additionals'
> & { readonly addressCount?: number };

/** @param question its name, type and class. */
export function encodeAnswer(question: Buffer, said: AnswerSections): EncodedAnswer {
  const { rcode, authoritative, answers, authorities, additionals, addressCount = 0 } = said;
  const counts = [answers.length, authorities.length, additionals.length] as const;
  const recordEnds: number[] = [];
  const count = counts[0] + counts[1] + counts[2];
  const rrsetStarts: number[] = [];
  const head = {
    rcode,
    authoritative,
    recordEnds: recordEnds,
    rrsetStarts: rrsetStarts,
    counts,
    addressCount: addressCount,
  };
  if (count === 0) return { ...head, bytes: Buffer.alloc(0) };
  const encoded = encode({
    answers: [...answers],
    authorities: [...authorities],
    additionals: [...additionals],
  });
  // Not longer than dns-packet's, which has names in full.
  const bytes = Buffer.allocUnsafe(encoded.length);
  const names = new NameCompressor(bytes, question);
  let from = HEADER_LENGTH;
  let at = 0;
  let set = { key: '', first: 0 };
  for (let index = 0; index < count; index++) {
    const nameEnd = endOfName(encoded, from);
    if (nameEnd === undefined) throw new RangeError('dns-packet wrote a name that cannot be read');
    const key = keyOf(encoded, from, nameEnd + 2);
    const isFirstAdditional = index === counts[0] + counts[1];
    if (key !== set.key || isFirstAdditional) set = { key, first: index };
    rrsetStarts.push(set.first);
    const data = nameEnd + RECORD_HEAD_LENGTH;
    const end = data + encoded.readUInt16BE(nameEnd + 8);
    at = names.write(encoded, from, nameEnd, at);
    encoded.copy(bytes, at, nameEnd, end);
    // Where it leads is the name of the records that follow; so all of these are pointers.
    if (encoded.readUInt16BE(nameEnd) === TYPE.CNAME) {
      names.add(encoded, data, end, at + RECORD_HEAD_LENGTH);
    }
    at += end - nameEnd;
    recordEnds.push(at);
    from = end;
  }
  return { ...head, bytes: bytes.subarray(0, at) };
}

interface ResponseOptions {
  readonly recursionAvailable: boolean;
  /** Bytes. */
  readonly limit: number;
  /** From 0 up to and without 1. */
  readonly random: () => number;
}

/**
 * An answer to a query, of at most `limit` bytes. What does not fit is left out: additional records
 * silently, others with the bit TC, so that the client asks by TCP. Some do not, and live with
 * those that are there. Of additional records, those of one name and type come all or not at all: nobody
 * could tell that some are missing (RFC 2181, 9).
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
 * The records, addresses in another order. Many clients take the first one only. CoreDNS shuffles them where
 * kubeadm deploys it; by chance and not in turn, for of two addresses a client that asks for A and
 * AAAA by turns would always get the same.
 */
function rotateAddresses(
  { bytes, addressCount: addresses, recordEnds: ends, counts }: EncodedAnswer,
  random: () => number,
): Buffer {
  if (addresses < 2) return bytes;
  const from = ends[counts[0] - addresses - 1] ?? 0;
  const to = ends[counts[0] - 1] ?? 0;
  const first = Math.floor(random() * addresses) * ((to - from) / addresses);
  return Buffer.concat([
    bytes.subarray(0, from),
    bytes.subarray(from + first, to),
    bytes.subarray(from, from + first),
    bytes.subarray(to),
  ]);
}

/** How many records of each section there is room for, in their order. */
function countsWithin(answer: EncodedAnswer, room: number): EncodedAnswer['counts'] {
  const { recordEnds: ends, rrsetStarts: sets, counts } = answer;
  const fit = ends.findIndex((end) => end > room);
  const answers = Math.min(fit, counts[0]);
  const authorities = Math.min(fit - answers, counts[1]);
  const before = answers + authorities;
  const isAdditional = before === counts[0] + counts[1];
  const kept = isAdditional ? (sets[fit] ?? fit) : fit;
  return [answers, authorities, kept - before];
}

/** Writes the OPT record of an answer (RFC 6891, 6.1.2). @param at where there is room for `OPT_LENGTH` bytes. */
export function writeOpt(out: Buffer, at: number, { edns }: DnsQuery, rcode: Rcode): void {
  out.writeUInt8(0, at); // the root
  out.writeUInt16BE(TYPE.OPT, at + 1);
  out.writeUInt16BE(MAX_UDP_LENGTH, at + 3);
  out.writeUInt8(RCODES[rcode] >> 4, at + 5);
  out.writeUInt8(0, at + 6); // the version
  // RFC 3225: it comes back, be there signatures or not.
  out.writeUInt16BE(edns?.dnssecOk ? DNSSEC_OK : 0, at + 7);
  out.writeUInt16BE(0, at + 9);
}

/**
 * The names of a message that may be pointed to (RFC 1035, 4.1.4): of the question and of the records,
 * not those within data, which are short on the whole. As the question's are in the client's own
 * case, so are the records'.
 */
class NameCompressor {
  readonly #out: Buffer;
  /** What `out` is put after. */
  readonly #start: number;
  /** Where a name begins, by its bytes in lower case; the lengths of labels are below `A`. */
  readonly #offsets = new Map<string, number>();

  /** @param out the records of the message. */
  constructor(out: Buffer, question: Buffer) {
    this.#out = out;
    this.#start = HEADER_LENGTH + question.length;
    this.#addSuffixes(question, 0, question.length - 4, HEADER_LENGTH);
  }

  /** Remembers a name that is in the records. @param at where, in `out`. */
  add(bytes: Buffer, start: number, end: number, at: number): void {
    this.#addSuffixes(bytes, start, end, this.#start + at);
  }

  /** Writes a name, or as much of it as is new and a pointer. @returns where it ends. */
  write(bytes: Buffer, start: number, end: number, at: number): number {
    for (let label = start; label < end - 1; label += (bytes[label] ?? 0) + 1) {
      const known = this.#offsets.get(keyOf(bytes, label, end));
      if (known === undefined) continue;
      bytes.copy(this.#out, at, start, label);
      const afterLabels = at + label - start;
      this.#out.writeUInt16BE(POINTER | known, afterLabels);
      this.#addSuffixes(bytes, start, end, this.#start + at, label);
      return afterLabels + 2;
    }
    bytes.copy(this.#out, at, start, end);
    this.#addSuffixes(bytes, start, end, this.#start + at);
    return at + end - start;
  }

  /** @param at in the message. @param until the label from which on it is known. */
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
