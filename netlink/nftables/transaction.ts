/**
 * Encodes nf_tables transactions: messages between a batch begin and a batch end, written into one
 * buffer.
 */
import { align, NLA_HDRLEN, readAttributes, walkAttributes } from '../core/attribute.ts';
import { AttributeWriter } from '../core/attribute-writer.ts';
import { readU16, readU32, writeU16, writeU32 } from '../core/host-order.ts';
import {
  type NetlinkRequest,
  NLM_F_ACK,
  NLMSG_HDRLEN,
  type PackedMessages,
  writeHeader,
} from '../core/message.ts';
import { NFGENMSG_LENGTH, NFNL_SUBSYS_NFTABLES, nfgenmsg } from '../core/nfnetlink.ts';
import {
  ELEMENT_LIMIT,
  isIntervalEnd,
  NFTA_SET_ELEM_LIST_ELEMENTS,
  writeElement,
} from './element.ts';
import {
  messageType,
  NFTA_RULE_EXPRESSIONS,
  NFTA_SET_NAME,
  NFTA_TABLE,
  NLM_F_CREATE,
  nameBytes,
  textAttribute,
} from './message.ts';
import { NFTA_EXPR_NAME } from './rule.ts';
import type { NftElement, NftElementChange } from './types.ts';

/** linux/netfilter/nfnetlink.h */
const NFNL_MSG_BATCH_BEGIN = 16;
const NFNL_MSG_BATCH_END = 17;
/** struct nfgenmsg of batch begin and batch end. */
const FRAME = nfgenmsg(0, NFNL_SUBSYS_NFTABLES >> 8);

/** Maximum length of an element list, whose length field has 16 bits. */
const LIST_LIMIT = 0xffff;

/** An element list in a message. */
interface ElementList {
  /** Index of the message in the transaction. */
  readonly index: number;
  readonly action: NftElementChange['action'];
  readonly set: string;
  /** Number of elements of the transaction before this list. */
  readonly before: number;
  /** Offset of the list attribute in the buffer. */
  readonly start: number;
  end: number;
}

/** The elements of a refused message. */
interface RefusedElements {
  /** Index in the transaction of the first element of the message. */
  readonly first: number;
  /** Index in the transaction of the refused element, if known. */
  readonly refused: number | undefined;
}

/**
 * Encodes a transaction of nf_tables into one buffer, element by element:
 *
 *     BATCH_BEGIN
 *     NEWSETELEM or DELSETELEM { table, set, { { key, key end, data }, ... } }
 *     ... more elements, and messages about chains, rules, sets, counters and tables
 *     BATCH_END
 *
 * A full sync has 100,000 elements, for which `encodeAttributes` would cost several times as much.
 */
export class TransactionWriter {
  readonly #family: number;
  readonly #table: Buffer;
  readonly #names = new Map<string, Buffer>();
  readonly #starts: number[] = [];
  readonly #lists: ElementList[] = [];
  readonly #out = new AttributeWriter();
  #elements = 0;

  /** @throws RangeError for an invalid table name. */
  constructor(family: number, table: string) {
    this.#family = family;
    this.#table = nameBytes(table);
    this.#message(NFNL_MSG_BATCH_BEGIN, 0, FRAME);
  }

  /** Number of messages so far, including the batch begin. */
  get messages(): number {
    return this.#starts.length;
  }

