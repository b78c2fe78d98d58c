/** Encodes and decodes nf_tables messages about tables, chains, rules and sets. */
import {
  type Attribute,
  NLA_F_NESTED,
  readAttributes,
  requiredAttribute,
  walkAttributes,
} from '../core/attribute.ts';
import type { NetlinkMessage, NetlinkRequest } from '../core/message.ts';
import { encodeNumber, optionalNumber, readNumber } from '../core/network-order.ts';
import {
  NFGENMSG_LENGTH,
  NFNL_SUBSYS_NFTABLES,
  NFPROTO_UNSPEC,
  nfnetlinkRequest,
} from '../core/nfnetlink.ts';
import { boundedName, readText } from '../core/text.ts';
import {
  NFT_KINDS,
  type NftExistingRule,
  type NftKind,
  type NftNotification,
  type NftRule,
  type NftSet,
  type NftTable,
} from './types.ts';

/** Offset of the resource ID in struct nfgenmsg, which holds the generation ID. */
const NFGENMSG_RESOURCE = 2;

/** linux/netlink.h. Without NLM_F_CREATE the kernel may treat an added element as an update. */
const NLM_F_EXCL = 0x200;
export const NLM_F_CREATE = 0x400;
const NLM_F_APPEND = 0x800;

/**
 * linux/netfilter/nf_tables.h numbers the messages NEW, GET and DEL of each kind of object
 * consecutively; a generation has no DEL. These are the NEW messages: NFT_MSG_NEWTABLE,
 * NFT_MSG_NEWCHAIN and so on. Numbers in attributes are in network order.
 */
const NFT_MSG: Readonly<Record<NftKind, number>> = {
  table: 0,
  chain: 3,
  rule: 6,
  set: 9,
  element: 12,
  generation: 15,
  object: 18,
  flowtable: 22,
};
const VERBS = { NEW: 0, GET: 1, DEL: 2 } as const;

/** The message type of an operation on a kind of object. */
export function messageType(verb: keyof typeof VERBS, kind: NftKind): number {
  return NFNL_SUBSYS_NFTABLES | (NFT_MSG[kind] + VERBS[verb]);
}

/** Message types of notifications, with the change that each reports. */
const notifications = new Map<number, Pick<NftNotification, 'kind' | 'isNew'>>();
for (const kind of NFT_KINDS) {
  notifications.set(messageType('NEW', kind), { kind, isNew: true });
  if (kind !== 'generation') notifications.set(messageType('DEL', kind), { kind, isNew: false });
}

/**
 * Attribute 1 is the table name in all messages except generation messages. Attribute 2 is the set
 * name in messages about sets and elements.
 */
export const NFTA_TABLE = 1;
export const NFTA_SET_NAME = 2;
const NFTA_TABLE_FLAGS = 2;
const NFTA_TABLE_USE = 3;
const NFT_TABLE_F_OWNER = 2;
/** NFTA_SET_ELEM_LIST_SET */
const NFTA_ELEMENT_SET = 2;
export const NFTA_CHAIN_NAME = 3;
const NFTA_GEN_ID = 1;
export const NFTA_RULE_CHAIN = 2;
export const NFTA_RULE_EXPRESSIONS = 4;
export const NFTA_RULE_USERDATA = 7;
export const NFTA_SET_FLAGS = 3;

/** NFT_NAME_MAXLEN, with the NUL. */
const NAME_LENGTH = 256;

/**
 * Encodes a name with its NUL.
 * @throws RangeError for a name that the kernel would truncate or refuse.
 */
export function nameBytes(name: string): Buffer {
  return boundedName('nf_tables name', name, NAME_LENGTH);
}

/** @throws RangeError as `nameBytes`. */
export function nameAttribute(type: number, name: string): Attribute {
  return { type, value: nameBytes(name) };
}

/** A request about a table or an object in a table. @throws RangeError for an invalid name. */
export function nftRequest(
  verb: keyof typeof VERBS,
  kind: NftKind,
  { family, name }: NftTable,
  attributes: readonly Attribute[] = [],
  flags = 0,
): NetlinkRequest {
  const all = [nameAttribute(NFTA_TABLE, name), ...attributes];
  return nfnetlinkRequest(messageType(verb, kind), family, all, flags);
}

/** Requests a dump of the tables of all families. */
export function tablesRequest(): NetlinkRequest {
  return nfnetlinkRequest(messageType('GET', 'table'), NFPROTO_UNSPEC, []);
}

