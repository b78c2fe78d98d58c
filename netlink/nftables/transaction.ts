import { ATTRIBUTE_HEADER, align, NLA_F_NESTED, walkAttributes } from '../core/attribute.ts';
import { readU16, writeU16, writeU32 } from '../core/host.ts';
import {
  MESSAGE_HEADER,
  NLM_F_ACK,
  NLM_F_REQUEST,
  type PackedMessages,
  type Request,
} from '../core/message.ts';
import {
  NFGENMSG,
  NFNL_MSG_BATCH_BEGIN,
  NFNL_MSG_BATCH_END,
  NFNL_SUBSYS_NFTABLES,
  NFT_MSG_DELSETELEM,
  NFT_MSG_NEWSETELEM,
  NFTA_DATA_VALUE,
  NFTA_DATA_VERDICT,
  NFTA_LIST_ELEM,
  NFTA_SET_ELEM_DATA,
  NFTA_SET_ELEM_KEY,
  NFTA_SET_ELEM_KEY_END,
  NFTA_SET_ELEM_LIST_ELEMENTS,
  NFTA_SET_ELEM_LIST_SET,
  NFTA_SET_ELEM_LIST_TABLE,
  NFTA_SET_ELEM_TIMEOUT,
  NFTA_SET_ELEM_USERDATA,
  NFTA_VERDICT_CHAIN,
  NFTA_VERDICT_CODE,
  NLM_F_CREATE,
  nameBytes,
  nfgenmsg,
  VERDICT_CODES,
} from './message.ts';
import type { NftChange, NftElement, NftVerdict } from './types.ts';

/** The most that fits into the 16-bit length of a list of elements. */
const LIST_LIMIT = 0xffff;
/** NFT_DATA_VALUE_MAXLEN: of a key, and of what it maps to. */
const VALUE_LIMIT = 64;
/**
 * Of what is noted with an element. NFT_USERDATA_MAXLEN is 256, but of 255 bytes the kernel says EINVAL, and
 * 256 it takes and does not keep (seen on 6.18).
 */
const USERDATA_LIMIT = 254;
/** Of an element (two values, the name of a chain, what is noted), with the start of a message for it. */
const ELEMENT_LIMIT = 1024;
const FIRST_CAPACITY = 2048;

/** A list of elements in a message. */
interface ElementList {
  /** Position of its message among all. */
  readonly index: number;
  readonly action: NftChange['action'];
  readonly set: string;
  /** Elements of the transaction before its first. */
  readonly before: number;
  /** Of the attribute. */
  readonly start: number;
  end: number;
}

/** What a refused message was about. */
export interface RefusedElements {
  /** The first element of the message, counted over the transaction. */
  readonly first: number;
  /** The one that was refused, if that is known. */
  readonly refused: number | undefined;
}

/**
 * Writes a transaction of nf_tables into one buffer, element by element:
 *
 *     BATCH_BEGIN
 *     NEWSETELEM or DELSETELEM { table, set, { { key, key end, data }, ... } }, as many as it takes
 *     BATCH_END
 *
 * Plain writes into a buffer that grows: values of their own for each attribute, as
 * `encodeAttributes` wants them, cost several times that, and loads have 100,000 elements.
 */
export class TransactionWriter {
  readonly #family: number;
  readonly #table: Buffer;
  readonly #names = new Map<string, Buffer>();
  readonly #starts: number[] = [];
  readonly #lists: ElementList[] = [];
  #bytes = Buffer.allocUnsafe(FIRST_CAPACITY);
  #length = 0;
  #elements = 0;

  /** @throws RangeError for a name that no table can have. */
  constructor(family: number, table: string) {
    this.#family = family;
    this.#table = nameBytes(table);
    this.#message(NFNL_MSG_BATCH_BEGIN, 0, nfgenmsg(0, NFNL_SUBSYS_NFTABLES));
  }

  /** Messages so far, of which the first opens the transaction. */
  get messages(): number {
    return this.#starts.length;
  }

