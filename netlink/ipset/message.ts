/** ipset on the wire: requests for sets, and what the kernel tells of them. */
import type { IpFamily } from '../../api/objects.ts';
import { AF_INET, addressFamily, ipFamilyOf } from '../core/address.ts';
import { type Attribute, readAttributes, requiredAttribute } from '../core/attribute.ts';
import type { NetlinkRequest } from '../core/message.ts';
import { encodeNumber, optionalNumber } from '../core/network-order.ts';
import {
  NFGENMSG_LENGTH,
  NFNL_SUBSYS_IPSET,
  NFPROTO_UNSPEC,
  nfnetlinkRequest,
} from '../core/nfnetlink.ts';
import { boundedName, nulTerminated, readText } from '../core/text.ts';
import { entryAttributes, type IpsetEntry, networkOrderAttribute } from './entry.ts';

/**
 * The types that can be created, each with the highest revision whose meaning is known here: those
 * of Linux 6.18 (IPSET_TYPE_REV_MAX in net/netfilter/ipset/). A revision only adds attributes that
 * are optional, so requests are the same for all from that of skbinfo on, which Linux 3.18 has.
 */
const MAX_REVISIONS = {
  'hash:ip': 6,
  'hash:ip,port': 7,
  'hash:ip,port,ip': 6,
  'hash:ip,port,net': 8,
  'hash:net,net': 4,
  'hash:ip,mark': 3,
  'bitmap:port': 3,
} as const;

export type IpsetType = keyof typeof MAX_REVISIONS;

/** A set to be created. */
export interface IpsetSpec {
  /** 1 to 31 bytes. */
  readonly name: string;
  readonly type: IpsetType;
  /** bitmap:port has none, and holds ports of all protocols. */
  readonly family: IpFamily;
  /** Whether entries carry marks (`skbMark`). */
  readonly skbinfo: boolean;
  /** Whether entries carry a comment; default: no. */
  readonly comments?: boolean;
  /** bitmap:port always has room for all ports. */
  readonly maxElements: number;
}

/** A set that there is, of whatever type. */
export interface IpsetHeader {
  readonly name: string;
  /** A SetType, or one that is not known here. */
  readonly type: string;
  /** undefined for types that have none. */
  readonly family: IpFamily | undefined;
  readonly revision: number;
  readonly skbinfo: boolean;
  readonly comments: boolean;
  /** undefined for bitmaps and lists. */
  readonly maxElements: number | undefined;
  readonly elements: number;
  /** Rules and lists that refer to it: as long as there are any, it cannot be destroyed. */
  readonly references: number;
}

/** linux/netfilter/ipset/ip_set.h. Version 6 of the protocol is what all kernels speak. */
const IPSET_PROTOCOL = 6;
const IPSET_CMD_PROTOCOL = 1;
const IPSET_CMD_CREATE = 2;
const IPSET_CMD_DESTROY = 3;
const IPSET_CMD_SWAP = 6;
const IPSET_CMD_LIST = 7;
const IPSET_CMD_ADD = 9;
const IPSET_CMD_DEL = 10;
const IPSET_CMD_TYPE = 13;

const IPSET_ATTR_PROTOCOL = 1;
const IPSET_ATTR_SETNAME = 2;
const IPSET_ATTR_TYPENAME = 3;
const IPSET_ATTR_SETNAME2 = 3;
const IPSET_ATTR_REVISION = 4;
const IPSET_ATTR_FAMILY = 5;
const IPSET_ATTR_FLAGS = 6;
const IPSET_ATTR_DATA = 7;
const IPSET_ATTR_PROTOCOL_MIN = 10;
/** Inside IPSET_ATTR_DATA. */
const IPSET_ATTR_PORT = 4;
const IPSET_ATTR_PORT_TO = 5;
const IPSET_ATTR_CADT_FLAGS = 8;
const IPSET_ATTR_MAXELEM = 19;
const IPSET_ATTR_ELEMENTS = 24;
const IPSET_ATTR_REFERENCES = 25;

const IPSET_FLAG_LIST_HEADER = 1 << 2;
const IPSET_FLAG_WITH_COMMENT = 1 << 4;
const IPSET_FLAG_WITH_SKBINFO = 1 << 6;
const IPSET_MAXNAMELEN = 32;

/**
 * Without it the kernel sets IPSET_FLAG_EXIST: to create a set that is there, and to add an entry
 * that is there or delete one that is not, is no error (flag_exist in ip_set_core.c).
 */
const NLM_F_EXCL = 0x200;

/** Asks which versions of the protocol the kernel speaks. */
export function protocolRequest(): NetlinkRequest {
  return command(IPSET_CMD_PROTOCOL, []);
}

/** Whether an answer to `protocolRequest` includes the version that is spoken here. */
export function readProtocol(payload: Buffer): boolean {
  const attributes = readAttributes(payload, NFGENMSG_LENGTH);
  const newest = requiredNumber(attributes, IPSET_ATTR_PROTOCOL);
  const oldest = optionalNumber(attributes, IPSET_ATTR_PROTOCOL_MIN, 1) ?? newest;
  return oldest <= IPSET_PROTOCOL && newest >= IPSET_PROTOCOL;
}

/** Asks which revisions of a type the kernel has. */
export function typeRequest(type: IpsetType, family: IpFamily): NetlinkRequest {
  return command(IPSET_CMD_TYPE, [
    { type: IPSET_ATTR_TYPENAME, value: nulTerminated(type) },
    { type: IPSET_ATTR_FAMILY, value: encodeNumber(typeFamily(type, family), 1) },
  ]);
}

