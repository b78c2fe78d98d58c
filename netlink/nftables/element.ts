/** Encodes and decodes set elements and map elements. */
import { type Attribute, attributeType, walkAttributes } from '../core/attribute.ts';
import type { AttributeWriter } from '../core/attribute-writer.ts';
import { MalformedMessage } from '../core/error.ts';
import type { NetlinkMessage } from '../core/message.ts';
import { encodeNumber, readNumber } from '../core/network-order.ts';
import { NFGENMSG_LENGTH } from '../core/nfnetlink.ts';
import { readText } from '../core/text.ts';
import { keyAfter, type NftRawElement } from './interval.ts';
import type { NftElement, NftElementChange, NftVerdict } from './types.ts';

/** linux/netfilter/nf_tables.h. Numbers in attributes are in network order. */
export const NFTA_SET_ELEM_LIST_ELEMENTS = 3;
export const NFTA_LIST_ELEM = 1;
const NFTA_SET_ELEM_KEY = 1;
const NFTA_SET_ELEM_DATA = 2;
const NFTA_SET_ELEM_FLAGS = 3;
const NFTA_SET_ELEM_TIMEOUT = 4;
const NFTA_SET_ELEM_EXPIRATION = 5;
const NFTA_SET_ELEM_USERDATA = 6;
const NFTA_SET_ELEM_KEY_END = 10;
/** The element is the end of an interval in an ordered set. */
const NFT_SET_ELEM_INTERVAL_END = 1;
export const NFTA_DATA_VALUE = 1;
export const NFTA_DATA_VERDICT = 2;
export const NFTA_VERDICT_CODE = 1;
export const NFTA_VERDICT_CHAIN = 2;

/** NF_DROP, NF_ACCEPT of linux/netfilter.h; NFT_RETURN, NFT_GOTO, NFT_JUMP, which are negative. */
export const VERDICT_CODES: Readonly<Record<NftVerdict['kind'], number>> = {
  drop: 0,
  accept: 1,
  jump: -3,
  goto: -4,
  return: -5,
};
const verdictKinds = new Map<number, NftVerdict['kind']>();
for (const kind of ['drop', 'accept', 'jump', 'goto', 'return'] as const) {
  verdictKinds.set(VERDICT_CODES[kind], kind);
}

/** NFT_DATA_VALUE_MAXLEN: maximum bytes of a key or of map data. */
const VALUE_LIMIT = 64;
/**
 * Maximum bytes of the user data of an element. NFT_USERDATA_MAXLEN is 256, but the kernel refuses
 * 255 bytes with EINVAL, and accepts 256 without storing them (seen on 6.18).
 */
const USERDATA_LIMIT = 254;
/**
 * Upper bound on an encoded element (two values, a chain name, user data) plus the start of its
 * message.
 */
export const ELEMENT_LIMIT = 1024;

/** The attribute that names one element in a request to read it. */
export function elementKeyAttribute({ key }: Pick<NftElement, 'key'>): Attribute {
  const value = [{ type: NFTA_DATA_VALUE, value: key }];
  const element = { type: NFTA_LIST_ELEM, value: [{ type: NFTA_SET_ELEM_KEY, value }] };
  return { type: NFTA_SET_ELEM_LIST_ELEMENTS, value: [element] };
}

/**
 * Encodes an element; in an ordered set the end of its interval too.
 * @param nameBytes Encodes a chain name with its NUL.
 * @throws RangeError for a value that is too long; whatever `nameBytes` throws.
 */
export function writeElement(
  to: AttributeWriter,
  { action, isOrdered = false }: Pick<NftElementChange, 'action' | 'isOrdered'>,
  element: NftElement,
  nameBytes: (name: string) => Buffer,
): void {
  const { key, keyEnd = key, data, timeoutMs, userdata, bound } = element;
  const hasEnd = isOrdered && bound !== 'start';
  if (bound === 'end') {
    writeEnd(to, keyEnd);
    return;
  }
  const start = to.open(NFTA_LIST_ELEM);
  writeValue(to, NFTA_SET_ELEM_KEY, key);
  if (element.keyEnd !== undefined && !isOrdered) writeValue(to, NFTA_SET_ELEM_KEY_END, keyEnd);
  if (action === 'add') {
    if (Buffer.isBuffer(data)) writeValue(to, NFTA_SET_ELEM_DATA, data);
    else if (data !== undefined) writeVerdict(to, data, nameBytes);
    if (timeoutMs !== undefined) to.value(NFTA_SET_ELEM_TIMEOUT, encodeNumber(timeoutMs, 8));
    if (userdata !== undefined) {
      to.value(NFTA_SET_ELEM_USERDATA, bounded(userdata, USERDATA_LIMIT));
    }
  }
  to.close(start);
  if (hasEnd) writeEnd(to, keyEnd);
}

/** Writes the end of an interval of an ordered set: the first key behind it. */
function writeEnd(to: AttributeWriter, last: Buffer): void {
  const start = to.open(NFTA_LIST_ELEM);
  to.u32(NFTA_SET_ELEM_FLAGS, NFT_SET_ELEM_INTERVAL_END);
  writeValue(to, NFTA_SET_ELEM_KEY, keyAfter(last));
  to.close(start);
}

