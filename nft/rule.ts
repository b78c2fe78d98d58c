/**
 * The parts of nf_tables rules, each in nft syntax and as netlink expressions. Folder nft/ contains the code that
 * Service rules and network policy share.
 *
 * The agent writes rules over netlink; the text is for people and for `portwide render`. nft 1.0.6 cannot load all texts. It
 * refuses a rule with DNAT to address and port from a map in a table that it reads back ("conflicting protocols"). It also
 * aborts on rules that update an affinity map with IPv6 keys.
 */
import type { IpFamily, Protocol } from '../api/objects.ts';
import { u32 } from '../netlink/core/host-order.ts';
import { icmpNumbers, protocolNumbers } from '../netlink/core/protocol.ts';
import {
  bitwise,
  CT_DIRECTION,
  CT_KEY,
  cmp,
  counterReference,
  ct,
  dnat,
  dynsetUpdate,
  encodeRule,
  fibAddressType,
  jenkinsHash,
  lookup,
  lookupData,
  lookupVerdict,
  META_KEY,
  masq as masqueradeExpression,
  meta,
  type NftExpression,
  notrack,
  numgenRandom,
  PAYLOAD_BASE,
  payload,
  type Register,
  reject as rejectExpression,
  rejectTcpReset,
  setMark,
  verdict as verdictExpression,
  writeAddressField,
} from '../netlink/nftables/rule.ts';
import type { NftVerdict } from '../netlink/nftables/types.ts';
import { verdictText } from './element.ts';
import { cidrBounds } from './keys.ts';

/** A match or a statement of a rule. */
export interface RulePart {
  readonly text: string;
  readonly expressions: readonly NftExpression[];
}

/** A rule: its parts from left to right. If a match fails, evaluation continues with the next rule. */
export type RuleParts = readonly RulePart[];

/** The rule in nft syntax. */
export function nftRuleText(rule: RuleParts): string {
  return rule.map(({ text }) => text).join(' ');
}

/** The rule as netlink expressions, encoded. */
export function nftRuleBytes(rule: RuleParts): Buffer {
  return encodeRule(rule.flatMap(({ expressions }) => expressions));
}

/** A field of a lookup key. */
export interface KeyField {
  readonly text: string;
  /** Number of 4-byte registers. */
  readonly registers: number;
  load(to: Register): readonly NftExpression[];
}
/** A concatenated lookup key: its fields from left to right. */
export type LookupKey = readonly KeyField[];

const REGISTER_BYTES = 4;
/** RFC 792, RFC 4443 */
const ICMP_ECHO_REPLY = 0;
const ICMPV6_ECHO_REPLY = 129;
/** RTN_LOCAL of linux/rtnetlink.h. */
const RTN_LOCAL = 2;
/** NF_CT_STATE_INVALID_BIT, NF_CT_STATE_UNTRACKED_BIT, the bit of IP_CT_NEW, and IPS_DST_NAT: linux/netfilter/nf_conntrack_common.h. */
const STATE_INVALID = 1;
const STATE_UNTRACKED = 64;
const STATE_NEW = 8;
const STATUS_DNAT = 32;
/** Offset of the source address in the IP header. */
const SOURCE_OFFSET: Readonly<Record<IpFamily, number>> = { IPv4: 12, IPv6: 8 };

/** The nft keyword of a family. */
export function nftFamily(family: IpFamily): 'ip' | 'ip6' {
  return family === 'IPv4' ? 'ip' : 'ip6';
}

