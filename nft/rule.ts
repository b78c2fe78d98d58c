/**
 * nft/ is what everybody shares who keeps tables of nf_tables: rules, elements, nft, the monitor, a fake.
 * What rules are made of, each part as nft writes it and as the kernel has it. The agent gives rules
 * to the kernel itself: nft 1.0.6 cannot add one that maps to address and port to a table that it
 * reads back ("conflicting protocols"), and dies of session affinity with IPv6. The text is for
 * people, and for `portwide render`.
 */
import type { IpFamily, Protocol } from '../api/objects.ts';
import { u32 } from '../netlink/core/host.ts';
import { protocolNumbers } from '../netlink/core/protocol.ts';
import {
  bitwise,
  CONNTRACK,
  compare,
  conntrack,
  count,
  DIRECTION,
  destinationNat,
  encodeRule,
  lookup,
  lookupValue,
  lookupVerdict,
  META,
  masquerade as masqueradeExpression,
  meta,
  type NftExpression,
  PAYLOAD,
  payload,
  type Register,
  randomNumber,
  rejectByReset,
  reject as rejectExpression,
  setMark,
  sourceAddressType,
  update,
  verdict as verdictExpression,
} from '../netlink/nftables/rule.ts';
import type { NftVerdict } from '../netlink/nftables/types.ts';
import { verdictText } from './element.ts';
import { cidrBounds } from './keys.ts';

/** A part of a rule: a condition or a statement. */
export interface Part {
  readonly text: string;
  readonly expressions: readonly NftExpression[];
}

/** Parts, from left to right; where a condition does not hold, the next rule is tried. */
export type Rule = readonly Part[];

/** As nft writes it. */
export function ruleText(rule: Rule): string {
  return rule.map(({ text }) => text).join(' ');
}

/** As the kernel has it. */
export function ruleBytes(rule: Rule): Buffer {
  return encodeRule(rule.flatMap(({ expressions }) => expressions));
}

/** Something to look up by. */
export interface KeyField {
  readonly text: string;
  /** Of four bytes. */
  readonly registers: number;
  load(to: Register): NftExpression;
}
export type Key = readonly KeyField[];

/** The parts of rules of one family. */
export type Parts = ReturnType<typeof partsOf>;

/** RTN_LOCAL of linux/rtnetlink.h. */
const RTN_LOCAL = 2;
/** IP_CT_NEW as a bit, IPS_DST_NAT: linux/netfilter/nf_conntrack_common.h. */
const STATE_NEW = 8;
const STATUS_DNAT = 32;
/** Of the IP header. */
const SOURCE_OFFSET: Readonly<Record<IpFamily, number>> = { IPv4: 12, IPv6: 8 };

/** The name of a family in nft's rules. */
export function nftFamily(family: IpFamily): 'ip' | 'ip6' {
  return family === 'IPv4' ? 'ip' : 'ip6';
}

