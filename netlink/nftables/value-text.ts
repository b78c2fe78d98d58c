/** Values of rules as text, near to what nft prints with -n. */
import { endianness } from 'node:os';
import { addressFormatter } from '../core/address.ts';
import { readText } from '../core/text.ts';
import { DATATYPE } from './set-description.ts';
import type { KeyRange, ValueKind } from './statement.ts';

type Names = Readonly<Record<number, string>>;

const NAMES: Partial<Record<ValueKind, Names>> = {
  protocol: {
    ...{
      1: 'icmp',
      2: 'igmp',
      4: 'ipencap',
      6: 'tcp',
      17: 'udp',
      33: 'dccp',
      41: 'ipv6',
      47: 'gre',
    },
    ...{
      50: 'esp',
      51: 'ah',
      58: 'ipv6-icmp',
      89: 'ospf',
      112: 'vrrp',
      132: 'sctp',
      136: 'udplite',
    },
  },
  family: { 2: 'ipv4', 10: 'ipv6' },
  ethertype: { 2048: 'ip', 2054: 'arp', 33024: '8021q', 34525: 'ip6' },
  direction: { 0: 'original', 1: 'reply' },
  packetType: { 0: 'host', 1: 'broadcast', 2: 'multicast', 3: 'other' },
  present: { 0: 'missing', 1: 'exists' },
  addressType: {
    ...{ 1: 'unicast', 2: 'local', 3: 'broadcast', 4: 'anycast', 5: 'multicast' },
    ...{ 6: 'blackhole', 7: 'unreachable', 8: 'prohibit' },
  },
  icmp: {
    ...{ 0: 'echo-reply', 3: 'destination-unreachable', 4: 'source-quench', 5: 'redirect' },
    ...{ 8: 'echo-request', 9: 'router-advertisement', 10: 'router-solicitation' },
    ...{ 11: 'time-exceeded', 12: 'parameter-problem', 13: 'timestamp-request' },
  },
  icmpv6: {
    ...{ 1: 'destination-unreachable', 2: 'packet-too-big', 3: 'time-exceeded' },
    ...{ 4: 'parameter-problem', 128: 'echo-request', 129: 'echo-reply' },
    ...{ 130: 'mld-listener-query', 131: 'mld-listener-report', 132: 'mld-listener-done' },
    ...{ 133: 'nd-router-solicit', 134: 'nd-router-advert', 135: 'nd-neighbor-solicit' },
    ...{ 136: 'nd-neighbor-advert', 137: 'nd-redirect', 143: 'mld2-listener-report' },
  },
};

/** Names of single bits. */
const BITS: Partial<Record<ValueKind, Names>> = {
  state: { 1: 'invalid', 2: 'established', 4: 'related', 8: 'new', 64: 'untracked' },
  status: {
    ...{ 1: 'expected', 2: 'seen-reply', 4: 'assured', 8: 'confirmed', 16: 'snat', 32: 'dnat' },
    512: 'dying',
  },
  tcpFlags: { 1: 'fin', 2: 'syn', 4: 'rst', 8: 'psh', 16: 'ack', 32: 'urg', 64: 'ecn', 128: 'cwr' },
};

/** Kinds whose numbers are in the byte order of the host. */
const HOST_ORDER: ReadonlySet<ValueKind> = new Set([
  ...(['index', 'mark', 'state', 'status', 'addressType', 'host'] as const),
]);

/** The value as a number; only of kinds that are numbers. At most 2^53 is exact. */
export function numberOf(kind: ValueKind, value: Buffer): number {
  const bytes = HOST_ORDER.has(kind) && IS_LITTLE ? Buffer.from(value).reverse() : value;
  return bytes.reduce((number, byte) => number * 256 + byte, 0);
}

const IS_LITTLE = endianness() === 'LE';

/** The names of the bits that are set, of kinds that have names for bits. */
export function bitNames(kind: ValueKind, value: Buffer): string[] {
  const bits = numberOf(kind, value);
  const names = BITS[kind] ?? {};
  return Object.entries(names).flatMap(([bit, name]) => ((bits & Number(bit)) !== 0 ? [name] : []));
}

export function hasBits(kind: ValueKind): boolean {
  return BITS[kind] !== undefined;
}

/** Without quotes; `eth*` for a prefix. */
export function nameOf(value: Buffer): string {
  const isPrefix = !value.includes(0) && value.length < 16;
  return `${readText(value)}${isPrefix ? '*' : ''}`;
}

const formatAddress = addressFormatter();

/** An address whose other bytes are 0. @param size 4 or 16. */
export function addressText(value: Buffer, size: number): string {
  const whole = Buffer.alloc(size);
  value.copy(whole);
  return formatAddress(whole, 0, size);
}

export function valueText(kind: ValueKind, value: Buffer): string {
  switch (kind) {
    case 'address':
      return value.length === 4 || value.length === 16
        ? addressText(value, value.length)
        : hexOf(value);
    case 'ether':
      return value.toString('hex').replace(/..(?!$)/g, '$&:');
    case 'name':
      return JSON.stringify(nameOf(value));
    case 'mark':
      return `0x${numberOf(kind, value).toString(16).padStart(8, '0')}`;
    case 'bytes':
      return hexOf(value);
    default: {
      if (value.length > 6) return hexOf(value);
      if (hasBits(kind)) return bitNames(kind, value).join(',') || '0';
      const number = numberOf(kind, value);
      return NAMES[kind]?.[number] ?? String(number);
    }
  }
}

function hexOf(value: Buffer): string {
  return `0x${value.toString('hex')}`;
}

/** One value, a prefix, or a range. */
export function rangeText(kind: ValueKind, { first, last }: KeyRange): string {
  if (first.equals(last)) return valueText(kind, first);
  const prefix = kind === 'address' ? prefixLength({ first, last }) : undefined;
  if (prefix !== undefined) return `${valueText(kind, first)}/${prefix}`;
  return `${valueText(kind, first)}-${valueText(kind, last)}`;
}

/** The number of first bits that all keys have in common, if the range has all keys with these bits. */
export function prefixLength({ first, last }: KeyRange): number | undefined {
  const mask = Buffer.from(first.map((byte, index) => ~(byte ^ (last[index] ?? 0))));
  const bits = maskLength(mask);
  if (bits === undefined) return undefined;
  const hasZeros = first.every((byte, index) => (byte & ~(mask[index] ?? 0) & 0xff) === 0);
  return hasZeros ? bits : undefined;
}

/** The number of bits of a mask; undefined if a 1 follows a 0. */
export function maskLength(mask: Buffer): number | undefined {
  const bits = [...mask].map((byte) => byte.toString(2).padStart(8, '0')).join('');
  return /^1*0*$/.test(bits) ? bits.replace(/0+$/, '').length : undefined;
}

const KIND_BY_TYPE: Readonly<Record<number, ValueKind>> = {
  [DATATYPE.IPv4]: 'address',
  [DATATYPE.IPv6]: 'address',
  [DATATYPE.protocol]: 'protocol',
  [DATATYPE.port]: 'port',
  [DATATYPE.interfaceName]: 'name',
  [DATATYPE.mark]: 'mark',
};

/** The kind of a value of a data type; `bytes` for other types and for concatenations. */
export function kindOfType(dataType: number | undefined): ValueKind {
  return (dataType !== undefined && KIND_BY_TYPE[dataType]) || 'bytes';
}
