/** Encodes and decodes ipset entries. */
import { familyOf } from '../../api/addresses.ts';
import type { Protocol } from '../../api/objects.ts';
import { type AddressFormatter, addressBytes } from '../core/address.ts';
import { type Attribute, NLA_F_NET_BYTEORDER, walkAttributes } from '../core/attribute.ts';
import { encodeNumber, readNumber } from '../core/network-order.ts';
import { protocolNumbers, protocolOf } from '../core/protocol.ts';
import { nulTerminated, readText } from '../core/text.ts';

/**
 * An entry of an ipset. Its fields depend on the type of the set; the kernel refuses other
 * combinations (`IPSET_ERR_PROTOCOL`):
 *
 *     hash:ip            ip
 *     hash:ip,port       ip  protocol port
 *     hash:ip,port,ip    ip  protocol port  ip2
 *     hash:ip,port,net   ip  protocol port  ip2 (CIDR)
 *     hash:net,net       ip (CIDR)          ip2 (CIDR)
 *     hash:ip,mark       ip  mark
 *     bitmap:port        port
 *
 * Addresses are canonical text. A CIDR read from the kernel is canonical too, and has a prefix
 * length even for one address (`10.0.0.1/32`). A CIDR to send may be a bare address.
 */
export interface IpsetEntry {
  readonly ip?: string;
  /**
   * A number for a protocol that a Service cannot have. Only another program adds such an entry.
   */
  readonly protocol?: Protocol | number;
  readonly port?: number;
  /**
   * Last port of a range to add or delete. The kernel creates an entry for each port, so an entry
   * read from the kernel never has `portTo`.
   */
  readonly portTo?: number;
  readonly ip2?: string;
  /** 32-bit packet mark. */
  readonly mark?: number;
  /**
   * The mark that `SET --map-mark` sets on a packet, with a full 32-bit mask. Needs a set with
   * skbinfo. undefined if the entry has another mask.
   */
  readonly skbMark?: number;
  /** At most 255 bytes. Needs a set with comments. */
  readonly comment?: string;
}

/** linux/netfilter/ipset/ip_set.h */
const IPSET_ATTR_DATA = 7;
const IPSET_ATTR_ADT = 8;
const IPSET_ATTR_IP = 1;
const IPSET_ATTR_CIDR = 3;
const IPSET_ATTR_PORT = 4;
const IPSET_ATTR_PORT_TO = 5;
const IPSET_ATTR_PROTO = 7;
const IPSET_ATTR_MARK = 10;
const IPSET_ATTR_IP2 = 20;
const IPSET_ATTR_CIDR2 = 21;
const IPSET_ATTR_COMMENT = 26;
/** 64 bits: the mark, then its mask. */
const IPSET_ATTR_SKBMARK = 27;
const IPSET_ATTR_IPADDR_IPV4 = 1;
const IPSET_ATTR_IPADDR_IPV6 = 2;

const WHOLE_MARK = 0xffffffff;

/**
 * The nested attributes of an IPSET_ATTR_DATA that adds or deletes an entry.
 * @param withExtensions Whether to include the comment and `skbMark`.
 * @throws RangeError for a number or prefix length out of range. Prefix length 0 is out of range,
 * because the kernel refuses it in all these types. Use two halves instead: `0.0.0.0/1` and
 * `128.0.0.0/1`.
 */
export function entryAttributes(entry: IpsetEntry, withExtensions: boolean): Attribute[] {
  const { ip, protocol, port, portTo, ip2, mark, skbMark, comment } = entry;
  const attributes: Attribute[] = [];
  if (ip !== undefined) pushNet(attributes, ip, IPSET_ATTR_IP, IPSET_ATTR_CIDR);
  if (port !== undefined) attributes.push(networkOrderAttribute(IPSET_ATTR_PORT, port, 2));
  if (portTo !== undefined) {
    // The kernel would swap the two ports.
    if (port === undefined || portTo < port)
      throw new RangeError(`invalid port range ${port}-${portTo}`);
    attributes.push(networkOrderAttribute(IPSET_ATTR_PORT_TO, portTo, 2));
  }
  if (protocol !== undefined) {
    const value = typeof protocol === 'number' ? protocol : protocolNumbers[protocol];
    attributes.push({ type: IPSET_ATTR_PROTO, value: encodeNumber(value, 1) });
  }
  if (ip2 !== undefined) pushNet(attributes, ip2, IPSET_ATTR_IP2, IPSET_ATTR_CIDR2);
  if (mark !== undefined) attributes.push(networkOrderAttribute(IPSET_ATTR_MARK, mark, 4));
  if (comment !== undefined && withExtensions) {
    attributes.push({ type: IPSET_ATTR_COMMENT, value: nulTerminated(comment) });
  }
  if (skbMark !== undefined && withExtensions) {
    const value = Buffer.concat([encodeNumber(skbMark, 4), encodeNumber(WHOLE_MARK, 4)]);
    attributes.push({ type: IPSET_ATTR_SKBMARK | NLA_F_NET_BYTEORDER, value });
  }
  return attributes;
}

