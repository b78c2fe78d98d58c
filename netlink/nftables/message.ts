import {
  type Attribute,
  encodeAttributes,
  NLA_F_NESTED,
  readAttributes,
  walkAttributes,
} from '../core/attribute.ts';
import { MalformedMessage } from '../core/error.ts';
import type { Message, Request } from '../core/message.ts';
import { readNumber } from '../core/network.ts';
import type {
  NftElement,
  NftNotification,
  NftRule,
  NftSet,
  NftTable,
  NftVerdict,
} from './types.ts';

/** linux/netfilter/nfnetlink.h; subsystem << 8 | message. */
export const NFNL_SUBSYS_NFTABLES = 10;
export const NFNL_MSG_BATCH_BEGIN = 16;
export const NFNL_MSG_BATCH_END = 17;
/** struct nfgenmsg: u8 family, u8 version, u16 resource in network order. */
export const NFGENMSG = 4;
const NFGENMSG_RESOURCE = 2;

/** linux/netlink.h: without it the kernel may take an added element for one to be updated. */
export const NLM_F_CREATE = 0x400;
const NLM_F_APPEND = 0x800;

/** linux/netfilter/nf_tables.h. Numbers in attributes are in network order. */
export const NFT_MSG_NEWSETELEM = 12;
export const NFT_MSG_DELSETELEM = 14;
const NFT_MSG_NEWTABLE = 0;
const NFT_MSG_GETTABLE = 1;
const NFT_MSG_DELTABLE = 2;
const NFT_MSG_NEWCHAIN = 3;
const NFT_MSG_GETCHAIN = 4;
const NFT_MSG_DELCHAIN = 5;
const NFT_MSG_NEWRULE = 6;
const NFT_MSG_DELRULE = 8;
const NFT_MSG_NEWSET = 9;
const NFT_MSG_GETSET = 10;
const NFT_MSG_DELSET = 11;
const NFT_MSG_GETSETELEM = 13;
const NFT_MSG_NEWGEN = 15;
const NFT_MSG_NEWOBJ = 18;
const NFT_MSG_DELOBJ = 20;
const NFT_MSG_NEWFLOWTABLE = 22;
const NFT_MSG_DELFLOWTABLE = 24;

/** Messages that notifications are, with what they tell. */
const notifications = new Map<number, Pick<NftNotification, 'kind' | 'isNew'>>([
  [NFT_MSG_NEWGEN, { kind: 'generation', isNew: true }],
]);
for (const [kind, made, deleted] of [
  ['table', NFT_MSG_NEWTABLE, NFT_MSG_DELTABLE],
  ['chain', NFT_MSG_NEWCHAIN, NFT_MSG_DELCHAIN],
  ['rule', NFT_MSG_NEWRULE, NFT_MSG_DELRULE],
  ['set', NFT_MSG_NEWSET, NFT_MSG_DELSET],
  ['element', NFT_MSG_NEWSETELEM, NFT_MSG_DELSETELEM],
  ['object', NFT_MSG_NEWOBJ, NFT_MSG_DELOBJ],
  ['flowtable', NFT_MSG_NEWFLOWTABLE, NFT_MSG_DELFLOWTABLE],
] as const) {
  notifications.set(made, { kind, isNew: true });
  notifications.set(deleted, { kind, isNew: false });
}

/** The table's name is attribute 1 of tables, chains, rules, sets and lists of elements. */
const NFTA_TABLE = 1;
const NFTA_CHAIN_NAME = 3;
const NFTA_RULE_CHAIN = 2;
const NFTA_RULE_EXPRESSIONS = 4;
const NFTA_RULE_USERDATA = 7;
const NFTA_SET_NAME = 2;
const NFTA_SET_FLAGS = 3;
const NFTA_SET_KEY_LEN = 5;
const NFTA_SET_DATA_TYPE = 6;
const NFTA_SET_DATA_LEN = 7;
const NFT_DATA_VERDICT = 0xffffff00;

