/** nf_tables on the wire: requests for tables, chains, rules and sets, and what the kernel tells of them. */
import {
  type Attribute,
  NLA_F_NESTED,
  readAttributes,
  requiredAttribute,
  walkAttributes,
} from '../core/attribute.ts';
import type { NetlinkMessage, NetlinkRequest } from '../core/message.ts';
import { optionalNumber, readNumber } from '../core/network-order.ts';
import {
  NFGENMSG_LENGTH,
  NFNL_SUBSYS_NFTABLES,
  NFPROTO_UNSPEC,
  nfnetlinkRequest,
} from '../core/nfnetlink.ts';
import { boundedName, readText } from '../core/text.ts';
import {
  NFT_KINDS,
  type NftKind,
  type NftNotification,
  type NftRule,
  type NftSet,
  type NftTable,
} from './types.ts';

/** Of struct nfgenmsg: the generation. */
const NFGENMSG_RESOURCE = 2;

/** linux/netlink.h: without it the kernel may take an added element for one to be updated. */
export const NLM_F_CREATE = 0x400;
const NLM_F_APPEND = 0x800;

/**
 * linux/netfilter/nf_tables.h has three messages in a row for each kind of object: these are the first ones,
 * NFT_MSG_NEWTABLE, NFT_MSG_NEWCHAIN and so on. Numbers in attributes are in network order.
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

/** The type of a message. */
export function messageType(verb: keyof typeof VERBS, kind: NftKind): number {
  return NFNL_SUBSYS_NFTABLES | (NFT_MSG[kind] + VERBS[verb]);
}

/** Messages that notifications are, with what they tell. */
const notifications = new Map<number, Pick<NftNotification, 'kind' | 'isNew'>>();
for (const kind of NFT_KINDS) {
  notifications.set(messageType('NEW', kind), { kind, isNew: true });
  if (kind !== 'generation') notifications.set(messageType('DEL', kind), { kind, isNew: false });
}

/** The name of the table is attribute 1 of everything, that of a set attribute 2 of sets and lists of elements. */
export const NFTA_TABLE = 1;
export const NFTA_SET_NAME = 2;
const NFTA_CHAIN_NAME = 3;
const NFTA_RULE_CHAIN = 2;
const NFTA_RULE_EXPRESSIONS = 4;
const NFTA_RULE_USERDATA = 7;
const NFTA_SET_FLAGS = 3;

/** NFT_NAME_MAXLEN, with the NUL. */
const NAME_LENGTH = 256;

/** A name with its NUL. @throws RangeError for one that the kernel would cut or refuse. */
export function nameBytes(name: string): Buffer {
  return boundedName('name in nf_tables', name, NAME_LENGTH);
}

/** @throws RangeError as `nameBytes`. */
export function nameAttribute(type: number, name: string): Attribute {
  return { type, value: nameBytes(name) };
}

/** A request about a table or something in it. @throws RangeError for a name that cannot be. */
export function tableRequestFor(
  verb: keyof typeof VERBS,
  kind: NftKind,
  { family, name }: NftTable,
  attributes: readonly Attribute[] = [],
  flags = 0,
): NetlinkRequest {
  const all = [nameAttribute(NFTA_TABLE, name), ...attributes];
  return nfnetlinkRequest(messageType(verb, kind), family, all, flags);
}

/** Asks, as a dump, for the tables of all families. */
export function tablesRequest(): NetlinkRequest {
  return nfnetlinkRequest(messageType('GET', 'table'), NFPROTO_UNSPEC, []);
}

/** Asks for one table. @throws RangeError */
export function tableRequest(table: NftTable): NetlinkRequest {
  return tableRequestFor('GET', 'table', table);
}

/** Deletes a table with all that is in it; must be sent in a transaction. @throws RangeError */
export function deleteTableRequest(table: NftTable): NetlinkRequest {
  return tableRequestFor('DEL', 'table', table);
}

/** Asks, as a dump, for the chains of all tables of a family. */
export function chainsRequest(family: number): NetlinkRequest {
  return nfnetlinkRequest(messageType('GET', 'chain'), family, []);
}

/** Asks, as a dump, for the sets of a table. @throws RangeError */
export function setsRequest(table: NftTable): NetlinkRequest {
  return tableRequestFor('GET', 'set', table);
}

/** Makes a chain that is not called by a hook, unless it is there. @throws RangeError */
export function newChainRequest(table: NftTable, chain: string): NetlinkRequest {
  return tableRequestFor(
    'NEW',
    'chain',
    table,
    [nameAttribute(NFTA_CHAIN_NAME, chain)],
    NLM_F_CREATE,
  );
}

