/**
 * Reads addresses from DNS messages (RFC 1035).
 *
 * The package `dns-packet` is unsuitable for untrusted answers. It joins labels with dots without
 * escaping, and decodes all invalid bytes to one character, so that different names become equal.
 * It decodes records of all types: one malformed record invalidates the message, and a message of
 * 64 KiB takes 20 to 50 ms.
 */
import { addressFormatter } from '../../netlink/core/address.ts';

/** The question of a query or an answer. */
export interface DnsQuestion {
  /** Id of the message. */
  readonly id: number;
  /** Lower case without the final dot; bytes not used in host names are escaped as `\123`. */
  readonly name: string;
  /** Record type; the class is IN. */
  readonly type: number;
}

export interface ResolvedAddress {
  /** Canonical text. */
  readonly address: string;
  /** Seconds: the lowest TTL of the CNAME records and the address record. */
  readonly ttl: number;
}

export type DnsMessage =
  | { readonly kind: 'query'; readonly question: DnsQuestion }
  | {
      readonly kind: 'answer';
      readonly question: DnsQuestion;
      /**
       * Reads the addresses. None if the type is not A or AAAA, for an error code, and if an answer
       * record is malformed. Do not call it after the bytes of the message were overwritten.
       */
      readonly addresses: () => readonly ResolvedAddress[];
    };

const HEADER = 12;
const FLAG_ANSWER = 0x8000;
const OPCODE = 0x7800;
const FLAG_TRUNCATED = 0x0200;
const RCODE = 0x000f;

export const TYPE_A = 1;
const TYPE_CNAME = 5;
export const TYPE_AAAA = 28;
const CLASS_IN = 1;
/** Bytes of type, class, TTL and data length. */
const RECORD = 10;
const ADDRESS_LENGTH: ReadonlyMap<number, number> = new Map([
  [TYPE_A, 4],
  [TYPE_AAAA, 16],
]);

/** Maximum number of CNAMEs to follow. Resolvers follow fewer. */
const MAX_CNAMES = 32;
/**
 * Maximum number of labels to read in one message. Reading 20,000 labels takes 2 ms; real messages
 * have fewer.
 */
const MAX_LABELS = 20_000;
/** Maximum bytes of a name including the lengths of its labels (RFC 1035, 2.3.4). */
const LONGEST_NAME = 255;

/**
 * Reads a message with one question of class IN.
 * @returns undefined for other messages, and if the header or the question is malformed.
 */
export function readDnsMessage(bytes: Buffer): DnsMessage | undefined {
  if (bytes.length < HEADER) return undefined;
  const flags = bytes.readUInt16BE(2);
  if ((flags & OPCODE) !== 0 || bytes.readUInt16BE(4) !== 1) return undefined;
  const reader = new Reader(bytes);
  const name = reader.name(HEADER);
  if (name === undefined || name.end + 4 > bytes.length) return undefined;
  if (bytes.readUInt16BE(name.end + 2) !== CLASS_IN) return undefined;
  const type = bytes.readUInt16BE(name.end);
  const question = { id: bytes.readUInt16BE(0), name: name.text, type };
  if ((flags & FLAG_ANSWER) === 0) return { kind: 'query', question };
  const start = name.end + 4;
  const addresses = () => ((flags & RCODE) === 0 ? (reader.addresses(question, start) ?? []) : []);
  return { kind: 'answer', question, addresses };
}

/** The answer records of one name. */
interface Owner {
  alias: { readonly name: string; readonly ttl: number } | undefined;
  readonly addresses: { readonly at: number; readonly ttl: number }[];
}

class Reader {
  readonly #bytes: Buffer;
  /**
   * Decoded names by offset. The names of most records are only a pointer, so each target is
   * decoded once.
   */
  readonly #pointedTo = new Map<number, string>();
  #labelsLeft = MAX_LABELS;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  /**
   * Reads the name at an offset. `end` is the offset after it.
   * @returns undefined if the name is malformed, or the message has too many labels.
   */
  name(offset: number): { readonly text: string; readonly end: number } | undefined {
    const pointer = this.#pointer(offset);
    if (pointer === undefined) return this.#read(offset);
    let text = this.#pointedTo.get(pointer);
    if (text === undefined) {
      text = this.#read(offset)?.text;
      if (text === undefined) return undefined;
      this.#pointedTo.set(pointer, text);
    }
    return { text, end: offset + 2 };
  }