/** Key fields and rule parts that depend on the IP family. */
export function rulePartsFor(family: IpFamily) {
  const ip = nftFamily(family);
  const width = family === 'IPv4' ? 4 : 16;
  const words = width / 4;
  const field = (
    text: string,
    registers: number,
    load: (to: Register) => NftExpression,
  ): KeyField => ({ text, registers, load: (to) => [load(to)] });
  const address = (text: string, load: (to: Register) => NftExpression) => field(text, words, load);
  const inPacket = (offset: number) => (to: Register) =>
    payload(to, PAYLOAD_BASE.network, offset, width);
  const offset = SOURCE_OFFSET[family];

  const source = address(`${ip} saddr`, inPacket(offset));
  const destination = address(`${ip} daddr`, inPacket(offset + width));
  const protocol = field('meta l4proto', 1, (to) => meta(to, META_KEY.protocol));
  const sourcePort = field('th sport', 1, (to) => payload(to, PAYLOAD_BASE.transport, 0, 2));
  const port = field('th dport', 1, (to) => payload(to, PAYLOAD_BASE.transport, 2, 2));
  // The original destination comes from conntrack: after DNAT the packet itself has the endpoint's address and port.
  const originalVip = address(`ct original ${ip} daddr`, (to) =>
    ct(to, CT_KEY.destination[family], CT_DIRECTION.original),
  );
  const originalPort = field('ct original proto-dst', 1, (to) =>
    ct(to, CT_KEY.destinationPort, CT_DIRECTION.original),
  );
  const endpoint = address(`ct reply ${ip} saddr`, (to) =>
    ct(to, CT_KEY.source[family], CT_DIRECTION.reply),
  );
  const endpointPort = field('ct reply proto-src', 1, (to) =>
    ct(to, CT_KEY.sourcePort, CT_DIRECTION.reply),
  );
  /** A random number from `first` to `first + among - 1`. */
  const randomIndex = (among: number, first: number) =>
    field(`numgen random mod ${among} offset ${first}`, 1, (to) => numgenRandom(to, among, first));

  /** A number from `first` to `first + among - 1` that depends on the key and the seed only. */
  const hashIndex = (key: LookupKey, among: number, seed: number, first: number): KeyField => {
    const offsetText = first === 0 ? '' : ` offset ${first}`;
    return {
      text: `jhash ${lookupKeyText(key)} mod ${among} seed 0x${seed.toString(16)}${offsetText}`,
      registers: 1,
      load: (to) => [
        ...loadKey(key, to),
        jenkinsHash(to, registersOf(key) * REGISTER_BYTES, to, among, seed, first),
      ],
    };
  };

  /** The first port of the slice of `size` ports that a port is in; slices start at multiples of `size`, a power of two. */
  const firstOfSlice = (of: KeyField, size: number): KeyField => {
    if (size === 1) return of;
    const mask = Buffer.alloc(2);
    mask.writeUInt16BE(0x1_0000 - size);
    return {
      // In the key of a map nft refuses a bitwise operation without parentheses.
      text: `(${of.text} & ${mask.readUInt16BE()})`,
      registers: of.registers,
      load: (to) => [...of.load(to), bitwise(to, mask, Buffer.alloc(2))],
    };
  };

  const isAddress = (of: KeyField, cidr: string, not: boolean): RulePart => {
    const bits = Number(cidr.split('/')[1]);
    const mask = Buffer.alloc(width);
    for (let bit = 0; bit < bits; bit++)
      mask[bit >> 3] = (mask[bit >> 3] ?? 0) | (128 >> (bit & 7));
    return {
      text: `${of.text} ${not ? '!= ' : ''}${cidr}`,
      expressions: [
        ...of.load(0),
        bitwise(0, mask, Buffer.alloc(width)),
        cmp(0, cidrBounds(cidr)[0], not),
      ],
    };
  };

  return {
    source,
    destination,
    protocol,
    sourcePort,
    port,
    originalVip,
    originalPort,
    endpoint,
    endpointPort,
    randomIndex,
    hashIndex,
    firstOfSlice,
    sourceIs: (cidr: string, not = false) => isAddress(source, cidr, not),
    destinationIs: (cidr: string) => isAddress(destination, cidr, false),
    inSet: (key: LookupKey, set: string): RulePart => ({
      text: `${lookupKeyText(key)} @${set}`,
      expressions: [...loadKey(key), lookup(set, 0)],
    }),
    notInSet: (key: LookupKey, set: string): RulePart => ({
      text: `${lookupKeyText(key)} != @${set}`,
      expressions: [...loadKey(key), lookup(set, 0, true)],
    }),
    /** Applies the verdict that the map has for the last bits of an address. */
    verdictMapOfLastBits: (key: KeyField, mask: number, map: string): RulePart => {
      const bytes = Buffer.alloc(width);
      bytes.writeUInt8(mask, width - 1);
      const text = family === 'IPv4' ? `0.0.0.${mask}` : `::${mask.toString(16)}`;
      return {
        text: `${key.text} & ${text} vmap @${map}`,
        expressions: [
          ...key.load(0),
          bitwise(0, bytes, Buffer.alloc(width)),
          lookupVerdict(map, 0),
        ],
      };
    },
    /** Replaces an address of the packet, without connection tracking, by the data that the map has for the key. */
    rewrite: (which: 'source' | 'destination', key: LookupKey, map: string): RulePart => ({
      text: `${(which === 'source' ? source : destination).text} set ${lookupKeyText(key)} map @${map}`,
      expressions: [
        ...loadKey(key),
        lookupData(map, 0, 0),
        writeAddressField(0, family, which === 'source' ? offset : offset + width, width),
      ],
    }),
    /** Applies the verdict that the map has for the key. */
    verdictMap: (key: LookupKey, map: string): RulePart => ({
      text: `${lookupKeyText(key)} vmap @${map}`,
      expressions: [...loadKey(key), lookupVerdict(map, 0)],
    }),
    /** DNAT to the data that the map has for the key: address and port, or with `isPortKept` only the address. */
    dnat: (key: LookupKey, map: string, isPortKept: boolean): RulePart => ({
      text: `dnat ${isPortKept ? '' : `${ip} `}to ${lookupKeyText(key)} map @${map}`,
      expressions: [
        ...loadKey(key),
        lookupData(map, 0, 0),
        dnat(family, 0, isPortKept ? undefined : words),
      ],
    }),
    /** Adds an element to a dynamic map, or restarts the timeout of an existing one. */
    updateMap: (map: string, key: LookupKey, data: LookupKey, seconds: number): RulePart => {
      const from = registersOf(key);
      return {
        text: `update @${map} { ${lookupKeyText(key)} timeout ${seconds}s : ${lookupKeyText(data)} }`,
        expressions: [
          ...loadKey(key),
          ...loadKey(data, from),
          dynsetUpdate(map, 0, from, seconds * 1000),
        ],
      };
    },
    /** Adds an element to a dynamic set, or restarts the timeout of an existing one. */
    updateSet: (set: string, key: LookupKey, seconds: number): RulePart => ({
      text: `update @${set} { ${lookupKeyText(key)} timeout ${seconds}s }`,
      expressions: [...loadKey(key), dynsetUpdate(set, 0, undefined, seconds * 1000)],
    }),
    reject: { text: 'reject', expressions: [rejectExpression(family)] } satisfies RulePart,
  };
}

