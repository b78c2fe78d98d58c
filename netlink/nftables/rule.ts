/** Encodes rules of nf_tables from expressions, named as in linux/netfilter/nf_tables.h. */
import type { IpFamily } from '../../api/objects.ts';
import { addressFamily } from '../core/address.ts';
import { type Attribute, encodeAttributes } from '../core/attribute.ts';
import { u16 } from '../core/host-order.ts';
import { encodeNumber } from '../core/network-order.ts';
import { NFT_OBJECT_COUNTER } from './counter.ts';
import {
  NFTA_DATA_VALUE,
  NFTA_DATA_VERDICT,
  NFTA_LIST_ELEM,
  NFTA_VERDICT_CHAIN,
  NFTA_VERDICT_CODE,
  VERDICT_CODES,
} from './element.ts';
import { nameAttribute as name } from './message.ts';
import type { NftVerdict } from './types.ts';

/** An encoded expression of a rule. */
export type NftExpression = Attribute;

/** A 4-byte register, 0 to 15. Longer values also occupy the following registers. */
export type Register = number;

/** NFT_REG32_00. */
export const REGISTER_BASE = 8;
const VERDICT_REGISTER = 0;

/** Registers 1 to 4 have 16 bytes; registers from 8 on are the same memory in units of 4 bytes. */
export function registerNumber(register: number): number {
  const isWide = register > 0 && register < REGISTER_BASE;
  return isWide ? REGISTER_BASE + (register - 1) * 4 : register;
}

export const NFTA_EXPR_NAME = 1;
export const NFTA_EXPR_DATA = 2;

/** enum nft_payload_bases: the header that offsets are relative to. */
export const PAYLOAD_BASE = { network: 1, transport: 2 } as const;
/** enum nft_meta_keys */
export const META_KEY = { mark: 3, inputName: 6, outputName: 7, trace: 12, protocol: 16 } as const;
/** enum nft_ct_keys */
export const CT_KEY = {
  state: 0,
  direction: 1,
  status: 2,
  sourcePort: 11,
  destinationPort: 12,
  packets: 14,
  source: { IPv4: 19, IPv6: 21 },
  destination: { IPv4: 20, IPv6: 22 },
} as const;
/** enum ip_conntrack_dir */
export const CT_DIRECTION = { original: 0, reply: 1 } as const;

const CMP_EQ = 0;
const CMP_NEQ = 1;
const CMP_GT = 4;
const NFT_BYTEORDER_HTON = 1;
const NFT_RANGE_EQ = 0;
const NFT_LOOKUP_F_INV = 1;
const NFT_NAT_DNAT = 1;
const NFT_NG_RANDOM = 1;
const NFT_DYNSET_OP_UPDATE = 1;
const NF_NAT_RANGE_PROTO_RANDOM_FULLY = 16;
const NFT_FIB_RESULT_OIF = 1;
const NFT_FIB_RESULT_ADDRTYPE = 3;
const NFTA_FIB_F_SADDR = 1;
const NFTA_FIB_F_DADDR = 2;
const NFTA_FIB_F_MARK = 4;
const NFTA_FIB_F_IIF = 8;
/** Revision of xt_NFQUEUE with `struct xt_NFQ_info_v3`, Linux 3.10. */
const NFQUEUE_REVISION = 3;
const NFQ_FLAG_BYPASS = 1;
const NFT_HASH_JENKINS = 0;
const NFT_REJECT_ICMP_UNREACH = 0;
const NFT_REJECT_TCP_RST = 1;
/** ICMP_PORT_UNREACH, ICMPV6_PORT_UNREACH */
const PORT_UNREACHABLE: Readonly<Record<IpFamily, number>> = { IPv4: 3, IPv6: 4 };

/** payload: loads bytes of the packet into a register. */
export function payload(
  to: Register,
  base: (typeof PAYLOAD_BASE)[keyof typeof PAYLOAD_BASE],
  offset: number,
  length: number,
): NftExpression {
  return expression('payload', [register(1, to), be32(2, base), be32(3, offset), be32(4, length)]);
}

/** Offset of the checksum in the IPv4 header. IPv6 has none. */
const IPV4_CHECKSUM_OFFSET = 10;
const NFT_PAYLOAD_CSUM_NONE = 0;
const NFT_PAYLOAD_CSUM_INET = 1;
const NFT_PAYLOAD_L4CSUM_PSEUDOHDR = 1;

/**
 * payload: writes an address of the IP header, and updates the checksums of the IP header and of TCP or UDP. A UDP checksum
 * of zero (IPv4: none) stays zero.
 */
export function writeAddressField(
  from: Register,
  family: IpFamily,
  offset: number,
  length: number,
): NftExpression {
  const isIpv4 = family === 'IPv4';
  return expression('payload', [
    be32(2, PAYLOAD_BASE.network),
    be32(3, offset),
    be32(4, length),
    register(5, from),
    be32(6, isIpv4 ? NFT_PAYLOAD_CSUM_INET : NFT_PAYLOAD_CSUM_NONE),
    be32(7, isIpv4 ? IPV4_CHECKSUM_OFFSET : 0),
    be32(8, NFT_PAYLOAD_L4CSUM_PSEUDOHDR),
  ]);
}