  /**
   * Adds an element to a list.
   * @throws RangeError for an invalid set or chain name, or a value that is too long.
   */
  write(
    action: NftElementChange['action'],
    set: string,
    element: NftElement,
    isOrdered = false,
  ): void {
    this.#out.reserve(ELEMENT_LIMIT);
    const list = this.#list(action, set);
    writeElement(this.#out, { action, isOrdered }, element, this.#name);
    list.end = this.#out.length;
    this.#elements += 1;
  }

  /** Adds a message other than an element list. */
  append({ type, flags = 0, payload }: NetlinkRequest): void {
    this.#finishMessage();
    this.#out.reserve(NLMSG_HDRLEN + align(payload.length));
    this.#message(type, flags, payload);
  }

  /**
   * Ends the batch. The last message before the batch end requests the ack, because kernels before
   * 6.10 do not acknowledge BATCH_END.
   * @param hasEnd false: without the batch end. The kernel then only checks the messages (nfnetlink_rcv_batch).
   */
  finish(hasEnd = true): PackedMessages {
    this.#finishMessage();
    const out = this.#out;
    const flags = (this.#starts.at(-1) ?? 0) + 6;
    writeU16(out.bytes, readU16(out.bytes, flags) | NLM_F_ACK, flags);
    if (hasEnd) {
      out.reserve(NLMSG_HDRLEN + NFGENMSG_LENGTH);
      this.#message(NFNL_MSG_BATCH_END, 0, FRAME);
      this.#finishMessage();
    }
    return { bytes: out.bytes.subarray(0, out.length), starts: this.#starts };
  }

  /**
   * Finds the elements of a refused message.
   * @param index Index of the message in the transaction.
   * @param offset Offset from the extended ack, relative to the message. It is inside an element,
   * unless the table or set was refused.
   * @returns undefined for a message without elements.
   */
  refusedElements(index: number, offset: number | undefined): RefusedElements | undefined {
    const list = this.#lists.find((candidate) => candidate.index === index);
    if (list === undefined) return undefined;
    const at = (this.#starts[index] ?? 0) + (offset ?? 0);
    let position = list.before - 1;
    let refused: number | undefined;
    let hasStart = false;
    walkAttributes(this.#out.bytes, list.start + NLA_HDRLEN, list.end, (_, start, end) => {
      const isEnd = isIntervalEnd(this.#out.bytes, start);
      if (!isEnd || !hasStart) position += 1;
      hasStart = !isEnd;
      if (start - NLA_HDRLEN <= at && at < end) refused = position;
    });
    return { first: list.before, refused };
  }

  /**
   * The name of a refused expression of a rule, such as `fib`.
   * @param index Index of the message in the transaction.
   * @param offset Offset from the extended ack, relative to the message (NL_SET_BAD_ATTR in nf_tables_newrule).
   * @returns undefined if the offset is in no expression.
   */
  refusedExpression(index: number, offset: number): string | undefined {
    const bytes = this.#out.bytes;
    const message = this.#starts[index] ?? 0;
    const end = message + readU32(bytes, message);
    let name: string | undefined;
    walkAttributes(bytes, message + NLMSG_HDRLEN + NFGENMSG_LENGTH, end, (type, from, to) => {
      if (type !== NFTA_RULE_EXPRESSIONS) return;
      walkAttributes(bytes, from, to, (_, start, last) => {
        if (start - NLA_HDRLEN <= message + offset && message + offset < last)
          name = textAttribute(readAttributes(bytes.subarray(0, last), start), NFTA_EXPR_NAME);
      });
    });
    return name;
  }

  /**
   * The list for the next element: the current list, unless its set or action differs or the list
   * is full.
   */
  #list(action: NftElementChange['action'], set: string): ElementList {
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
    const type = messageType(action === 'add' ? 'NEW' : 'DEL', 'element');
    const flags = action === 'add' ? NLM_F_CREATE : 0;
    const out = this.#out;
    this.#message(type, flags, nfgenmsg(this.#family));
    out.value(NFTA_TABLE, this.#table);
    out.value(NFTA_SET_NAME, this.#name(set));
    const index = this.#starts.length - 1;
    const start = out.open(NFTA_SET_ELEM_LIST_ELEMENTS);
    const list = { index, action, set, before: this.#elements, start, end: out.length };
    this.#lists.push(list);
    return list;
  }

  /** Writes a message without its length and sequence number, which are set later. */
  #message(type: number, flags: number, payload: Buffer): void {
    const out = this.#out;
    this.#starts.push(out.length);
    writeHeader(out.bytes, out.length, { type, flags }, 0);
    out.length += NLMSG_HDRLEN;
    out.append(payload);
  }

  /** Writes the lengths of the last message and of its element list. */
  #finishMessage(): void {
    const start = this.#starts.at(-1) ?? 0;
    writeU32(this.#out.bytes, this.#out.length - start, start);
    const list = this.#lists.at(-1);
    if (list?.index === this.#starts.length - 1) this.#out.close(list.start);
  }

  readonly #name = (name: string): Buffer => {
    let bytes = this.#names.get(name);
    if (bytes === undefined) {
      bytes = nameBytes(name);
      this.#names.set(name, bytes);
    }
    return bytes;
  };
}