/** Matches packets of connections that have seen no reply yet. */
export const IS_NEW: RulePart = {
  text: 'ct state new',
  expressions: hasBit(ct(0, CT_KEY.state), STATE_NEW),
};

/** Matches packets that belong to no connection, such as ICMP errors about packets without connection tracking. */
export const IS_INVALID: RulePart = {
  text: 'ct state invalid',
  expressions: hasBit(ct(0, CT_KEY.state), STATE_INVALID),
};

/** Matches packets that a rule exempts from connection tracking, such as UDP packets of ports owned by pods. */
export const IS_UNTRACKED: RulePart = {
  text: 'ct state untracked',
  expressions: hasBit(ct(0, CT_KEY.state), STATE_UNTRACKED),
};

/** Matches packets of connections with DNAT. */
export const HAS_DNAT: RulePart = {
  text: 'ct status dnat',
  expressions: hasBit(ct(0, CT_KEY.status), STATUS_DNAT),
};

/** Matches packets of connections without DNAT. */
export const HAS_NO_DNAT: RulePart = {
  text: 'ct status & dnat == 0',
  expressions: hasBit(ct(0, CT_KEY.status), STATUS_DNAT, false),
};

/** Matches packets whose source is an address of this node. */
export const IS_FROM_NODE: RulePart = {
  text: 'fib saddr type local',
  expressions: [fibAddressType(0, 'source'), cmp(0, u32(RTN_LOCAL))],
};

/** Matches packets whose source is no address of this node. */
export const IS_NOT_FROM_NODE: RulePart = {
  text: 'fib saddr type != local',
  expressions: [fibAddressType(0, 'source'), cmp(0, u32(RTN_LOCAL), true)],
};

/** Matches packets whose destination is no address of this node. */
export const IS_NOT_TO_NODE: RulePart = {
  text: 'fib daddr type != local',
  expressions: [fibAddressType(0, 'destination'), cmp(0, u32(RTN_LOCAL), true)],
};

/** Matches packets of one transport protocol. */
export function protocolIs(protocol: Protocol): RulePart {
  return {
    text: `meta l4proto ${protocol.toLowerCase()}`,
    expressions: [meta(0, META_KEY.protocol), cmp(0, Buffer.from([protocolNumbers[protocol]]))],
  };
}

/** Matches packets of ICMP or ICMPv6. */
export function isIcmp(family: IpFamily): RulePart {
  return {
    text: `meta l4proto ${family === 'IPv4' ? 'icmp' : 'icmpv6'}`,
    expressions: [meta(0, META_KEY.protocol), cmp(0, Buffer.from([icmpNumbers[family]]))],
  };
}

/** Matches all ICMP types but echo reply. Use it after `isIcmp`. */
export function isNoEchoReply(family: IpFamily): RulePart {
  const isIpv4 = family === 'IPv4';
  return {
    text: `${isIpv4 ? 'icmp' : 'icmpv6'} type != echo-reply`,
    expressions: [
      payload(0, PAYLOAD_BASE.transport, 0, 1),
      cmp(0, Buffer.from([isIpv4 ? ICMP_ECHO_REPLY : ICMPV6_ECHO_REPLY]), true),
    ],
  };
}

/** Matches destination port 0. Use it after a match on the protocol. */
export const PORT_IS_ZERO: RulePart = {
  text: 'th dport 0',
  expressions: [payload(0, PAYLOAD_BASE.transport, 2, 2), cmp(0, Buffer.alloc(2))],
};