  /** The target of a compression pointer; undefined if there is no pointer. */
  #pointer(at: number): number | undefined {
    if ((this.#bytes[at] ?? 0) < 0xc0 || at + 2 > this.#bytes.length) return undefined;
    return this.#bytes.readUInt16BE(at) & 0x3fff;
  }

  #read(offset: number): { readonly text: string; readonly end: number } | undefined {
    const bytes = this.#bytes;
    const labels: string[] = [];
    let end: number | undefined;
    let length = 1;
    // Each pointer must point before the target of the previous pointer, and the first pointer
    // before the start of the name. This rule excludes loops.
    let lowest = offset;
    for (let at = offset; ; ) {
      const size = bytes[at];
      if (size === undefined || this.#labelsLeft-- <= 0) return undefined;
      if (size >= 0xc0) {
        const pointer = this.#pointer(at);
        if (pointer === undefined || pointer >= lowest) return undefined;
        end ??= at + 2;
        at = lowest = pointer;
        continue;
      }
      if (size === 0) return { text: labels.join('.'), end: end ?? at + 1 };
      length += size + 1;
      if (size > 63 || length > LONGEST_NAME || at + 1 + size > bytes.length) return undefined;
      labels.push(labelText(bytes, at + 1, at + 1 + size));
      at += 1 + size;
    }
  }

  /**
   * Reads the addresses of the name in the question, also through CNAMEs.
   * @param start Offset of the first answer record.
   * @returns undefined if an answer record is malformed.
   */
  addresses({ name, type }: DnsQuestion, start: number): ResolvedAddress[] | undefined {
    const length = ADDRESS_LENGTH.get(type);
    if (length === undefined) return [];
    const owners = this.#owners(start, type, length);
    if (owners === undefined) return undefined;

    let owner = owners.get(name);
    let aliasTtl = Infinity;
    for (let links = 0; owner?.alias !== undefined && links < MAX_CNAMES; links++) {
      aliasTtl = Math.min(aliasTtl, owner.alias.ttl);
      owner = owners.get(owner.alias.name);
    }
    // A name with a CNAME must have no other records (RFC 1034, 3.6.2).
    if (owner === undefined || owner.alias !== undefined) return [];
    const format = addressFormatter();
    return owner.addresses
      .filter(({ at }) => !(type === TYPE_AAAA && isMapped(this.#bytes, at)))
      .map(({ at, ttl }) => ({
        address: format(this.#bytes, at, at + length),
        ttl: Math.min(aliasTtl, ttl),
      }));
  }

  #owners(start: number, type: number, length: number): Map<string, Owner> | undefined {
    const bytes = this.#bytes;
    // Servers truncate after a complete record, but the answer count may include the removed
    // records.
    const isTruncated = (bytes.readUInt16BE(2) & FLAG_TRUNCATED) !== 0;
    const owners = new Map<string, Owner>();
    let at = start;
    for (let left = bytes.readUInt16BE(6); left > 0; left--) {
      if (isTruncated && at === bytes.length) break;
      const name = this.name(at);
      if (name === undefined || name.end + RECORD > bytes.length) return undefined;
      const data = name.end + RECORD;
      const size = bytes.readUInt16BE(name.end + 8);
      if (data + size > bytes.length) return undefined;
      at = data + size;
      if (bytes.readUInt16BE(name.end + 2) !== CLASS_IN) continue;
      const kind = bytes.readUInt16BE(name.end);
      if (kind !== type && kind !== TYPE_CNAME) continue;

      let owner = owners.get(name.text);
      if (owner === undefined) {
        owner = { alias: undefined, addresses: [] };
        owners.set(name.text, owner);
      }
      const ttl = readTtl(bytes, name.end + 4);
      if (kind === type) {
        if (size !== length) return undefined;
        owner.addresses.push({ at: data, ttl });
      } else {
        const target = this.name(data);
        if (target?.end !== at) return undefined;
        owner.alias ??= { name: target.text, ttl };
      }
    }
    return owners;
  }
}

/** A TTL with the most significant bit set counts as 0 (RFC 2181, 8). */
function readTtl(bytes: Buffer, at: number): number {
  const ttl = bytes.readUInt32BE(at);
  return ttl > 0x7fffffff ? 0 : ttl;
}

/** IPv4-mapped address (::ffff:0:0/96): a socket connected to it sends IPv4. */
function isMapped(bytes: Buffer, at: number): boolean {
  return (
    bytes.readUInt32BE(at) === 0 &&
    bytes.readUInt32BE(at + 4) === 0 &&
    bytes.readUInt32BE(at + 8) === 0xffff
  );
}

const PLAIN = /^[a-z0-9_-]+$/;

/**
 * Converts ASCII letters to lower case, and escapes bytes that host names do not use. `toLowerCase`
 * on the whole text would also change bytes above 0x7f: 0xc0 would become 0xe0.
 */
function labelText(bytes: Buffer, start: number, end: number): string {
  const text = bytes.toString('latin1', start, end);
  if (PLAIN.test(text)) return text;
  return text.replaceAll(/[^a-z0-9_-]/g, (character) => {
    if (character >= 'A' && character <= 'Z') return character.toLowerCase();
    return `\\${character.charCodeAt(0).toString().padStart(3, '0')}`;
  });
}