/** The highest revision that both the kernel, by its answer to `typeRequest`, and this side know. */
export function readRevision(payload: Buffer, type: IpsetType): number {
  const newest = requiredNumber(readAttributes(payload, NFGENMSG_LENGTH), IPSET_ATTR_REVISION);
  return Math.min(newest, MAX_REVISIONS[type]);
}

/** @throws RangeError */
export function createRequest(spec: IpsetSpec, revision: number): NetlinkRequest {
  const { name, type, family, skbinfo, comments = false, maxElements } = spec;
  const data =
    type === 'bitmap:port'
      ? [
          networkOrderAttribute(IPSET_ATTR_PORT, 0, 2),
          networkOrderAttribute(IPSET_ATTR_PORT_TO, 0xffff, 2),
        ]
      : [networkOrderAttribute(IPSET_ATTR_MAXELEM, maxElements, 4)];
  const flags = (skbinfo ? IPSET_FLAG_WITH_SKBINFO : 0) | (comments ? IPSET_FLAG_WITH_COMMENT : 0);
  if (flags !== 0) data.push(networkOrderAttribute(IPSET_ATTR_CADT_FLAGS, flags, 4));
  const attributes: Attribute[] = [
    setName(name),
    { type: IPSET_ATTR_TYPENAME, value: nulTerminated(type) },
    { type: IPSET_ATTR_REVISION, value: encodeNumber(revision, 1) },
    { type: IPSET_ATTR_FAMILY, value: encodeNumber(typeFamily(type, family), 1) },
    { type: IPSET_ATTR_DATA, value: data },
  ];
  return command(IPSET_CMD_CREATE, attributes, NLM_F_EXCL);
}

/** @throws RangeError */
export function destroyRequest(name: string): NetlinkRequest {
  // Kernels differ on whether a set that is not there is an error, unless told that it is.
  return command(IPSET_CMD_DESTROY, [setName(name)], NLM_F_EXCL);
}

/** @throws RangeError */
export function swapRequest(from: string, to: string): NetlinkRequest {
  return command(IPSET_CMD_SWAP, [setName(from), setName(to, IPSET_ATTR_SETNAME2)]);
}

/** Asks, as a dump, for the headers of all sets. */
export function headersRequest(): NetlinkRequest {
  return command(IPSET_CMD_LIST, [
    networkOrderAttribute(IPSET_ATTR_FLAGS, IPSET_FLAG_LIST_HEADER, 4),
  ]);
}

/** Asks, as a dump, for a set and its entries. @throws RangeError */
export function entriesRequest(name: string): NetlinkRequest {
  return command(IPSET_CMD_LIST, [setName(name)]);
}

/**
 * Adds an entry, or gives one that is there the extensions of this one; or deletes it.
 * @throws RangeError
 */
export function entryRequest(op: 'add' | 'delete', set: string, entry: IpsetEntry): NetlinkRequest {
  const data = entryAttributes(entry, op === 'add');
  return command(op === 'add' ? IPSET_CMD_ADD : IPSET_CMD_DEL, [
    setName(set),
    { type: IPSET_ATTR_DATA, value: data },
  ]);
}

/**
 * Reads a message that answers `headersRequest`.
 * @throws MalformedMessage
 */
export function readHeader(payload: Buffer): IpsetHeader {
  const attributes = readAttributes(payload, NFGENMSG_LENGTH);
  const bytes = attributes.get(IPSET_ATTR_DATA);
  const data = bytes === undefined ? new Map<number, Buffer>() : readAttributes(bytes, 0);
  const flags = optionalNumber(data, IPSET_ATTR_CADT_FLAGS, 4) ?? 0;
  return {
    name: readText(requiredAttribute(attributes, 'ipset', IPSET_ATTR_SETNAME)),
    type: readText(requiredAttribute(attributes, 'ipset', IPSET_ATTR_TYPENAME)),
    family: ipFamilyOf(requiredNumber(attributes, IPSET_ATTR_FAMILY)),
    revision: requiredNumber(attributes, IPSET_ATTR_REVISION),
    skbinfo: (flags & IPSET_FLAG_WITH_SKBINFO) !== 0,
    comments: (flags & IPSET_FLAG_WITH_COMMENT) !== 0,
    maxElements: optionalNumber(data, IPSET_ATTR_MAXELEM, 4),
    elements: optionalNumber(data, IPSET_ATTR_ELEMENTS, 4) ?? 0,
    references: optionalNumber(data, IPSET_ATTR_REFERENCES, 4) ?? 0,
  };
}

function command(type: number, attributes: readonly Attribute[], flags = 0): NetlinkRequest {
  const protocol = { type: IPSET_ATTR_PROTOCOL, value: encodeNumber(IPSET_PROTOCOL, 1) };
  // The family may be any of the two.
  return nfnetlinkRequest(NFNL_SUBSYS_IPSET | type, AF_INET, [protocol, ...attributes], flags);
}

/** Never empty: destroying or flushing without a name would do it to all sets. */
function setName(name: string, type = IPSET_ATTR_SETNAME): Attribute {
  return { type, value: boundedName('name of a set', name, IPSET_MAXNAMELEN) };
}

function typeFamily(type: IpsetType, family: IpFamily): number {
  return type === 'bitmap:port' ? NFPROTO_UNSPEC : addressFamily(family);
}

function requiredNumber(attributes: ReadonlyMap<number, Buffer>, type: number): number {
  return requiredAttribute(attributes, 'ipset', type, 1).readUInt8();
}