/** notrack: the packet gets no conntrack entry. Only in hooks before conntrack, priority raw. */
export function notrack(): NftExpression {
  return expression('notrack', []);
}

/** meta: loads metadata of the packet. */
export function meta(to: Register, key: number): NftExpression {
  return expression('meta', [register(1, to), be32(2, key)]);
}

export function setMark(from: Register): NftExpression {
  return expression('meta', [be32(2, META_KEY.mark), register(3, from)]);
}

/** meta: traces the packet from now on (`meta nftrace set 1`), if the register has a byte other than 0. */
export function setTrace(from: Register): NftExpression {
  return expression('meta', [be32(2, META_KEY.trace), register(3, from)]);
}

/** ct: loads a field of the conntrack entry. */
export function ct(to: Register, key: number, direction?: 0 | 1): NftExpression {
  const directionAttribute =
    direction === undefined ? [] : [{ type: 3, value: encodeNumber(direction, 1) }];
  return expression('ct', [register(1, to), be32(2, key), ...directionAttribute]);
}

/** cmp: continues the rule only if the register equals (or does not equal) the value. */
export function cmp(source: Register, value: Buffer, not = false): NftExpression {
  return expression('cmp', [register(1, source), be32(2, not ? CMP_NEQ : CMP_EQ), data(3, value)]);
}

/** cmp: continues the rule only if the register, in network order, is greater than the value. */
export function cmpGreater(source: Register, value: Buffer): NftExpression {
  return expression('cmp', [register(1, source), be32(2, CMP_GT), data(3, value)]);
}

/** byteorder: converts a number of `size` bytes from host order to network order, to compare which is greater. */
export function toNetworkOrder(which: Register, size: 2 | 4 | 8): NftExpression {
  const registers = [register(1, which), register(2, which)];
  return expression('byteorder', [
    ...registers,
    be32(3, NFT_BYTEORDER_HTON),
    be32(4, size),
    be32(5, size),
  ]);
}

/** flow_offload: adds the connection of the packet to a flowtable. Does nothing for a connection that is in one. */
export function flowOffload(flowtable: string): NftExpression {
  return expression('flow_offload', [name(1, flowtable)]);
}

/** bitwise: `register = (register & mask) ^ xor` */
export function bitwise(source: Register, mask: Buffer, xor: Buffer): NftExpression {
  return expression('bitwise', [
    register(1, source),
    register(2, source),
    be32(3, mask.length),
    data(4, mask),
    data(5, xor),
  ]);
}

/**
 * range: continues the rule only if the register, in network order, is between `first` and `last`,
 * inclusive.
 */
export function range(source: Register, first: Buffer, last: Buffer): NftExpression {
  return expression('range', [
    register(1, source),
    be32(2, NFT_RANGE_EQ),
    data(3, first),
    data(4, last),
  ]);
}

/** immediate: loads a constant, such as a part of a key. */
export function immediate(to: Register, value: Buffer): NftExpression {
  return expression('immediate', [register(1, to), data(2, value)]);
}

/** objref: counts the packet in a named counter of the table. */
export function counterReference(counter: string): NftExpression {
  return expression('objref', [be32(1, NFT_OBJECT_COUNTER), name(2, counter)]);
}

/** log: sends the start of the packet to the listeners of an nfnetlink_log group. */
export function log(group: number, prefix: string): NftExpression {
  return expression('log', [{ type: 1, value: encodeNumber(group, 2) }, name(2, prefix)]);
}

/**
 * limit: continues the rule for at most `rate` packets a second, and for a burst. The bucket belongs to the rule.
 */
export function limit(rate: number, burst: number): NftExpression {
  const second = { type: 2, value: encodeNumber(1, 8) };
  return expression('limit', [{ type: 1, value: encodeNumber(rate, 8) }, second, be32(3, burst)]);
}

/** lookup: continues the rule only if the set contains (or does not contain) the key. */
export function lookup(set: string, key: Register, not = false): NftExpression {
  const flags = not ? [be32(5, NFT_LOOKUP_F_INV)] : [];
  return expression('lookup', [name(1, set), register(2, key), ...flags]);
}

/** lookup: loads the map data of the key; ends the rule if the map has no such key. */
export function lookupData(map: string, key: Register, to: Register): NftExpression {
  return expression('lookup', [name(1, map), register(2, key), register(3, to)]);
}

/** lookup: executes the verdict that a verdict map has for the key. */
export function lookupVerdict(map: string, key: Register): NftExpression {
  return expression('lookup', [name(1, map), register(2, key), be32(3, VERDICT_REGISTER)]);
}

/** numgen: loads a random number from `first` to `first + among - 1`, in host byte order. */
export function numgenRandom(to: Register, among: number, first: number): NftExpression {
  const type = be32(3, NFT_NG_RANDOM);
  return expression('numgen', [register(1, to), be32(2, among), type, be32(4, first)]);
}