  /** @throws RangeError for a name that no set or chain can have, or a value that is too long. */
  write(action: NftChange['action'], set: string, element: NftElement): void {
    this.#reserve(ELEMENT_LIMIT);
    const list = this.#list(action, set);
    const start = this.#open(NFTA_LIST_ELEM);
    this.#key(NFTA_SET_ELEM_KEY, element.key);
    if (element.keyEnd !== undefined) this.#key(NFTA_SET_ELEM_KEY_END, element.keyEnd);
    if (action === 'add') {
      if (element.data !== undefined) this.#data(element.data);
      if (element.timeoutMs !== undefined) this.#u64(NFTA_SET_ELEM_TIMEOUT, element.timeoutMs);
      if (element.userdata !== undefined) {
        this.#bounded(NFTA_SET_ELEM_USERDATA, element.userdata, USERDATA_LIMIT);
      }
    }
    this.#close(start);
    list.end = this.#length;
    this.#elements += 1;
  }

  /** Adds a message that is no list of elements. */
  append({ type, flags = 0, payload }: Request): void {
    this.#finishMessage();
    this.#reserve(MESSAGE_HEADER + align(payload.length));
    this.#message(type, flags, payload);
  }

  /** The last message asks for the acknowledgement: before Linux 6.7 BATCH_END cannot. */
  finish(): PackedMessages {
    this.#finishMessage();
    const last = this.#starts.at(-1) ?? 0;
    const flags = readU16(this.#bytes, last + 6);
    writeU16(this.#bytes, flags | NLM_F_ACK, last + 6);
    this.#reserve(MESSAGE_HEADER + NFGENMSG);
    this.#message(NFNL_MSG_BATCH_END, 0, nfgenmsg(0, NFNL_SUBSYS_NFTABLES));
    this.#finishMessage();
    return { bytes: this.#bytes.subarray(0, this.#length), starts: this.#starts };
  }

  /**
   * What a refused message was about.
   * @param index Of the message among all.
   * @param offset The extended ack's, from the start of the message; it is inside of an element
   * unless the table or the set was refused.
   * @returns undefined for a message without elements.
   */
  elementsOf(index: number, offset: number | undefined): RefusedElements | undefined {
    const list = this.#lists.find((candidate) => candidate.index === index);
    if (list === undefined) return undefined;
    const at = (this.#starts[index] ?? 0) + (offset ?? 0);
    let position = list.before;
    let refused: number | undefined;
    walkAttributes(this.#bytes, list.start + ATTRIBUTE_HEADER, list.end, (_, start, end) => {
      if (start - ATTRIBUTE_HEADER <= at && at < end) refused = position;
      position += 1;
    });
    return { first: list.before, refused };
  }

  /** The list that the next element goes to: the last one, unless it is another's or full. */
  #list(action: NftChange['action'], set: string): ElementList {
    const last = this.#lists.at(-1);
    if (
      last !== undefined &&
      last.index === this.#starts.length - 1 &&
      last.action === action &&
      last.set === set &&
      last.end - last.start + ELEMENT_LIMIT <= LIST_LIMIT
    ) {
      return last;
    }
    this.#finishMessage();
    const type = action === 'add' ? NFT_MSG_NEWSETELEM : NFT_MSG_DELSETELEM;
    const flags = action === 'add' ? NLM_F_CREATE : 0;
    this.#message((NFNL_SUBSYS_NFTABLES << 8) | type, flags, nfgenmsg(this.#family));
    this.#value(NFTA_SET_ELEM_LIST_TABLE, this.#table);
    this.#value(NFTA_SET_ELEM_LIST_SET, this.#name(set));
    const start = this.#open(NFTA_SET_ELEM_LIST_ELEMENTS);
    const list = {
      index: this.#starts.length - 1,
      action,
      set,
      before: this.#elements,
      start,
      end: this.#length,
    };
    this.#lists.push(list);
    return list;
  }

  #message(type: number, flags: number, payload: Buffer): void {
    const start = this.#length;
    this.#starts.push(start);
    writeU16(this.#bytes, type, start + 4);
    writeU16(this.#bytes, flags | NLM_F_REQUEST, start + 6);
    // The sequence number is given to it when it is sent; the port is the kernel's, 0.
    writeU32(this.#bytes, 0, start + 8);
    writeU32(this.#bytes, 0, start + 12);
    this.#length += MESSAGE_HEADER;
    this.#copy(payload);
  }

  /** Writes the lengths of the last message and of its list, now that they are known. */
  #finishMessage(): void {
    const start = this.#starts.at(-1) ?? 0;
    writeU32(this.#bytes, this.#length - start, start);
    const list = this.#lists.at(-1);
    if (list?.index === this.#starts.length - 1) this.#close(list.start);
  }

  #key(type: number, key: Buffer): void {
    const start = this.#open(type);
    this.#bounded(NFTA_DATA_VALUE, key, VALUE_LIMIT);
    this.#close(start);
  }

  #data(data: Buffer | NftVerdict): void {
    const start = this.#open(NFTA_SET_ELEM_DATA);
    if (Buffer.isBuffer(data)) this.#bounded(NFTA_DATA_VALUE, data, VALUE_LIMIT);
    else {
      const verdict = this.#open(NFTA_DATA_VERDICT);
      this.#u32(NFTA_VERDICT_CODE, VERDICT_CODES[data.kind] >>> 0);
      if ('chain' in data) this.#value(NFTA_VERDICT_CHAIN, this.#name(data.chain));
      this.#close(verdict);
    }
    this.#close(start);
  }

  #bounded(type: number, value: Buffer, limit: number): void {
    if (value.length > limit) throw new RangeError(`value of ${value.length} bytes`);
    this.#value(type, value);
  }

  #name(name: string): Buffer {
    let bytes = this.#names.get(name);
    if (bytes === undefined) {
      bytes = nameBytes(name);
      this.#names.set(name, bytes);
    }
    return bytes;
  }

  #u32(type: number, value: number): void {
    writeU16(this.#bytes, ATTRIBUTE_HEADER + 4, this.#length);
    writeU16(this.#bytes, type, this.#length + 2);
    this.#bytes.writeUInt32BE(value, this.#length + ATTRIBUTE_HEADER);
    this.#length += ATTRIBUTE_HEADER + 4;
  }

  #u64(type: number, value: number): void {
    const bytes = Buffer.allocUnsafe(8);
    bytes.writeBigUInt64BE(BigInt(value));
    this.#value(type, bytes);
  }

  #value(type: number, value: Buffer): void {
    writeU16(this.#bytes, ATTRIBUTE_HEADER + value.length, this.#length);
    writeU16(this.#bytes, type, this.#length + 2);
    this.#length += ATTRIBUTE_HEADER;
    this.#copy(value);
  }

  #copy(value: Buffer): void {
    value.copy(this.#bytes, this.#length);
    const end = this.#length + value.length;
    this.#length += align(value.length);
    for (let gap = end; gap < this.#length; gap++) this.#bytes[gap] = 0;
  }

  /** Starts an attribute that has others in it. @returns its start, for `#close`. */
  #open(type: number): number {
    const start = this.#length;
    writeU16(this.#bytes, type | NLA_F_NESTED, start + 2);
    this.#length += ATTRIBUTE_HEADER;
    return start;
  }

  #close(start: number): void {
    writeU16(this.#bytes, this.#length - start, start);
  }

  #reserve(more: number): void {
    const wanted = this.#length + more;
    if (wanted <= this.#bytes.length) return;
    const bigger = Buffer.allocUnsafe(Math.max(wanted, this.#bytes.length * 2));
    this.#bytes.copy(bigger, 0, 0, this.#length);
    this.#bytes = bigger;
  }
}
