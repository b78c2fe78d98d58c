/** The fields that rules load: names as of nft, and what their bytes mean. */
import type { Term, ValueKind } from './statement.ts';
import { NFPROTO } from './types.ts';

type Field = readonly [name: string, kind: ValueKind];

/** Index: enum nft_meta_keys of linux/netfilter/nf_tables.h. nft leaves out `meta` before some of them. */
const META: readonly Field[] = [
  ['meta length', 'host'],
  ['meta protocol', 'ethertype'],
  ['meta priority', 'host'],
  ['meta mark', 'mark'],
  ['iif', 'index'],
  ['oif', 'index'],
  ['iifname', 'name'],
  ['oifname', 'name'],
  ['iiftype', 'host'],
  ['oiftype', 'host'],
  ['meta skuid', 'host'],
  ['meta skgid', 'host'],
  ['meta nftrace', 'host'],
  ['meta rtclassid', 'host'],
  ['meta secmark', 'host'],
  ['meta nfproto', 'family'],
  ['meta l4proto', 'protocol'],
  ['meta ibrname', 'name'],
  ['meta obrname', 'name'],
  ['meta pkttype', 'packetType'],
  ['meta cpu', 'host'],
  ['meta iifgroup', 'host'],
  ['meta oifgroup', 'host'],
  ['meta cgroup', 'host'],
  ['meta random', 'host'],
  ['meta ipsec', 'present'],
  ['meta iifkind', 'name'],
  ['meta oifkind', 'name'],
  ['meta ibrpvid', 'host'],
  ['meta ibrvproto', 'ethertype'],
  ['meta time', 'host'],
  ['meta day', 'host'],
  ['meta hour', 'host'],
  ['meta sdif', 'index'],
  ['meta sdifname', 'name'],
];
/** Bytes of a name of an interface (IFNAMSIZ). */
const NAME_LENGTH = 16;

/** Index: enum nft_ct_keys. */
const CT: readonly Field[] = [
  ['state', 'state'],
  ['direction', 'direction'],
  ['status', 'status'],
  ['mark', 'mark'],
  ['secmark', 'host'],
  ['expiration', 'host'],
  ['helper', 'name'],
  ['l3proto', 'family'],
  ['saddr', 'address'],
  ['daddr', 'address'],
  ['protocol', 'protocol'],
  ['proto-src', 'port'],
  ['proto-dst', 'port'],
  ['label', 'bytes'],
  ['packets', 'host'],
  ['bytes', 'host'],
  ['avgpkt', 'host'],
  ['zone', 'host'],
  ['event', 'host'],
  ['ip saddr', 'address'],
  ['ip daddr', 'address'],
  ['ip6 saddr', 'address'],
  ['ip6 daddr', 'address'],
  ['id', 'network'],
];
const DIRECTIONS = ['original', 'reply'];

/** A field of a header: its first byte and its length. */
type HeaderField = readonly [...Field, offset: number, length: number];

const IPV4: readonly HeaderField[] = [
  ['ip length', 'network', 2, 2],
  ['ip id', 'network', 4, 2],
  ['ip frag-off', 'network', 6, 2],
  ['ip ttl', 'network', 8, 1],
  ['ip protocol', 'protocol', 9, 1],
  ['ip checksum', 'network', 10, 2],
  ['ip saddr', 'address', 12, 4],
  ['ip daddr', 'address', 16, 4],
];
const IPV6: readonly HeaderField[] = [
  ['ip6 length', 'network', 4, 2],
  ['ip6 nexthdr', 'protocol', 6, 1],
  ['ip6 hoplimit', 'network', 7, 1],
  ['ip6 saddr', 'address', 8, 16],
  ['ip6 daddr', 'address', 24, 16],
];
const ETHER: readonly HeaderField[] = [
  ['ether daddr', 'ether', 0, 6],
  ['ether saddr', 'ether', 6, 6],
  ['ether type', 'ethertype', 12, 2],
];

