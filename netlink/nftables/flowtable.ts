/** Encodes and decodes nf_tables messages about flowtables. */
import { type Attribute, readAttributes, walkAttributes } from '../core/attribute.ts';
import type { NetlinkMessage, NetlinkRequest } from '../core/message.ts';
import { encodeNumber } from '../core/network-order.ts';
import { NFGENMSG_LENGTH } from '../core/nfnetlink.ts';
import { readText } from '../core/text.ts';
import { hookAttributes } from './chain.ts';
import { NFTA_LIST_ELEM } from './element.ts';
import {
  isNewMessage,
  NFTA_TABLE,
  NLM_F_CREATE,
  nameAttribute,
  nftRequest,
  textAttribute,
} from './message.ts';
import type { NftFlowtable, NftTable } from './types.ts';

/** linux/netfilter/nf_tables.h */
const NFTA_FLOWTABLE_NAME = 2;
const NFTA_FLOWTABLE_HOOK = 3;
const NFTA_FLOWTABLE_HOOK_DEVS = 3;
const NFTA_FLOWTABLE_FLAGS = 7;
/** Counts packets in conntrack as ever. */
const NFT_FLOWTABLE_COUNTER = 2;
const NF_NETDEV_INGRESS = 0;
/** NFT_NETDEVICE_MAX is 256; a notification of the kernel has room for about 180. */
const DEVICES_PER_MESSAGE = 100;

/** Requests a dump of the flowtables of a table. @throws RangeError for an invalid name. */
export function flowtablesRequest(table: NftTable): NetlinkRequest {
  return nftRequest('GET', 'flowtable', table);
}

/** Reads a reply to `flowtablesRequest`; undefined for a flowtable of another table. @throws MalformedMessage */
export function readFlowtable(message: NetlinkMessage, table: string): NftFlowtable | undefined {
  if (!isNewMessage(message, 'flowtable')) return undefined;
  const attributes = readAttributes(message.payload, NFGENMSG_LENGTH);
  if (textAttribute(attributes, NFTA_TABLE) !== table) return undefined;
  const hook = attributes.get(NFTA_FLOWTABLE_HOOK);
  const list = hook && readAttributes(hook, 0).get(NFTA_FLOWTABLE_HOOK_DEVS);
  const devices: string[] = [];
  if (list !== undefined)
    walkAttributes(list, 0, list.length, (_, start, end) =>
      devices.push(readText(list, start, end)),
    );
  return { name: textAttribute(attributes, NFTA_FLOWTABLE_NAME), devices };
}

/**
 * Creates a flowtable at the hook ingress without interfaces. An existing one keeps its interfaces; the kernel refuses
 * another priority (EOPNOTSUPP).
 * @throws RangeError for an invalid name.
 */
export function newFlowtableRequest(
  table: NftTable,
  flowtable: string,
  priority: number,
): NetlinkRequest {
  const attributes = [
    nameAttribute(NFTA_FLOWTABLE_NAME, flowtable),
    { type: NFTA_FLOWTABLE_HOOK, value: hookAttributes(NF_NETDEV_INGRESS, priority) },
    { type: NFTA_FLOWTABLE_FLAGS, value: encodeNumber(NFT_FLOWTABLE_COUNTER, 4) },
  ];
  return nftRequest('NEW', 'flowtable', table, attributes, NLM_F_CREATE);
}

/** Adds interfaces to an existing flowtable (NEW), or removes them (DEL). @throws RangeError for an invalid name. */
export function flowtableDevicesRequests(
  verb: 'NEW' | 'DEL',
  table: NftTable,
  flowtable: string,
  devices: readonly string[],
): NetlinkRequest[] {
  const requests: NetlinkRequest[] = [];
  for (let at = 0; at < devices.length; at += DEVICES_PER_MESSAGE) {
    const some = devices.slice(at, at + DEVICES_PER_MESSAGE);
    const list = some.map((device) => nameAttribute(NFTA_LIST_ELEM, device));
    const hook: Attribute = {
      type: NFTA_FLOWTABLE_HOOK,
      value: [{ type: NFTA_FLOWTABLE_HOOK_DEVS, value: list }],
    };
    const attributes = [nameAttribute(NFTA_FLOWTABLE_NAME, flowtable), hook];
    const flags = verb === 'NEW' ? NLM_F_CREATE : 0;
    requests.push(nftRequest(verb, 'flowtable', table, attributes, flags));
  }
  return requests;
}

/** Deletes a flowtable. @throws RangeError for an invalid name. */
export function deleteFlowtableRequest(table: NftTable, flowtable: string): NetlinkRequest {
  return nftRequest('DEL', 'flowtable', table, [nameAttribute(NFTA_FLOWTABLE_NAME, flowtable)]);
}