/** @throws RangeError */
export function deleteChainRequest(table: NftTable, chain: string): NetlinkRequest {
  return tableRequestFor('DEL', 'chain', table, [nameAttribute(NFTA_CHAIN_NAME, chain)]);
}

/** Deletes a set or a map. @throws RangeError */
export function deleteSetRequest(table: NftTable, set: string): NetlinkRequest {
  return tableRequestFor('DEL', 'set', table, [nameAttribute(NFTA_SET_NAME, set)]);
}

/** Deletes all rules of a chain. @throws RangeError */
export function flushChainRequest(table: NftTable, chain: string): NetlinkRequest {
  return tableRequestFor('DEL', 'rule', table, [nameAttribute(NFTA_RULE_CHAIN, chain)]);
}

/** Adds a rule at the end of a chain. @throws RangeError */
export function newRuleRequest(table: NftTable, chain: string, rule: NftRule): NetlinkRequest {
  const attributes = [
    nameAttribute(NFTA_RULE_CHAIN, chain),
    { type: NFTA_RULE_EXPRESSIONS | NLA_F_NESTED, value: rule.expressions },
  ];
  if (rule.userdata !== undefined) {
    attributes.push({ type: NFTA_RULE_USERDATA, value: rule.userdata });
  }
  return tableRequestFor('NEW', 'rule', table, attributes, NLM_F_CREATE | NLM_F_APPEND);
}

/** Asks for one set. @throws RangeError */
export function setRequest(table: NftTable, set: string): NetlinkRequest {
  return tableRequestFor('GET', 'set', table, [nameAttribute(NFTA_SET_NAME, set)]);
}

/** Asks, as a dump, for the elements of a set. @throws RangeError */
export function elementsRequest(table: NftTable, set: string): NetlinkRequest {
  return tableRequestFor('GET', 'element', table, [nameAttribute(NFTA_SET_NAME, set)]);
}

/** @returns undefined for a message of another kind. @throws MalformedMessage */
export function readTable(message: NetlinkMessage): NftTable | undefined {
  if (!isNewMessage(message, 'table')) return undefined;
  const { payload } = message;
  return {
    family: readNumber(payload, 0, payload.length, 1),
    name: textAttribute(readAttributes(payload, NFGENMSG_LENGTH), NFTA_TABLE),
  };
}

/** @returns the name of a chain; undefined when it is in another table. @throws MalformedMessage */
export function readChain(message: NetlinkMessage, table: string): string | undefined {
  if (!isNewMessage(message, 'chain')) return undefined;
  const attributes = readAttributes(message.payload, NFGENMSG_LENGTH);
  return textAttribute(attributes, NFTA_TABLE) === table
    ? textAttribute(attributes, NFTA_CHAIN_NAME)
    : undefined;
}

/** The answer to `setsRequest` or `setRequest`. @throws MalformedMessage */
export function readSet(message: NetlinkMessage): NftSet | undefined {
  if (!isNewMessage(message, 'set')) return undefined;
  const attributes = readAttributes(message.payload, NFGENMSG_LENGTH);
  return {
    name: textAttribute(attributes, NFTA_SET_NAME),
    flags: optionalNumber(attributes, NFTA_SET_FLAGS, 4) ?? 0,
  };
}

/**
 * What a notification tells; undefined for one of another kind (a trace).
 * @throws MalformedMessage
 */
export function readNotification(message: NetlinkMessage): NftNotification | undefined {
  const { type, payload, portId: port } = message;
  const told = notifications.get(type);
  if (told === undefined) return undefined;
  let table: string | undefined;
  // Of a generation, attribute 1 is its number.
  if (told.kind !== 'generation') {
    walkAttributes(payload, NFGENMSG_LENGTH, payload.length, (attribute, start, end) => {
      if (attribute === NFTA_TABLE) table = readText(payload, start, end);
    });
  }
  return { family: readNumber(payload, 0, payload.length, 1), table, ...told, portId: port };
}

/** Whether a message answers `elementsRequest`. */
export function isElementsMessage(message: NetlinkMessage): boolean {
  return isNewMessage(message, 'element');
}

/**
 * The generation, modulo 2^16, in which a message was made. Of a dump of elements all must have
 * one: the kernel does not set NLM_F_DUMP_INTR there (seen on 6.18).
 * @throws MalformedMessage
 */
export function genidOf({ payload }: NetlinkMessage): number {
  return readNumber(payload, NFGENMSG_RESOURCE, payload.length, 2);
}

/** Whether a message tells of an object of this kind. */
export function isNewMessage(message: NetlinkMessage, kind: NftKind): boolean {
  return message.type === messageType('NEW', kind);
}

/** @throws MalformedMessage when it is missing. */
export function textAttribute(attributes: ReadonlyMap<number, Buffer>, type: number): string {
  return readText(requiredAttribute(attributes, 'nf_tables', type));
}