/** A number for which ipset requires the NLA_F_NET_BYTEORDER flag (ip_set_attr_netorder). */
export function networkOrderAttribute(type: number, value: number, size: 2 | 4): Attribute {
  return { type: type | NLA_F_NET_BYTEORDER, value: encodeNumber(value, size) };
}

function pushNet(attributes: Attribute[], text: string, type: number, cidrType: number): void {
  const slash = text.indexOf('/');
  const address = slash < 0 ? text : text.slice(0, slash);
  const inner = familyOf(address) === 'IPv4' ? IPSET_ATTR_IPADDR_IPV4 : IPSET_ATTR_IPADDR_IPV6;
  const bytes = addressBytes(address);
  attributes.push({ type, value: [{ type: inner | NLA_F_NET_BYTEORDER, value: bytes }] });
  if (slash < 0) return;
  const length = Number(text.slice(slash + 1));
  if (!(Number.isInteger(length) && length > 0 && length <= bytes.length * 8)) {
    throw new RangeError(`invalid prefix length in ${text}`);
  }
  attributes.push({ type: cidrType, value: encodeNumber(length, 1) });
}

/**
 * Reads the entries from the attributes of an IPSET_CMD_LIST, starting at `start`.
 * @throws MalformedMessage
 */
export function readEntries(bytes: Buffer, start: number, format: AddressFormatter): IpsetEntry[] {
  const entries: IpsetEntry[] = [];
  walkAttributes(bytes, start, bytes.length, (type, listStart, listEnd) => {
    if (type !== IPSET_ATTR_ADT) return;
    walkAttributes(bytes, listStart, listEnd, (inner, from, to) => {
      if (inner === IPSET_ATTR_DATA) entries.push(readEntry(bytes, from, to, format));
    });
  });
  return entries;
}

function readEntry(
  bytes: Buffer,
  start: number,
  end: number,
  format: AddressFormatter,
): IpsetEntry {
  const entry: { -readonly [K in keyof IpsetEntry]: IpsetEntry[K] } = {};
  let cidr: number | undefined;
  let cidr2: number | undefined;
  walkAttributes(bytes, start, end, (type, from, to) => {
    if (type === IPSET_ATTR_IP) entry.ip = readAddress(bytes, from, to, format);
    else if (type === IPSET_ATTR_PORT) entry.port = readNumber(bytes, from, to, 2);
    else if (type === IPSET_ATTR_PROTO) {
      const value = readNumber(bytes, from, to, 1);
      entry.protocol = protocolOf(value) ?? value;
    } else if (type === IPSET_ATTR_IP2) entry.ip2 = readAddress(bytes, from, to, format);
    else if (type === IPSET_ATTR_CIDR) cidr = readNumber(bytes, from, to, 1);
    else if (type === IPSET_ATTR_CIDR2) cidr2 = readNumber(bytes, from, to, 1);
    else if (type === IPSET_ATTR_MARK) entry.mark = readNumber(bytes, from, to, 4);
    else if (type === IPSET_ATTR_COMMENT) entry.comment = readText(bytes, from, to);
    else if (type === IPSET_ATTR_SKBMARK) {
      const mark = readNumber(bytes, from, to, 4);
      if (readNumber(bytes, from + 4, to, 4) === WHOLE_MARK) entry.skbMark = mark;
    }
  });
  if (cidr !== undefined && entry.ip !== undefined) entry.ip += `/${cidr}`;
  if (cidr2 !== undefined && entry.ip2 !== undefined) entry.ip2 += `/${cidr2}`;
  return entry;
}

function readAddress(bytes: Buffer, start: number, end: number, format: AddressFormatter): string {
  let text: string | undefined;
  walkAttributes(bytes, start, end, (_, from, to) => {
    text = format(bytes, from, to);
  });
  return text ?? format(bytes, start, start);
}
