/** Named counters of nf_tables. */
import { type Attribute, readAttributes, requiredAttribute } from '../core/attribute.ts';
import type { NetlinkMessage, NetlinkRequest } from '../core/message.ts';
import { encodeNumber, optionalNumber } from '../core/network-order.ts';
import { NFGENMSG_LENGTH } from '../core/nfnetlink.ts';
import { isNewMessage, NFTA_TABLE, nameAttribute, nftRequest, textAttribute } from './message.ts';
import type { NftTable } from './types.ts';

/** linux/netfilter/nf_tables.h */
export const NFT_OBJECT_COUNTER = 1;
const NFTA_OBJ_NAME = 2;
const NFTA_OBJ_TYPE = 3;
const NFTA_OBJ_DATA = 4;
const NFTA_COUNTER_BYTES = 1;
const NFTA_COUNTER_PACKETS = 2;

/** A named counter of a table. */
export interface NftCounter {
  readonly name: string;
  readonly packets: bigint;
  readonly bytes: bigint;
}

const ofCounters: Attribute = { type: NFTA_OBJ_TYPE, value: encodeNumber(NFT_OBJECT_COUNTER, 4) };

/** Requests a dump of the counters of a table. @throws RangeError */
export function countersRequest(table: NftTable): NetlinkRequest {
  return nftRequest('GET', 'object', table, [ofCounters]);
}

/** Deletes a counter that no rule refers to. @throws RangeError */
export function deleteCounterRequest(table: NftTable, counter: string): NetlinkRequest {
  return nftRequest('DEL', 'object', table, [ofCounters, nameAttribute(NFTA_OBJ_NAME, counter)]);
}

/**
 * Reads a reply to `countersRequest`.
 * @returns undefined for another kind of object, or a counter of another table.
 * @throws MalformedMessage
 */
export function readCounter(message: NetlinkMessage, table: string): NftCounter | undefined {
  if (!isNewMessage(message, 'object')) return undefined;
  const attributes = readAttributes(message.payload, NFGENMSG_LENGTH);
  if (textAttribute(attributes, NFTA_TABLE) !== table) return undefined;
  if (optionalNumber(attributes, NFTA_OBJ_TYPE, 4) !== NFT_OBJECT_COUNTER) return undefined;
  const data = readAttributes(requiredAttribute(attributes, 'nf_tables', NFTA_OBJ_DATA), 0);
  const count = (type: number) => requiredAttribute(data, 'nf_tables', type, 8).readBigUInt64BE();
  return {
    name: textAttribute(attributes, NFTA_OBJ_NAME),
    packets: count(NFTA_COUNTER_PACKETS),
    bytes: count(NFTA_COUNTER_BYTES),
  };
}