/**
 * hash: loads a number from `first` to `first + among - 1` that depends only on `length` bytes of a register and on the
 * seed (Jenkins' hash), in host byte order.
 */
export function jenkinsHash(
  from: Register,
  length: number,
  to: Register,
  among: number,
  seed: number,
  first: number,
): NftExpression {
  // The kernel lists no offset of 0.
  const offset = first === 0 ? [] : [be32(6, first)];
  return expression('hash', [
    register(1, from),
    register(2, to),
    be32(3, length),
    be32(4, among),
    be32(5, seed),
    ...offset,
    be32(7, NFT_HASH_JENKINS),
  ]);
}

export function verdict(what: NftVerdict): NftExpression {
  const code = be32(NFTA_VERDICT_CODE, VERDICT_CODES[what.kind] >>> 0);
  const chain = 'chain' in what ? [name(NFTA_VERDICT_CHAIN, what.chain)] : [];
  const value = [{ type: NFTA_DATA_VERDICT, value: [code, ...chain] }];
  return expression('immediate', [be32(1, VERDICT_REGISTER), { type: 2, value }]);
}

/**
 * nat: DNAT to an address.
 * @param port Register of the port; undefined keeps the port of the packet.
 */
export function dnat(
  family: IpFamily,
  address: Register,
  port: Register | undefined,
): NftExpression {
  const to = port === undefined ? [] : [register(5, port)];
  const kind = [be32(1, NFT_NAT_DNAT), be32(2, addressFamily(family))];
  return expression('nat', [...kind, register(3, address), ...to]);
}

/** masq: masquerades with a random source port, so that concurrent connections do not collide. */
export function masq(): NftExpression {
  return expression('masq', [be32(1, NF_NAT_RANGE_PROTO_RANDOM_FULLY)]);
}

/** reject: replies with ICMP port unreachable. */
export function reject(family: IpFamily): NftExpression {
  const code = { type: 2, value: encodeNumber(PORT_UNREACHABLE[family], 1) };
  return expression('reject', [be32(1, NFT_REJECT_ICMP_UNREACH), code]);
}

/** reject: replies with a TCP reset; only for TCP packets. */
export function rejectTcpReset(): NftExpression {
  return expression('reject', [be32(1, NFT_REJECT_TCP_RST)]);
}

/** fib: loads the address type of an address from the routing table (RTN_ of linux/rtnetlink.h). */
export function fibAddressType(to: Register, of: 'source' | 'destination'): NftExpression {
  return expression('fib', [
    register(1, to),
    be32(2, NFT_FIB_RESULT_ADDRTYPE),
    be32(3, of === 'source' ? NFTA_FIB_F_SADDR : NFTA_FIB_F_DADDR),
  ]);
}

/**
 * fib: loads the index of the input interface if the route to the source address leaves by it, otherwise 0. The route is
 * that of a packet with the same mark. Strict in both families, whatever `rp_filter` is; only in hook prerouting.
 */
export function fibWayBack(to: Register): NftExpression {
  return expression('fib', [
    register(1, to),
    be32(2, NFT_FIB_RESULT_OIF),
    be32(3, NFTA_FIB_F_SADDR | NFTA_FIB_F_MARK | NFTA_FIB_F_IIF),
  ]);
}

/**
 * target: sends the packet through an NFQUEUE by the target of iptables, which also works in kernels without the
 * expression `queue`. Without a listener the packet passes.
 */
export function queueTarget(queue: number): NftExpression {
  const info = Buffer.concat([u16(queue), u16(1), u16(NFQ_FLAG_BYPASS), u16(0)]);
  return expression('target', [
    name(1, 'NFQUEUE'),
    be32(2, NFQUEUE_REVISION),
    { type: 3, value: info },
  ]);
}

/**
 * dynset: adds an element to a set or map, or restarts the timeout of an existing element. If the set is full, the rule
 * ends here.
 * @param data undefined for a set.
 */
export function dynsetUpdate(
  set: string,
  key: Register,
  data: Register | undefined,
  milliseconds: number,
): NftExpression {
  return expression('dynset', [
    name(1, set),
    be32(3, NFT_DYNSET_OP_UPDATE),
    register(4, key),
    ...(data === undefined ? [] : [register(5, data)]),
    { type: 6, value: encodeNumber(milliseconds, 8) },
  ]);
}

/** Encodes the expressions of a rule. */
export function encodeRule(expressions: readonly NftExpression[]): Buffer {
  return encodeAttributes(expressions);
}

function expression(exprName: string, data: readonly Attribute[]): NftExpression {
  return {
    type: NFTA_LIST_ELEM,
    value: [name(NFTA_EXPR_NAME, exprName), { type: NFTA_EXPR_DATA, value: data }],
  };
}

function be32(type: number, value: number): Attribute {
  return { type, value: encodeNumber(value, 4) };
}

function register(type: number, which: Register): Attribute {
  return be32(type, REGISTER_BASE + which);
}

function data(type: number, value: Buffer): Attribute {
  return { type, value: [{ type: NFTA_DATA_VALUE, value }] };
}