export const NFTA_SET_ELEM_LIST_TABLE = 1;
export const NFTA_SET_ELEM_LIST_SET = 2;
export const NFTA_SET_ELEM_LIST_ELEMENTS = 3;
export const NFTA_LIST_ELEM = 1;
export const NFTA_SET_ELEM_KEY = 1;
export const NFTA_SET_ELEM_DATA = 2;
export const NFTA_SET_ELEM_TIMEOUT = 4;
const NFTA_SET_ELEM_EXPIRATION = 5;
export const NFTA_SET_ELEM_USERDATA = 6;
export const NFTA_SET_ELEM_KEY_END = 10;
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

/** NFT_NAME_MAXLEN, with the NUL. */
const NAME_LENGTH = 256;
const NFPROTO_UNSPEC = 0;

/** A name with its NUL. @throws RangeError for one that the kernel would cut or refuse. */
export function nameBytes(name: string): Buffer {
  const bytes = Buffer.from(`${name}\0`);
  if (bytes.length < 2 || bytes.length > NAME_LENGTH || name.includes('\0')) {
    throw new RangeError(`name in nf_tables: ${JSON.stringify(name)}`);
  }
  return bytes;
}

/** Asks, as a dump, for the tables of all families. */
export function tablesRequest(): Request {
  return get(NFT_MSG_GETTABLE, NFPROTO_UNSPEC, []);
}

/** Asks for one table. @throws RangeError */
export function tableRequest({ family, name }: NftTable): Request {
  return get(NFT_MSG_GETTABLE, family, [{ type: NFTA_TABLE, value: nameBytes(name) }]);
}

/** Deletes a table with all that is in it; must be sent in a transaction. @throws RangeError */
export function deleteTableRequest({ family, name }: NftTable): Request {
  return get(NFT_MSG_DELTABLE, family, [{ type: NFTA_TABLE, value: nameBytes(name) }]);
}

/** Asks, as a dump, for the chains of all tables of a family. */
export function chainsRequest(family: number): Request {
  return get(NFT_MSG_GETCHAIN, family, []);
}

/** Asks, as a dump, for the sets of a table. @throws RangeError */
export function setsRequest({ family, name }: NftTable): Request {
  return get(NFT_MSG_GETSET, family, [{ type: NFTA_TABLE, value: nameBytes(name) }]);
}

/** Makes a chain that is not called by a hook, unless it is there. @throws RangeError */
export function newChainRequest({ family, name }: NftTable, chain: string): Request {
  return change(NFT_MSG_NEWCHAIN, NLM_F_CREATE, family, [
    { type: NFTA_TABLE, value: nameBytes(name) },
    { type: NFTA_CHAIN_NAME, value: nameBytes(chain) },
  ]);
}

/** @throws RangeError */
export function deleteChainRequest({ family, name }: NftTable, chain: string): Request {
  return change(NFT_MSG_DELCHAIN, 0, family, [
    { type: NFTA_TABLE, value: nameBytes(name) },
    { type: NFTA_CHAIN_NAME, value: nameBytes(chain) },
  ]);
}

/** Deletes a set or a map. @throws RangeError */
export function deleteSetRequest({ family, name }: NftTable, set: string): Request {
  return change(NFT_MSG_DELSET, 0, family, [
    { type: NFTA_TABLE, value: nameBytes(name) },
    { type: NFTA_SET_NAME, value: nameBytes(set) },
  ]);
}

/** Deletes all rules of a chain. @throws RangeError */
export function flushChainRequest({ family, name }: NftTable, chain: string): Request {
  return change(NFT_MSG_DELRULE, 0, family, [
    { type: NFTA_TABLE, value: nameBytes(name) },
    { type: NFTA_RULE_CHAIN, value: nameBytes(chain) },
  ]);
}