/** Whether an element that `writeElement` has written is the end of an interval. @param at Offset of its attributes. */
export function isIntervalEnd(bytes: Buffer, at: number): boolean {
  return attributeType(bytes, at) === NFTA_SET_ELEM_FLAGS;
}

function writeValue(to: AttributeWriter, type: number, value: Buffer): void {
  const start = to.open(type);
  to.value(NFTA_DATA_VALUE, bounded(value, VALUE_LIMIT));
  to.close(start);
}

function writeVerdict(
  to: AttributeWriter,
  verdict: NftVerdict,
  nameBytes: (name: string) => Buffer,
): void {
  const start = to.open(NFTA_SET_ELEM_DATA);
  const inner = to.open(NFTA_DATA_VERDICT);
  to.u32(NFTA_VERDICT_CODE, VERDICT_CODES[verdict.kind] >>> 0);
  if ('chain' in verdict) to.value(NFTA_VERDICT_CHAIN, nameBytes(verdict.chain));
  to.close(inner);
  to.close(start);
}

function bounded(value: Buffer, limit: number): Buffer {
  if (value.length > limit)
    throw new RangeError(`nf_tables value has ${value.length} bytes; must have at most ${limit}`);
  return value;
}

/**
 * Visits the elements in a reply to `elementsRequest`. The caller may keep the elements: the
 * message is copied once, not per element.
 * @param visitOthers Called with the data of the catch-all element, which has no key.
 * @throws MalformedMessage; whatever `visit` throws.
 */
export function visitElements(
  { payload }: NetlinkMessage,
  visit: (element: NftRawElement) => void,
  visitOthers: (data: NftElement['data']) => void = () => undefined,
): void {
  const bytes = Buffer.from(payload);
  walkAttributes(bytes, NFGENMSG_LENGTH, bytes.length, (type, listStart, listEnd) => {
    if (type !== NFTA_SET_ELEM_LIST_ELEMENTS) return;
    walkAttributes(bytes, listStart, listEnd, (_, start, end) => {
      const { key, ...rest } = readElement(bytes, start, end);
      if (key === undefined) visitOthers(rest.data);
      else visit({ key, ...rest });
    });
  });
}

/** @returns without a key for the catch-all element. */
function readElement(bytes: Buffer, start: number, end: number): Partial<NftRawElement> {
  let key: Buffer | undefined;
  const rest: {
    -readonly [K in Exclude<keyof NftRawElement, 'key'>]?: NonNullable<NftRawElement[K]>;
  } = {};
  walkAttributes(bytes, start, end, (type, from, to) => {
    if (type === NFTA_SET_ELEM_KEY) key = readValue(bytes, from, to);
    else if (type === NFTA_SET_ELEM_FLAGS) {
      if ((readNumber(bytes, from, to, 4) & NFT_SET_ELEM_INTERVAL_END) !== 0) rest.isEnd = true;
    } else if (type === NFTA_SET_ELEM_KEY_END) rest.keyEnd = readValue(bytes, from, to);
    else if (type === NFTA_SET_ELEM_DATA) {
      const data = readData(bytes, from, to);
      if (data !== undefined) rest.data = data;
    } else if (type === NFTA_SET_ELEM_USERDATA) rest.userdata = bytes.subarray(from, to);
    else if (type === NFTA_SET_ELEM_EXPIRATION) rest.timeoutMs = readMilliseconds(bytes, from, to);
  });
  return key === undefined ? rest : { key, ...rest };
}

function readValue(bytes: Buffer, start: number, end: number): Buffer {
  let value: Buffer | undefined;
  walkAttributes(bytes, start, end, (type, from, to) => {
    if (type === NFTA_DATA_VALUE) value = bytes.subarray(from, to);
  });
  if (value === undefined) throw new MalformedMessage('nf_tables element key without a value');
  return value;
}

function readData(bytes: Buffer, start: number, end: number): Buffer | NftVerdict | undefined {
  let data: Buffer | NftVerdict | undefined;
  walkAttributes(bytes, start, end, (type, from, to) => {
    if (type === NFTA_DATA_VALUE) data = bytes.subarray(from, to);
    else if (type === NFTA_DATA_VERDICT) data = readVerdict(bytes, from, to);
  });
  return data;
}

function readMilliseconds(bytes: Buffer, start: number, end: number): number {
  const high = readNumber(bytes, start, end, 4);
  return high * 2 ** 32 + readNumber(bytes, start + 4, end, 4);
}

/** @returns undefined for a verdict that only other programs use, which NftVerdict does not have. */
export function readVerdict(bytes: Buffer, start: number, end: number): NftVerdict | undefined {
  let kind: NftVerdict['kind'] | undefined;
  let chain = '';
  walkAttributes(bytes, start, end, (type, from, to) => {
    if (type === NFTA_VERDICT_CODE) kind = verdictKinds.get(readNumber(bytes, from, to, 4) | 0);
    else if (type === NFTA_VERDICT_CHAIN) chain = readText(bytes, from, to);
  });
  if (kind === undefined) return undefined;
  return kind === 'goto' || kind === 'jump' ? { kind, chain } : { kind };
}