/** Offset of the flags in the TCP header, and the flags SYN and RST. */
const TCP_FLAGS_OFFSET = 13;
const SYN_OR_RST = 0x02 | 0x04;

/** Matches TCP packets that neither open nor reset a connection. Use it after a match on TCP. */
export const IS_MID_CONNECTION: RulePart = {
  text: 'tcp flags & (syn | rst) == 0x0',
  expressions: [
    payload(0, PAYLOAD_BASE.transport, TCP_FLAGS_OFFSET, 1),
    bitwise(0, Buffer.from([SYN_OR_RST]), Buffer.alloc(1)),
    cmp(0, Buffer.alloc(1)),
  ],
};

/** Rejects a TCP packet with a reset. Use it after a match on TCP. */
export const TCP_RESET: RulePart = {
  text: 'reject with tcp reset',
  expressions: [rejectTcpReset()],
};

/** Matches the input interface. @param name exact, or a prefix that ends in an asterisk. */
export function inputInterfaceIs(name: string, not = false): RulePart {
  const bytes = name.endsWith('*')
    ? Buffer.from(name.slice(0, -1))
    : Buffer.from(name.padEnd(IFNAMSIZ, '\0'));
  return {
    text: `iifname ${not ? '!= ' : ''}"${name}"`,
    expressions: [meta(0, META_KEY.inputName), cmp(0, bytes, not)],
  };
}

const IFNAMSIZ = 16;

/** Masks of one bit of the packet mark; other programs use the other bits. `1 << 31` is negative in JavaScript. */
function markBit(bit: number): {
  readonly hex: string;
  readonly value: Buffer;
  readonly others: Buffer;
} {
  const value = (1 << bit) >>> 0;
  return { hex: `0x${value.toString(16)}`, value: u32(value), others: u32(~value >>> 0) };
}

/** Sets a bit of the packet mark and keeps the others. */
export function setMarkBit(bit: number): RulePart {
  const { hex, value, others } = markBit(bit);
  return {
    text: `meta mark set meta mark | ${hex}`,
    expressions: [meta(0, META_KEY.mark), bitwise(0, others, value), setMark(0)],
  };
}

/** Matches packets whose mark has the bit set. */
export function hasMarkBit(bit: number): RulePart {
  const { hex, value } = markBit(bit);
  const none = Buffer.alloc(4);
  return {
    text: `meta mark & ${hex} != 0`,
    expressions: [meta(0, META_KEY.mark), bitwise(0, value, none), cmp(0, none, true)],
  };
}

/** Clears a bit of the packet mark. Use it only after `hasMarkBit`: the statement toggles the bit. */
export function clearMarkBit(bit: number): RulePart {
  const { hex, value } = markBit(bit);
  return {
    text: `meta mark set meta mark ^ ${hex}`,
    expressions: [meta(0, META_KEY.mark), bitwise(0, u32(0xffffffff), value), setMark(0)],
  };
}

/** Counts the packet in a named counter of the table. */
export function countPacket(counter: string): RulePart {
  return { text: `counter name "${counter}"`, expressions: [counterReference(counter)] };
}

/** Exempts the packet from connection tracking. Only in hooks of priority raw. */
export const NOTRACK: RulePart = { text: 'notrack', expressions: [notrack()] };

/** Masquerades the packet, with a random source port. */
export const MASQUERADE: RulePart = {
  text: 'masquerade fully-random',
  expressions: [masqueradeExpression()],
};

/** A verdict as the last part of a rule. */
export function verdict(what: NftVerdict): RulePart {
  return { text: verdictText(what), expressions: [verdictExpression(what)] };
}

/** Continues in another chain, and then after this rule. */
export function jumpTo(chain: string): RulePart {
  return verdict({ kind: 'jump', chain });
}

/** Continues in another chain, without return. */
export function goTo(chain: string): RulePart {
  return verdict({ kind: 'goto', chain });
}

export const ACCEPT = verdict({ kind: 'accept' });
export const DROP = verdict({ kind: 'drop' });
export const RETURN = verdict({ kind: 'return' });

function hasBit(load: NftExpression, bit: number, isSet = true): NftExpression[] {
  const none = Buffer.alloc(4);
  return [load, bitwise(0, u32(bit), none), cmp(0, none, isSet)];
}

function lookupKeyText(key: LookupKey): string {
  return key.map(({ text }) => text).join(' . ');
}

function loadKey(key: LookupKey, first: Register = 0): NftExpression[] {
  let to = first;
  return key.flatMap((field) => {
    const load = field.load(to);
    to += field.registers;
    return load;
  });
}

function registersOf(key: LookupKey): number {
  return key.reduce((sum, { registers }) => sum + registers, 0);
}