/** Adds a rule at the end of a chain. @throws RangeError */
export function newRuleRequest(
  { family, name }: NftTable,
  chain: string,
  { expressions, userdata }: NftRule,
): Request {
  const noted = userdata === undefined ? [] : [{ type: NFTA_RULE_USERDATA, value: userdata }];
  return change(NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND, family, [
    { type: NFTA_TABLE, value: nameBytes(name) },
    { type: NFTA_RULE_CHAIN, value: nameBytes(chain) },
    { type: NFTA_RULE_EXPRESSIONS | NLA_F_NESTED, value: expressions },
    ...noted,
  ]);
}

/** Asks for one set. @throws RangeError */
export function setRequest({ family, name }: NftTable, set: string): Request {
  return get(NFT_MSG_GETSET, family, [
    { type: NFTA_TABLE, value: nameBytes(name) },
    { type: NFTA_SET_NAME, value: nameBytes(set) },
  ]);
}

/** Asks, as a dump, for the elements of a set. @throws RangeError */
export function elementsRequest({ family, name }: NftTable, set: string): Request {
  return get(NFT_MSG_GETSETELEM, family, [
    { type: NFTA_SET_ELEM_LIST_TABLE, value: nameBytes(name) },
    { type: NFTA_SET_ELEM_LIST_SET, value: nameBytes(set) },
  ]);
}

/** @returns undefined for a message of another kind. @throws MalformedMessage */
export function readTable(message: Message): NftTable | undefined {
  if (!isType(message, NFT_MSG_NEWTABLE)) return undefined;
  const { payload } = message;
  return {
    family: readNumber(payload, 0, payload.length, 1),
    name: text(readAttributes(payload, NFGENMSG), NFTA_TABLE),
  };
}

/** @returns the name of a chain; undefined when it is in another table. @throws MalformedMessage */
export function readChain(message: Message, table: string): string | undefined {
  if (!isType(message, NFT_MSG_NEWCHAIN)) return undefined;
  const attributes = readAttributes(message.payload, NFGENMSG);
  return text(attributes, NFTA_TABLE) === table ? text(attributes, NFTA_CHAIN_NAME) : undefined;
}

/** The answer to `setsRequest` or `setRequest`. @throws MalformedMessage */
export function readSet(message: Message): NftSet | undefined {
  if (!isType(message, NFT_MSG_NEWSET)) return undefined;
  const attributes = readAttributes(message.payload, NFGENMSG);
  const number = (type: number) => {
    const bytes = attributes.get(type);
    return bytes === undefined ? undefined : readNumber(bytes, 0, bytes.length, 4);
  };
  return {
    name: text(attributes, NFTA_SET_NAME),
    flags: number(NFTA_SET_FLAGS) ?? 0,
    keyLength: number(NFTA_SET_KEY_LEN) ?? 0,
    dataLength: number(NFTA_SET_DATA_LEN),
    verdicts: number(NFTA_SET_DATA_TYPE) === NFT_DATA_VERDICT,
  };
}

/**
 * What a notification tells; undefined for one of another kind (a trace).
 * @throws MalformedMessage
 */
export function readNotification(message: Message): NftNotification | undefined {
  const { type, payload, port } = message;
  if (type >> 8 !== NFNL_SUBSYS_NFTABLES) return undefined;
  const told = notifications.get(type & 0xff);
  if (told === undefined) return undefined;
  let table: string | undefined;
  // Of a generation, attribute 1 is its number.
  if (told.kind !== 'generation') {
    walkAttributes(payload, NFGENMSG, payload.length, (attribute, start, end) => {
      if (attribute === NFTA_TABLE) table = readName(payload, start, end);
    });
  }
  return { family: readNumber(payload, 0, payload.length, 1), table, ...told, portId: port };
}

/** Whether a message answers `elementsRequest`. */
export function isElements(message: Message): boolean {
  return isType(message, NFT_MSG_NEWSETELEM);
}

/**
 * The generation, modulo 2^16, in which a message was made. Of a dump of elements all must have
 * one: the kernel does not set NLM_F_DUMP_INTR there (seen on 6.18).
 * @throws MalformedMessage
 */
export function generationOf({ payload }: Message): number {
  return readNumber(payload, NFGENMSG_RESOURCE, payload.length, 2);
}