/** Requests one table. @throws RangeError */
export function tableRequest(table: NftTable): NetlinkRequest {
  return nftRequest('GET', 'table', table);
}

/**
 * Creates a table if it does not exist; must be sent in a transaction.
 * @param owner NFT_TABLE_F_OWNER: the table belongs to the socket, and must not exist.
 * @throws RangeError
 */
export function newTableRequest(table: NftTable, owner = false): NetlinkRequest {
  const flags = [{ type: NFTA_TABLE_FLAGS, value: encodeNumber(owner ? NFT_TABLE_F_OWNER : 0, 4) }];
  return nftRequest('NEW', 'table', table, flags, NLM_F_CREATE | (owner ? NLM_F_EXCL : 0));
}

/** Deletes a table with its content; must be sent in a transaction. @throws RangeError */
export function deleteTableRequest(table: NftTable): NetlinkRequest {
  return nftRequest('DEL', 'table', table);
}

/** Requests the generation ID. */
export function generationRequest(): NetlinkRequest {
  return nfnetlinkRequest(messageType('GET', 'generation'), NFPROTO_UNSPEC, []);
}

/** Reads the generation ID in a reply to `generationRequest`. @throws MalformedMessage */
export function readGeneration(message: NetlinkMessage): number | undefined {
  if (!isNewMessage(message, 'generation')) return undefined;
  return optionalNumber(readAttributes(message.payload, NFGENMSG_LENGTH), NFTA_GEN_ID, 4);
}

/** Requests a dump of the chains of all tables of a family. */
export function chainsRequest(family: number): NetlinkRequest {
  return nfnetlinkRequest(messageType('GET', 'chain'), family, []);
}

/**
 * Requests a dump of the rules of a table, or of one of its chains. A table or chain that does not
 * exist has no rules.
 * @throws RangeError
 */
export function rulesRequest(table: NftTable, chain: string | undefined): NetlinkRequest {
  const only = chain === undefined ? [] : [nameAttribute(NFTA_RULE_CHAIN, chain)];
  return nftRequest('GET', 'rule', table, only);
}

/** Requests a dump of the sets of a table. @throws RangeError */
export function setsRequest(table: NftTable): NetlinkRequest {
  return nftRequest('GET', 'set', table);
}

/** Deletes a set or a map. @throws RangeError */
export function deleteSetRequest(table: NftTable, set: string): NetlinkRequest {
  return nftRequest('DEL', 'set', table, [nameAttribute(NFTA_SET_NAME, set)]);
}

/** Flushes a chain: deletes all its rules. @throws RangeError */
export function flushChainRequest(table: NftTable, chain: string): NetlinkRequest {
  return nftRequest('DEL', 'rule', table, [nameAttribute(NFTA_RULE_CHAIN, chain)]);
}

/** Appends a rule to a chain. @throws RangeError */
export function newRuleRequest(table: NftTable, chain: string, rule: NftRule): NetlinkRequest {
  const attributes = [
    nameAttribute(NFTA_RULE_CHAIN, chain),
    { type: NFTA_RULE_EXPRESSIONS | NLA_F_NESTED, value: rule.expressions },
  ];
  if (rule.userdata !== undefined) {
    attributes.push({ type: NFTA_RULE_USERDATA, value: rule.userdata });
  }
  return nftRequest('NEW', 'rule', table, attributes, NLM_F_CREATE | NLM_F_APPEND);
}

/** Requests one set. @throws RangeError */
export function setRequest(table: NftTable, set: string): NetlinkRequest {
  return nftRequest('GET', 'set', table, [nameAttribute(NFTA_SET_NAME, set)]);
}

/** Requests a dump of the elements of a set. @throws RangeError */
export function elementsRequest(table: NftTable, set: string): NetlinkRequest {
  return nftRequest('GET', 'element', table, [nameAttribute(NFTA_SET_NAME, set)]);
}

/** Requests one element. @param key as of `elementKeyAttribute`. @throws RangeError */
export function elementRequest(table: NftTable, set: string, key: Attribute): NetlinkRequest {
  return nftRequest('GET', 'element', table, [nameAttribute(NFTA_SET_NAME, set), key]);
}

