/** Encodes nf_tables messages that create sets and maps. */
import type { Attribute } from '../core/attribute.ts';
import type { NetlinkRequest } from '../core/message.ts';
import { encodeNumber } from '../core/network-order.ts';
import { NFTA_LIST_ELEM } from './element.ts';
import {
  NFTA_SET_FLAGS,
  NFTA_SET_NAME,
  NLM_F_CREATE,
  nameAttribute,
  nftRequest,
} from './message.ts';
import {
  describeData,
  describeFields,
  describeNumber,
  type NftField,
  setUserData,
} from './set-description.ts';
import { NFT_SET_FLAGS, type NftTable } from './types.ts';

/** linux/netfilter/nf_tables.h */
const NFTA_SET_KEY_TYPE = 4;
export const NFTA_SET_KEY_LEN = 5;
export const NFTA_SET_DATA_TYPE = 6;
const NFTA_SET_DATA_LEN = 7;
const NFTA_SET_DESC = 9;
const NFTA_SET_ID = 10;
const NFTA_SET_TIMEOUT = 11;
const NFTA_SET_USERDATA = 13;
const NFTA_SET_DESC_SIZE = 1;
const NFTA_SET_DESC_CONCAT = 2;
const NFTA_SET_FIELD_LEN = 1;

/** A set or map to create. */
export interface NftSetDeclaration {
  readonly name: string;
  readonly key: readonly NftField[];
  /** undefined for a set. */
  readonly data?: 'verdict' | readonly NftField[] | undefined;
  /** Elements may be intervals. */
  readonly isInterval?: boolean | undefined;
  /** The key as a whole is one number; see `NftElementChange.isOrdered`. */
  readonly isOrdered?: boolean | undefined;
  /** Packets may add elements. */
  readonly isDynamic?: boolean | undefined;
  /** Elements may have timeouts. */
  readonly hasTimeouts?: boolean | undefined;
  /** Timeout of elements that have none of their own. */
  readonly timeoutSeconds?: number | undefined;
  /** Maximum number of elements. */
  readonly size?: number | undefined;
}

/** A set as the kernel takes it. */
export interface NftSetAttributes {
  readonly name: string;
  readonly flags: number;
  readonly key: NftSetType;
  readonly data?: NftSetType | undefined;
  /** Bytes of the fields of a concatenation of intervals. */
  readonly fieldLengths?: readonly number[] | undefined;
  readonly timeoutMs?: number | undefined;
  readonly size?: number | undefined;
  readonly userData?: Buffer;
}

interface NftSetType {
  readonly datatype: number;
  readonly length: number;
}

/**
 * Creates a set or map if it does not exist. The kernel refuses another type of an existing one (EEXIST).
 * @throws RangeError for an invalid name.
 */
export function declareSetRequest(table: NftTable, set: NftSetDeclaration): NetlinkRequest {
  return newSetRequest(table, setAttributes(set));
}

/** A declaration as the kernel takes it. */
export function setAttributes(set: NftSetDeclaration): NftSetAttributes {
  const { name, size, timeoutSeconds, isOrdered = false } = set;
  const key = isOrdered ? describeNumber(set.key) : describeFields(set.key);
  const data = set.data && describeData(set.data);
  const isConcatenation = set.isInterval === true && !isOrdered && set.key.length > 1;
  const flags =
    (set.isInterval === true ? NFT_SET_FLAGS.interval : 0) |
    (data === undefined ? 0 : NFT_SET_FLAGS.map) |
    (set.hasTimeouts === true ? NFT_SET_FLAGS.timeout : 0) |
    (set.isDynamic === true ? NFT_SET_FLAGS.dynamic : 0) |
    (isConcatenation ? NFT_SET_FLAGS.concatenation : 0);
  return {
    name,
    flags,
    key,
    data,
    size,
    fieldLengths: isConcatenation ? set.key.map(({ length }) => length) : undefined,
    timeoutMs: timeoutSeconds && timeoutSeconds * 1000,
    userData: setUserData(key, data),
  };
}

/** @throws RangeError for an invalid name. */
export function newSetRequest(table: NftTable, set: NftSetAttributes): NetlinkRequest {
  const { name, flags, key, data, fieldLengths = [], timeoutMs, size, userData } = set;
  const description: Attribute[] = [];
  if (size !== undefined) description.push(be32(NFTA_SET_DESC_SIZE, size));
  if (fieldLengths.length > 0)
    description.push({
      type: NFTA_SET_DESC_CONCAT,
      value: fieldLengths.map((length) => ({
        type: NFTA_LIST_ELEM,
        value: [be32(NFTA_SET_FIELD_LEN, length)],
      })),
    });
  const attributes = [
    nameAttribute(NFTA_SET_NAME, name),
    be32(NFTA_SET_FLAGS, flags),
    be32(NFTA_SET_KEY_TYPE, key.datatype),
    be32(NFTA_SET_KEY_LEN, key.length),
    ...(data === undefined
      ? []
      : [be32(NFTA_SET_DATA_TYPE, data.datatype), be32(NFTA_SET_DATA_LEN, data.length)]),
    // The kernel requires a number. Only references within the transaction need distinct ones; these are by name.
    be32(NFTA_SET_ID, 1),
    ...(description.length === 0 ? [] : [{ type: NFTA_SET_DESC, value: description }]),
    ...(timeoutMs === undefined
      ? []
      : [{ type: NFTA_SET_TIMEOUT, value: encodeNumber(timeoutMs, 8) }]),
    ...(userData === undefined ? [] : [{ type: NFTA_SET_USERDATA, value: userData }]),
  ];
  return nftRequest('NEW', 'set', table, attributes, NLM_F_CREATE);
}

function be32(type: number, value: number): Attribute {
  return { type, value: encodeNumber(value, 4) };
}
