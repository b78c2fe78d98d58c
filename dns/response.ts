/** Writes answers: dns-packet encodes records, here names are shortened and what is too long is cut. */
import { encode, type OptAnswer } from 'dns-packet';
import type { ResourceRecord } from './answer.ts';
import { type BadQuery, HEADER_LENGTH, type Query, RCODES, type Rcode } from './query.ts';

export interface Response {
  readonly rcode: Rcode;
  readonly authoritative: boolean;
  readonly recursionAvailable: boolean;
  readonly answers: readonly ResourceRecord[];
  readonly authorities: readonly ResourceRecord[];
  readonly additionals: readonly ResourceRecord[];
}

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

const OPT_LENGTH = 11;
const DNSSEC_OK = 0x8000;
/** Type, class, TTL and length of data, before the data of each record. */
const RECORD_HEAD_LENGTH = 10;
/** Of a record: that of the root, without data. */
const LEAST_RECORD_LENGTH = 1 + RECORD_HEAD_LENGTH;
/** Of the header, where the numbers of records are. */
const SECTION_COUNTS = [6, 8, 10];
/** A pointer, and how far it can reach. */
const POINTER = 0xc000;
const FARTHEST = 0x3fff;

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
 * An answer of at most `limit` bytes. What does not fit is left out: additional records silently, others
 * with the bit TC, so that the client asks by TCP. Some do not, and live with those that are there. Of
 * additional records, those of one name and type come all or not at all: nobody could tell that some
 * are missing (RFC 2181, 9).
 */
export function encodeResponse(query: Query, response: Response, limit: number): Buffer {
  // Only as many as could fit, and one that cannot: a headless Service may have thousands.
  const most = Math.floor(limit / LEAST_RECORD_LENGTH) + 1;
  const answers = response.answers.slice(0, most);
  const authorities = response.authorities.slice(0, most);
  const additionals = response.additionals.slice(0, most);
  const flags =
    (response.authoritative ? FLAG.AA : 0) |
    (query.recursionDesired ? FLAG.RD : 0) |
    (response.recursionAvailable ? FLAG.RA : 0) |
    (RCODES[response.rcode] & 0xf);
  const encoded = encode({
    id: query.id,
    type: 'response',
    flags,
    answers,
    authorities,
    additionals: query.edns === undefined ? additionals : [...additionals, opt(query, response)],
  });
  const optLength = query.edns === undefined ? 0 : OPT_LENGTH;
  // Not longer than dns-packet's, which has no question, but names in full.
  const out = Buffer.allocUnsafe(encoded.length + query.question.length);
  encoded.copy(out, 0, 0, HEADER_LENGTH);
  query.question.copy(out, HEADER_LENGTH);
  out.writeUInt16BE(1, 4);

  const names = new Names(out, query.question);
  const room = limit - optLength;
  let at = HEADER_LENGTH + query.question.length;
  let from = HEADER_LENGTH;
  let isFull = false;
  /** Where the additional records of one name and type begin, in `out` and by number. */
  let set = { key: '', at, written: 0 };
  const sections = [answers.length, authorities.length, additionals.length];
  for (const [section, count] of sections.entries()) {
    let written = 0;
    for (let index = 0; index < count; index++) {
      const nameEnd = endOfName(encoded, from);
      const end = nameEnd + RECORD_HEAD_LENGTH + encoded.readUInt16BE(nameEnd + 8);
      if (!isFull) {
        const key = section < 2 ? '' : keyOf(encoded, from, nameEnd + 2);
        if (key !== set.key) set = { key, at, written };
        const afterName = names.write(encoded, from, nameEnd, at);
        const next = afterName + end - nameEnd;
        if (next <= room) {
          encoded.copy(out, afterName, nameEnd, end);
          at = next;
          written += 1;
        } else {
          isFull = true;
          if (section < 2) out.writeUInt16BE(out.readUInt16BE(2) | FLAG.TC, 2);
          else ({ at, written } = set);
        }
      }
      from = end;
    }
    out.writeUInt16BE(written, SECTION_COUNTS[section] ?? 0);
  }
  if (optLength > 0) {
    encoded.copy(out, at, from, from + optLength);
    at += optLength;
    out.writeUInt16BE(out.readUInt16BE(10) + 1, 10);
  }
  return out.subarray(0, at);
}

function opt({ edns }: Query, { rcode }: Response): OptAnswer {
  const isDnssecOk = edns?.dnssecOk ?? false;
  return {
    name: '.',
    type: 'OPT',
    udpPayloadSize: MAX_UDP_LENGTH,
    extendedRcode: RCODES[rcode] >> 4,
    ednsVersion: 0,
    flags: isDnssecOk ? DNSSEC_OK : 0, // RFC 3225: it comes back, be there signatures or not
    flag_do: isDnssecOk,
    options: [],
  };
}

/** @param at where an uncompressed name begins. @returns where it ends. */
function endOfName(bytes: Buffer, at: number): number {
  let end = at;
  for (let length = bytes[end] ?? 0; length > 0; length = bytes[end] ?? 0) end += length + 1;
  return end + 1;
}

/**
 * The names of a message that may be pointed to (RFC 1035, 4.1.4): of the question and of the records,
 * not those within data, which are short on the whole. As the question's are in the client's own
 * case, so are the records'.
 */
class Names {
  readonly #out: Buffer;
  /** Where a name begins, by its bytes in lower case; the lengths of labels are below `A`. */
  readonly #offsets = new Map<string, number>();

  constructor(out: Buffer, question: Buffer) {
    this.#out = out;
    this.#note(question, 0, question.length - 4, HEADER_LENGTH);
  }

  /** Writes a name, or as much of it as is new and a pointer. @returns where it ends. */
  write(bytes: Buffer, start: number, end: number, at: number): number {
    for (let label = start; label < end - 1; label += (bytes[label] ?? 0) + 1) {
      const known = this.#offsets.get(keyOf(bytes, label, end));
      if (known === undefined) continue;
      bytes.copy(this.#out, at, start, label);
      const afterLabels = at + label - start;
      this.#out.writeUInt16BE(POINTER | known, afterLabels);
      this.#note(bytes, start, end, at, label);
      return afterLabels + 2;
    }
    bytes.copy(this.#out, at, start, end);
    this.#note(bytes, start, end, at);
    return at + end - start;
  }

  /** @param until the label from which on it is known. */
  #note(bytes: Buffer, start: number, end: number, at: number, until = end - 1): void {
    for (let label = start; label < until; label += (bytes[label] ?? 0) + 1) {
      const offset = at + label - start;
      if (offset <= FARTHEST) this.#offsets.set(keyOf(bytes, label, end), offset);
    }
  }
}

function keyOf(bytes: Buffer, start: number, end: number): string {
  return bytes.toString('latin1', start, end).toLowerCase();
}
