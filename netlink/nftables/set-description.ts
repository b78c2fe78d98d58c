/**
 * The user data of sets: how nft shows keys and data. nf_tables stores it unread. A value is a TLV (libnftnl/udata.h): u8
 * type, u8 length, value. Numbers are in host order.
 *
 * It is byte for byte what nft 1.0.6 writes for `typeof` (`*_build_udata` in its src/), because other versions of nft abort
 * on what they do not know.
 */
import { u32 } from '../core/host-order.ts';

/** enum nftnl_udata_set_types */
const UDATA_SET = { keyByteOrder: 0, dataByteOrder: 1, key: 3, data: 4, dataInterval: 6 } as const;
/** enum set_typeof_types: the kind of an expression, and its fields. */
const TYPEOF = { kind: 0, fields: 1 } as const;
/** enum expr_types */
const EXPRESSION = {
  verdict: 1,
  payload: 7,
  meta: 9,
  ct: 12,
  concatenation: 13,
  numgen: 23,
} as const;
/** enum proto_desc_id, and the fields in the templates of proto.c */
const PAYLOAD_FIELDS = {
  'th sport': [11, 1],
  'th dport': [11, 2],
  'ip saddr': [12, 11],
  'ip daddr': [12, 12],
  'ip6 saddr': [13, 8],
  'ip6 daddr': [13, 9],
} as const;
/** PROTO_BASE_NETWORK_HDR */
const NETWORK_HEADER = 2;
/** NFT_CT_ID, and -1: no direction */
const CT_ID = 23;
const NO_DIRECTION = 0xffffffff;
const NFT_NG_RANDOM = 1;
/** enum byteorder */
const BYTE_ORDER = { none: 0, host: 1, network: 2 } as const;

/** Data types of nft (enum datatypes in include/datatype.h). */
export const DATATYPE = {
  /** nft prints hexadecimal digits. */
  invalid: 0,
  integer: 4,
  IPv4: 7,
  IPv6: 8,
  protocol: 12,
  port: 13,
  mark: 19,
  interfaceName: 41,
} as const;

/** nft's description of an expression, as in `typeof`. */
export type NftTypeof = Buffer;

/** A field of a key or of the data of a set. */
export interface NftField {
  /** See `DATATYPE`. */
  readonly datatype: number;
  /** Bytes, without padding. */
  readonly length: number;
  readonly byteOrder: 'host' | 'network';
  readonly typeof: NftTypeof;
}

/** The key of a set, or its data. */
export interface NftDescribed {
  readonly datatype: number;
  readonly length: number;
  readonly byteOrder: number;
  readonly typeof: NftTypeof;
}

function tlv(type: number, value: Buffer): Buffer {
  return Buffer.concat([Buffer.from([type, value.length]), value]);
}

function describe(kind: number, fields: readonly Buffer[]): NftTypeof {
  return Buffer.concat([
    tlv(TYPEOF.kind, u32(kind)),
    tlv(TYPEOF.fields, Buffer.concat(fields.map((field, index) => tlv(index, field)))),
  ]);
}

/** A field of the packet. */
export function typeofPayload(field: keyof typeof PAYLOAD_FIELDS): NftTypeof {
  return describe(EXPRESSION.payload, PAYLOAD_FIELDS[field].map(u32));
}

/** @param key as of `META_KEY`. */
export function typeofMeta(key: number): NftTypeof {
  return describe(EXPRESSION.meta, [u32(key)]);
}

/** `ct id` */
export function typeofConnectionId(): NftTypeof {
  return describe(EXPRESSION.ct, [u32(CT_ID), u32(NO_DIRECTION)]);
}

/** `numgen random mod …` */
export function typeofRandom(modulus: number): NftTypeof {
  return describe(EXPRESSION.numgen, [u32(NFT_NG_RANDOM), u32(modulus), u32(0)]);
}

/** Bits of a data type in the number of a concatenation (TYPE_BITS). */
const TYPE_BITS = 6;
const FIELD_ALIGNMENT = 4;

/** Bytes of a field in a concatenation. */
export function paddedLength({ length }: Pick<NftField, 'length'>): number {
  return Math.ceil(length / FIELD_ALIGNMENT) * FIELD_ALIGNMENT;
}

/** Describes a field, or a concatenation of fields. */
export function describeFields(fields: readonly NftField[]): NftDescribed {
  const [first] = fields;
  if (first !== undefined && fields.length === 1)
    return { ...first, byteOrder: BYTE_ORDER[first.byteOrder] };
  const described = fields.map((field, index) => tlv(index, field.typeof));
  return {
    datatype: fields.reduce((all, { datatype }) => (all << TYPE_BITS) | datatype, 0),
    length: fields.reduce((sum, field) => sum + paddedLength(field), 0),
    byteOrder: BYTE_ORDER.none,
    typeof: Buffer.concat([
      tlv(TYPEOF.kind, u32(EXPRESSION.concatenation)),
      tlv(TYPEOF.fields, Buffer.concat(described)),
    ]),
  };
}

/**
 * Describes a key that is one number, whatever its fields: nft has no words for ranges of such a key, and some versions
 * abort if fields are described. The bytes are of the network header, which nft takes for a number.
 */
export function describeNumber(fields: readonly NftField[]): NftDescribed {
  const length = fields.reduce((sum, field) => sum + paddedLength(field), 0);
  const [unknownHeader, unknownField, offset] = [0, 0, 0];
  const bits = length * 8;
  return {
    datatype: DATATYPE.integer,
    length,
    byteOrder: BYTE_ORDER.network,
    typeof: describe(
      EXPRESSION.payload,
      [unknownHeader, unknownField, NETWORK_HEADER, offset, bits].map(u32),
    ),
  };
}

/** NFT_DATA_VERDICT, and the size of struct nft_verdict. */
const VERDICT: NftDescribed = {
  datatype: 0xffffff00,
  length: 16,
  byteOrder: BYTE_ORDER.none,
  typeof: describe(EXPRESSION.verdict, []),
};

/** Describes the data of a map. */
export function describeData(data: 'verdict' | readonly NftField[]): NftDescribed {
  return data === 'verdict' ? VERDICT : describeFields(data);
}

/** The user data of a set, or of a map with data. */
export function setUserData(key: NftDescribed, data: NftDescribed | undefined): Buffer {
  return Buffer.concat([
    tlv(UDATA_SET.keyByteOrder, u32(key.byteOrder)),
    ...(data === undefined ? [] : [tlv(UDATA_SET.dataByteOrder, u32(data.byteOrder))]),
    tlv(UDATA_SET.key, key.typeof),
    ...(data === undefined
      ? []
      : [tlv(UDATA_SET.data, data.typeof), tlv(UDATA_SET.dataInterval, u32(0))]),
  ]);
}
