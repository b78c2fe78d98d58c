/** Named counters of nf_tables. */
import { type Attribute, readAttributes, requiredAttribute } from '../core/attribute.ts';
import type { NetlinkMessage, NetlinkRequest } from '../core/message.ts';
import { encodeNumber, optionalNumber } from '../core/network-order.ts';
import { NFGENMSG_LENGTH } from '../core/nfnetlink.ts';
import {
  isNewMessage,
  NFTA_TABLE,
  NLM_F_CREATE,
  nameAttribute,
  nftRequest,
  textAttribute,
} from './message.ts';
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

/**
 * Creates a counter. An existing one keeps its values.
 * @throws RangeError for an invalid name.
 */
export function newCounterRequest(
  table: NftTable,
  counter: string,
  packets = 0n,
  bytes = 0n,
): NetlinkRequest {
  const data: Attribute[] = [
    { type: NFTA_COUNTER_BYTES, value: u64(bytes) },
    { type: NFTA_COUNTER_PACKETS, value: u64(packets) },
  ];
  const attributes = [
    nameAttribute(NFTA_OBJ_NAME, counter),
    ofCounters,
    { type: NFTA_OBJ_DATA, value: data },
  ];
  return nftRequest('NEW', 'object', table, attributes, NLM_F_CREATE);
}

function u64(value: bigint): Buffer {
  const bytes = Buffer.allocUnsafe(8);
  bytes.writeBigUInt64BE(value);
  return bytes;
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
