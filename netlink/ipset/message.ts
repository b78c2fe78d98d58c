/** Encodes and decodes ipset messages. */
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
 * The supported types, each with its highest revision in Linux 6.18 (IPSET_TYPE_REV_MAX in
 * net/netfilter/ipset/). A revision only adds optional attributes. Requests are therefore the same
 * for all revisions since the revision that added skbinfo (Linux 3.18).
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

/** Parameters of a set to create. */
export interface IpsetSpec {
  /** 1 to 31 bytes. */
  readonly name: string;
  readonly type: IpsetType;
  /** Ignored for bitmap:port, which holds ports of all protocols. */
  readonly family: IpFamily;
  /** Whether entries can have a mark (`skbMark`). */
  readonly skbinfo: boolean;
  /** Whether entries can have a comment. Default: false. */
  readonly comments?: boolean;
  /** Ignored for bitmap:port, which always has room for all ports. */
  readonly maxElements: number;
}

/** Header of an existing set, of any type. */
export interface IpsetHeader {
  readonly name: string;
  /** An IpsetType or an unsupported type. */
  readonly type: string;
  /** undefined for types without a family. */
  readonly family: IpFamily | undefined;
  readonly revision: number;
  readonly skbinfo: boolean;
  readonly comments: boolean;
  /** undefined for bitmap and list types. */
  readonly maxElements: number | undefined;
  readonly elements: number;
  /**
   * Number of rules and list sets that refer to the set. A set with references cannot be destroyed.
   */
  readonly references: number;
}

/** linux/netfilter/ipset/ip_set.h. All kernels support version 6 of the protocol. */
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
/** Attributes inside IPSET_ATTR_DATA. */
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
 * Without this flag the kernel sets IPSET_FLAG_EXIST (flag_exist in ip_set_core.c). Then creating
 * an existing set, adding an existing entry and deleting a missing entry are not errors.
 */
const NLM_F_EXCL = 0x200;

/** Requests the supported protocol versions. */
export function protocolRequest(): NetlinkRequest {
  return command(IPSET_CMD_PROTOCOL, []);
}

/** Whether the kernel supports IPSET_PROTOCOL, from the reply to `protocolRequest`. */
export function readProtocol(payload: Buffer): boolean {
  const attributes = readAttributes(payload, NFGENMSG_LENGTH);
  const newest = requiredNumber(attributes, IPSET_ATTR_PROTOCOL);
  const oldest = optionalNumber(attributes, IPSET_ATTR_PROTOCOL_MIN, 1) ?? newest;
  return oldest <= IPSET_PROTOCOL && newest >= IPSET_PROTOCOL;
}

/** Requests the supported revisions of a type. */
export function typeRequest(type: IpsetType, family: IpFamily): NetlinkRequest {
  return command(IPSET_CMD_TYPE, [
    { type: IPSET_ATTR_TYPENAME, value: nulTerminated(type) },
    { type: IPSET_ATTR_FAMILY, value: encodeNumber(typeFamily(type, family), 1) },
  ]);
}

/**
 * The highest revision that both the kernel and this module support, from the reply to
 * `typeRequest`.
 */
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
  // Without NLM_F_EXCL, kernels differ on whether a missing set is an error.
  return command(IPSET_CMD_DESTROY, [setName(name)], NLM_F_EXCL);
}

/** @throws RangeError */
export function swapRequest(from: string, to: string): NetlinkRequest {
  return command(IPSET_CMD_SWAP, [setName(from), setName(to, IPSET_ATTR_SETNAME2)]);
}

/** Requests a dump of the headers of all sets. */
export function headersRequest(): NetlinkRequest {
  return command(IPSET_CMD_LIST, [
    networkOrderAttribute(IPSET_ATTR_FLAGS, IPSET_FLAG_LIST_HEADER, 4),
  ]);
}

/** Requests a dump of a set with its entries. @throws RangeError */
export function entriesRequest(name: string): NetlinkRequest {
  return command(IPSET_CMD_LIST, [setName(name)]);
}

/**
 * Adds an entry, replaces the extensions of an existing entry, or deletes an entry.
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
 * Reads the header of a set from a reply to `headersRequest`.
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
  // The kernel accepts either IP family in this header.
  return nfnetlinkRequest(NFNL_SUBSYS_IPSET | type, AF_INET, [protocol, ...attributes], flags);
}

/** Rejects an empty name: destroy or flush without a name would apply to all sets. */
function setName(name: string, type = IPSET_ATTR_SETNAME): Attribute {
  return { type, value: boundedName('ipset name', name, IPSET_MAXNAMELEN) };
}

function typeFamily(type: IpsetType, family: IpFamily): number {
  return type === 'bitmap:port' ? NFPROTO_UNSPEC : addressFamily(family);
}

function requiredNumber(attributes: ReadonlyMap<number, Buffer>, type: number): number {
  return requiredAttribute(attributes, 'ipset', type, 1).readUInt8();
}