export function partsOf(family: IpFamily) {
  const ip = nftFamily(family);
  const width = family === 'IPv4' ? 4 : 16;
  const words = width / 4;
  const field = (text: string, registers: number, load: KeyField['load']): KeyField => ({
    text,
    registers,
    load,
  });
  const address = (text: string, load: KeyField['load']) => field(text, words, load);
  const inPacket = (offset: number) => (to: Register) =>
    payload(to, PAYLOAD.network, offset, width);
  const offset = SOURCE_OFFSET[family];

  const source = address(`${ip} saddr`, inPacket(offset));
  const destination = address(`${ip} daddr`, inPacket(offset + width));
  const protocol = field('meta l4proto', 1, (to) => meta(to, META.protocol));
  const port = field('th dport', 1, (to) => payload(to, PAYLOAD.transport, 2, 2));
  // From conntrack, for by then the packet has the endpoint's address and port.
  const originalVip = address(`ct original ${ip} daddr`, (to) =>
    conntrack(to, CONNTRACK.destination[family], DIRECTION.original),
  );
  const originalPort = field('ct original proto-dst', 1, (to) =>
    conntrack(to, CONNTRACK.destinationPort, DIRECTION.original),
  );
  const endpoint = address(`ct reply ${ip} saddr`, (to) =>
    conntrack(to, CONNTRACK.source[family], DIRECTION.reply),
  );
  const endpointPort = field('ct reply proto-src', 1, (to) =>
    conntrack(to, CONNTRACK.sourcePort, DIRECTION.reply),
  );
  /** A number of `among`, counted from `first`. */
  const lot = (among: number, first: number) =>
    field(`numgen random mod ${among} offset ${first}`, 1, (to) => randomNumber(to, among, first));

  const isAddress = (of: KeyField, cidr: string, not: boolean): Part => {
    const bits = Number(cidr.split('/')[1]);
    const mask = Buffer.alloc(width);
    for (let bit = 0; bit < bits; bit++)
      mask[bit >> 3] = (mask[bit >> 3] ?? 0) | (128 >> (bit & 7));
    return {
      text: `${of.text} ${not ? '!= ' : ''}${cidr}`,
      expressions: [
        of.load(0),
        bitwise(0, mask, Buffer.alloc(width)),
        compare(0, cidrBounds(cidr)[0], not),
      ],
    };
  };

  return {
    source,
    destination,
    protocol,
    port,
    originalVip,
    originalPort,
    endpoint,
    endpointPort,
    lot,
    sourceIs: (cidr: string, not = false) => isAddress(source, cidr, not),
    destinationIs: (cidr: string) => isAddress(destination, cidr, false),
    isIn: (key: Key, set: string): Part => ({
      text: `${keyText(key)} @${set}`,
      expressions: [...loadKey(key), lookup(set, 0)],
    }),
    /** Does what the map says. */
    follow: (key: Key, map: string): Part => ({
      text: `${keyText(key)} vmap @${map}`,
      expressions: [...loadKey(key), lookupVerdict(map, 0)],
    }),
    /** Translates to what the map says; `isPortKept`: to addresses alone. */
    translate: (key: Key, map: string, isPortKept: boolean): Part => ({
      text: `dnat ${isPortKept ? '' : `${ip} `}to ${keyText(key)} map @${map}`,
      expressions: [
        ...loadKey(key),
        lookupValue(map, 0, 0),
        destinationNat(family, 0, isPortKept ? undefined : words),
      ],
    }),
    /** Has a map that packets write know an element, and know it longer. */
    remember: (map: string, key: Key, data: Key, seconds: number): Part => {
      const from = registersOf(key);
      return {
        text: `update @${map} { ${keyText(key)} timeout ${seconds}s : ${keyText(data)} }`,
        expressions: [
          ...loadKey(key),
          ...loadKey(data, from),
          update(map, 0, from, seconds * 1000),
        ],
      };
    },
    reject: { text: 'reject', expressions: [rejectExpression(family)] } satisfies Part,
  };
}

/** Only packets that open a connection, or were not answered yet. */
export const IS_NEW: Part = {
  text: 'ct state new',
  expressions: hasBit(conntrack(0, CONNTRACK.state), STATE_NEW),
};

export const IS_TRANSLATED: Part = {
  text: 'ct status dnat',
  expressions: hasBit(conntrack(0, CONNTRACK.status), STATUS_DNAT),
};

/** The source is an address of this node. */
export const IS_FROM_NODE: Part = {
  text: 'fib saddr type local',
  expressions: [sourceAddressType(0), compare(0, u32(RTN_LOCAL))],
};

export function protocolIs(protocol: Protocol): Part {
  return {
    text: `meta l4proto ${protocol.toLowerCase()}`,
    expressions: [meta(0, META.protocol), compare(0, Buffer.from([protocolNumbers[protocol]]))],
  };
}