/** Reads a reply to `tablesRequest` or `tableRequest`. @throws MalformedMessage */
export function readTable(message: NetlinkMessage): NftTable | undefined {
  if (!isNewMessage(message, 'table')) return undefined;
  const { payload } = message;
  return {
    family: readNumber(payload, 0, payload.length, 1),
    name: textAttribute(readAttributes(payload, NFGENMSG_LENGTH), NFTA_TABLE),
  };
}

/** Reads the flags in a reply to `tableRequest`. @throws MalformedMessage */
export function readTableFlags(message: NetlinkMessage): number | undefined {
  if (!isNewMessage(message, 'table')) return undefined;
  const attributes = readAttributes(message.payload, NFGENMSG_LENGTH);
  return optionalNumber(attributes, NFTA_TABLE_FLAGS, 4) ?? 0;
}

/** The number of chains, sets, objects and flowtables, in a reply to `tableRequest`. @throws MalformedMessage */
export function readTableUse(message: NetlinkMessage): number | undefined {
  if (!isNewMessage(message, 'table')) return undefined;
  const attributes = readAttributes(message.payload, NFGENMSG_LENGTH);
  return optionalNumber(attributes, NFTA_TABLE_USE, 4) ?? 0;
}

/**
 * Reads a reply to `rulesRequest`; undefined if the rule belongs to another table.
 * @throws MalformedMessage
 */
export function readRule(message: NetlinkMessage, table: string): NftExistingRule | undefined {
  if (!isNewMessage(message, 'rule')) return undefined;
  const attributes = readAttributes(message.payload, NFGENMSG_LENGTH);
  if (textAttribute(attributes, NFTA_TABLE) !== table) return undefined;
  return {
    chain: textAttribute(attributes, NFTA_RULE_CHAIN),
    // The memory of the message is reused.
    expressions: Buffer.from(attributes.get(NFTA_RULE_EXPRESSIONS) ?? []),
  };
}

/** Reads a reply to `setsRequest` or `setRequest`. @throws MalformedMessage */
export function readSet(message: NetlinkMessage): NftSet | undefined {
  if (!isNewMessage(message, 'set')) return undefined;
  const attributes = readAttributes(message.payload, NFGENMSG_LENGTH);
  return {
    name: textAttribute(attributes, NFTA_SET_NAME),
    flags: optionalNumber(attributes, NFTA_SET_FLAGS, 4) ?? 0,
  };
}

/** Attributes with `NftNotification.name`. */
const NAMES: Partial<Record<NftKind, number>> = {
  chain: NFTA_CHAIN_NAME,
  rule: NFTA_RULE_CHAIN,
  set: NFTA_SET_NAME,
  element: NFTA_ELEMENT_SET,
};

/**
 * Decodes a notification; undefined for another kind of message, such as a trace.
 * @throws MalformedMessage
 */
export function readNotification(message: NetlinkMessage): NftNotification | undefined {
  const { type, payload, portId } = message;
  const notification = notifications.get(type);
  if (notification === undefined) return undefined;
  const { kind } = notification;
  let table: string | undefined;
  let name: string | undefined;
  // In a generation message, attribute 1 is the generation ID.
  if (kind !== 'generation') {
    walkAttributes(payload, NFGENMSG_LENGTH, payload.length, (attribute, start, end) => {
      if (attribute === NFTA_TABLE) table = readText(payload, start, end);
      else if (attribute === NAMES[kind]) name = readText(payload, start, end);
    });
  }
  const family = readNumber(payload, 0, payload.length, 1);
  return { family, table, name, ...notification, portId };
}

/** Whether a message is a reply to `elementsRequest`. */
export function isElementsMessage(message: NetlinkMessage): boolean {
  return isNewMessage(message, 'element');
}

/**
 * The generation ID, modulo 2^16, when the kernel created a message. In an element dump, different
 * generation IDs mean that nf_tables changed meanwhile: the kernel does not set NLM_F_DUMP_INTR in
 * element dumps (seen on 6.18).
 * @throws MalformedMessage
 */
export function genidOf({ payload }: NetlinkMessage): number {
  return readNumber(payload, NFGENMSG_RESOURCE, payload.length, 2);
}

/** Whether a message describes an existing or new object of this kind. */
export function isNewMessage(message: NetlinkMessage, kind: NftKind): boolean {
  return message.type === messageType('NEW', kind);
}

/** @throws MalformedMessage if the attribute is missing. */
export function textAttribute(attributes: ReadonlyMap<number, Buffer>, type: number): string {
  return readText(requiredAttribute(attributes, 'nf_tables', type));
}