/**
 * Visits the elements in a message that answers `elementsRequest`. They may be kept: their bytes
 * are copied, though not one by one.
 * @throws MalformedMessage; whatever `visit` throws.
 */
export function visitElements({ payload }: Message, visit: (element: NftElement) => void): void {
  const bytes = Buffer.from(payload);
  walkAttributes(bytes, NFGENMSG, bytes.length, (type, listStart, listEnd) => {
    if (type !== NFTA_SET_ELEM_LIST_ELEMENTS) return;
    walkAttributes(bytes, listStart, listEnd, (_, start, end) => {
      const element = readElement(bytes, start, end);
      if (element !== undefined) visit(element);
    });
  });
}

/** The catch-all element of a set has no key. */
function readElement(bytes: Buffer, start: number, end: number): NftElement | undefined {
  let key: Buffer | undefined;
  const rest: { -readonly [K in Exclude<keyof NftElement, 'key'>]?: NonNullable<NftElement[K]> } =
    {};
  walkAttributes(bytes, start, end, (type, from, to) => {
    if (type === NFTA_SET_ELEM_KEY) key = readValue(bytes, from, to);
    else if (type === NFTA_SET_ELEM_KEY_END) rest.keyEnd = readValue(bytes, from, to);
    else if (type === NFTA_SET_ELEM_DATA) {
      const data = readData(bytes, from, to);
      if (data !== undefined) rest.data = data;
    } else if (type === NFTA_SET_ELEM_USERDATA) rest.userdata = bytes.subarray(from, to);
    else if (type === NFTA_SET_ELEM_EXPIRATION) rest.timeoutMs = readMilliseconds(bytes, from, to);
  });
  return key === undefined ? undefined : { key, ...rest };
}

function readValue(bytes: Buffer, start: number, end: number): Buffer {
  let value: Buffer | undefined;
  walkAttributes(bytes, start, end, (type, from, to) => {
    if (type === NFTA_DATA_VALUE) value = bytes.subarray(from, to);
  });
  if (value === undefined) throw new MalformedMessage('element with a key that has no value');
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

/** @returns undefined for a verdict of a kind that only others use. */
function readVerdict(bytes: Buffer, start: number, end: number): NftVerdict | undefined {
  let kind: NftVerdict['kind'] | undefined;
  let chain = '';
  walkAttributes(bytes, start, end, (type, from, to) => {
    if (type === NFTA_VERDICT_CODE) kind = verdictKinds.get(readNumber(bytes, from, to, 4) | 0);
    else if (type === NFTA_VERDICT_CHAIN) chain = readName(bytes, from, to);
  });
  if (kind === undefined) return undefined;
  return kind === 'goto' || kind === 'jump' ? { kind, chain } : { kind };
}

/** The header that every message of nf_tables starts with. */
export function nfgenmsg(family: number, resource = 0): Buffer {
  return Buffer.from([family, 0, resource >> 8, resource & 0xff]);
}

function get(type: number, family: number, attributes: readonly Attribute[]): Request {
  return change(type, 0, family, attributes);
}

function change(
  type: number,
  flags: number,
  family: number,
  attributes: readonly Attribute[],
): Request {
  return {
    type: (NFNL_SUBSYS_NFTABLES << 8) | type,
    flags,
    payload: Buffer.concat([nfgenmsg(family), encodeAttributes(attributes)]),
  };
}

function isType(message: Message, type: number): boolean {
  return message.type === ((NFNL_SUBSYS_NFTABLES << 8) | type);
}

function text(attributes: ReadonlyMap<number, Buffer>, type: number): string {
  const bytes = attributes.get(type);
  if (bytes === undefined)
    throw new MalformedMessage(`nf_tables message without attribute ${type}`);
  return readName(bytes, 0, bytes.length);
}

/** Up to its NUL. */
function readName(bytes: Buffer, start: number, end: number): string {
  const nul = bytes.indexOf(0, start);
  return bytes.toString('utf8', start, nul < 0 || nul > end ? end : nul);
}