export const PORT_IS_ZERO: Part = {
  text: 'th dport 0',
  expressions: [payload(0, PAYLOAD.transport, 2, 2), compare(0, Buffer.alloc(2))],
};

/** TCP flags that a packet in the middle of a connection does not have. */
const TCP_FLAGS_OFFSET = 13;
const SYN_OR_RST = 0x02 | 0x04;

/** Of a TCP packet: it neither opens a connection nor resets one. */
export const IS_MID_CONNECTION: Part = {
  text: 'tcp flags & (syn | rst) == 0x0',
  expressions: [
    payload(0, PAYLOAD.transport, TCP_FLAGS_OFFSET, 1),
    bitwise(0, Buffer.from([SYN_OR_RST]), Buffer.alloc(1)),
    compare(0, Buffer.alloc(1)),
  ],
};

/** Of a TCP packet. */
export const RESET: Part = { text: 'reject with tcp reset', expressions: [rejectByReset()] };

/** @param name ends in an asterisk to stand for all names that begin so. */
export function comesBy(name: string, not = false): Part {
  const bytes = name.endsWith('*')
    ? Buffer.from(name.slice(0, -1))
    : Buffer.from(name.padEnd(IFNAMSIZ, '\0'));
  return {
    text: `iifname ${not ? '!= ' : ''}"${name}"`,
    expressions: [meta(0, META.inputName), compare(0, bytes, not)],
  };
}

const IFNAMSIZ = 16;

/** A bit of the packet's mark; the others are somebody else's. `1 << 31` is negative in JavaScript. */
function markBit(bit: number): {
  readonly hex: string;
  readonly value: Buffer;
  readonly others: Buffer;
} {
  const value = (1 << bit) >>> 0;
  return { hex: `0x${value.toString(16)}`, value: u32(value), others: u32(~value >>> 0) };
}

/** Has the packet masqueraded when it leaves. */
export function mark(bit: number): Part {
  const { hex, value, others } = markBit(bit);
  return {
    text: `meta mark set meta mark | ${hex}`,
    expressions: [meta(0, META.mark), bitwise(0, others, value), setMark(0)],
  };
}

export function isMarked(bit: number): Part {
  const { hex, value } = markBit(bit);
  const none = Buffer.alloc(4);
  return {
    text: `meta mark & ${hex} != 0`,
    expressions: [meta(0, META.mark), bitwise(0, value, none), compare(0, none, true)],
  };
}

/** Of a packet that is marked. */
export function unmark(bit: number): Part {
  const { hex, value } = markBit(bit);
  return {
    text: `meta mark set meta mark ^ ${hex}`,
    expressions: [meta(0, META.mark), bitwise(0, u32(0xffffffff), value), setMark(0)],
  };
}

/** Counts the packet in a counter of the table. */
export function countIn(counter: string): Part {
  return { text: `counter name "${counter}"`, expressions: [count(counter)] };
}

export const MASQUERADE: Part = {
  text: 'masquerade fully-random',
  expressions: [masqueradeExpression()],
};

export function verdict(what: NftVerdict): Part {
  return { text: verdictText(what), expressions: [verdictExpression(what)] };
}

export function goTo(chain: string): Part {
  return verdict({ kind: 'goto', chain });
}

export const ACCEPT = verdict({ kind: 'accept' });
export const DROP = verdict({ kind: 'drop' });

function hasBit(load: NftExpression, bit: number): NftExpression[] {
  const none = Buffer.alloc(4);
  return [load, bitwise(0, u32(bit), none), compare(0, none, true)];
}

function keyText(key: Key): string {
  return key.map(({ text }) => text).join(' . ');
}

function loadKey(key: Key, first: Register = 0): NftExpression[] {
  let to = first;
  return key.map((field) => {
    const load = field.load(to);
    to += field.registers;
    return load;
  });
}

function registersOf(key: Key): number {
  return key.reduce((sum, { registers }) => sum + registers, 0);
}