const PORTS = (protocol: string): readonly HeaderField[] => [
  [`${protocol} sport`, 'port', 0, 2],
  [`${protocol} dport`, 'port', 2, 2],
];
/** By protocol number. */
const TRANSPORT: Readonly<Record<number, readonly HeaderField[]>> = {
  1: [
    ['icmp type', 'icmp', 0, 1],
    ['icmp code', 'network', 1, 1],
  ],
  6: [
    ...PORTS('tcp'),
    ['tcp sequence', 'network', 4, 4],
    ['tcp ackseq', 'network', 8, 4],
    ['tcp flags', 'tcpFlags', 13, 1],
    ['tcp window', 'network', 14, 2],
  ],
  17: [...PORTS('udp'), ['udp length', 'network', 4, 2]],
  33: PORTS('dccp'),
  58: [
    ['icmpv6 type', 'icmpv6', 0, 1],
    ['icmpv6 code', 'network', 1, 1],
  ],
  132: [...PORTS('sctp'), ['sctp vtag', 'network', 4, 4]],
  136: PORTS('udplite'),
};

/** What earlier conditions of a rule say about the packet. */
export interface KnownHeaders {
  /** NFPROTO of IPv4 or IPv6. */
  network?: number | undefined;
  transport?: number | undefined;
}

/** Index: enum nft_payload_bases. */
function headerFields(base: number, { network, transport }: KnownHeaders): readonly HeaderField[] {
  if (base === 0) return ETHER;
  if (base === 2) return (transport && TRANSPORT[transport]) || PORTS('th');
  if (base !== 1) return [];
  if (network === NFPROTO.ipv4) return IPV4;
  return network === NFPROTO.ipv6 ? IPV6 : [];
}

const BASES = ['ll', 'nh', 'th', 'ih'];

/** The fields in some bytes of a header: nft loads fields that follow each other at once. */
export function payloadTerms(
  base: number,
  offset: number,
  length: number,
  known: KnownHeaders,
): readonly Term[] {
  const terms: Term[] = [];
  let at = offset;
  while (at < offset + length) {
    const rest = offset + length - at;
    const field = headerFields(base, known).find((each) => each[2] === at);
    // nft compares the first bytes of an address with a prefix.
    if (field === undefined || (field[3] > rest && field[1] !== 'address')) {
      const place = `@${BASES[base] ?? base},${offset * 8},${length * 8}`;
      return [{ name: place, kind: 'bytes', length }];
    }
    const [name, kind, , size] = field;
    terms.push({ name, kind, length: Math.min(size, rest) });
    at += size;
  }
  return terms;
}

/** @param key of enum nft_meta_keys. */
export function metaTerm(key: number): Term {
  const [name, kind] = META[key] ?? [`meta ${key}`, 'bytes'];
  return { name, kind, length: lengthOf(kind) };
}

/** @param key of enum nft_ct_keys. */
export function ctTerm(key: number, direction: number | undefined): Term {
  const [name, kind] = CT[key] ?? [`${key}`, 'bytes'];
  const way = direction === undefined ? '' : `${DIRECTIONS[direction] ?? direction} `;
  const length = kind === 'address' ? (name.startsWith('ip ') ? 4 : 16) : lengthOf(kind);
  return { name: `ct ${way}${name}`, kind, length };
}

/** enum nft_fib_result */
const FIB_RESULTS: readonly (Field | undefined)[] = [
  undefined,
  ['oif', 'index'],
  ['oifname', 'name'],
  ['type', 'addressType'],
];
/** NFTA_FIB_F_ by bit */
const FIB_FLAGS = ['saddr', 'daddr', 'mark', 'iif', 'oif'];
const NFTA_FIB_F_PRESENT = 32;

export function fibTerm(result: number, flags: number): Term {
  const [name, kind] = FIB_RESULTS[result] ?? [`${result}`, 'bytes'];
  const of = FIB_FLAGS.filter((_, bit) => (flags & (1 << bit)) !== 0).join(' . ');
  const found = (flags & NFTA_FIB_F_PRESENT) !== 0 ? 'present' : kind;
  return { name: `fib ${of} ${name}`, kind: found, length: lengthOf(found) };
}

/** Bytes of values of the kernel's own. */
function lengthOf(kind: ValueKind): number {
  switch (kind) {
    case 'name':
      return NAME_LENGTH;
    case 'family':
    case 'protocol':
    case 'direction':
    case 'packetType':
    case 'present':
      return 1;
    case 'port':
    case 'ethertype':
      return 2;
    default:
      return 4;
  }
}
