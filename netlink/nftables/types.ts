/** What there is in nf_tables, and what can be done to it, as far as it is used here. */

/** What becomes of a packet that meets an element of a verdict map. */
export type NftVerdict =
  | { readonly kind: 'accept' | 'drop' | 'return' }
  | { readonly kind: 'goto' | 'jump'; readonly chain: string };

/**
 * An element of a set or a map. Bytes are as the kernel has them: the fields of a concatenation one
 * after the other, each padded with zeros to 4 bytes; addresses and ports in network order, what
 * `numgen` yields in the order of the machine.
 */
export interface NftElement {
  readonly key: Buffer;
  /**
   * Upper end, inclusive, of an interval in a set of concatenated intervals, field by field. Such
   * a set wants it of every element: a field that is one value has it in both.
   */
  readonly keyEnd?: Buffer;
  /** What a map maps to; a set has none. */
  readonly data?: Buffer | NftVerdict;
  /** Milliseconds after which it goes by itself, in a set with timeouts; read, what is left of them. */
  readonly timeoutMs?: number;
  /** What whoever added it noted, 254 bytes at most; see `commentData`. */
  readonly userdata?: Buffer;
}

/** Elements that are added to a set or a map, or deleted from it. */
export interface NftElementChange {
  readonly action: 'add' | 'delete';
  readonly set: string;
  readonly elements: readonly NftElement[];
}

/** A rule: its expressions encoded, and what whoever added it noted, see `commentData`. */
export interface NftRule {
  readonly expressions: Buffer;
  readonly userdata?: Buffer | undefined;
}

/** A chain, and its rules. */
export interface NftChainRules {
  readonly name: string;
  /** Asked for once, while the transaction is made up. */
  readonly rules: Iterable<NftRule>;
}

/** What a transaction may do. */
export type NftOperation =
  | NftElementChange
  /** A chain gets just these rules; one that is not there is made. */
  | { readonly action: 'fill'; readonly chain: NftChainRules }
  /** Chains go with their rules; nothing but each other may name them. */
  | { readonly action: 'remove'; readonly chains: readonly string[] }
  /** Another table of the family goes, with all that is in it. */
  | { readonly action: 'delete-table'; readonly table: string };

/** A set or a map that there is. */
export interface NftSet {
  readonly name: string;
  /** NFT_SET_ of linux/netfilter/nf_tables.h: see `NFT_SET_FLAGS`. */
  readonly flags: number;
}

export const NFT_SET_FLAGS = {
  anonymous: 0x01,
  constant: 0x02,
  interval: 0x04,
  map: 0x08,
  timeout: 0x10,
  /** Packets may add elements. */
  dynamic: 0x20,
  concatenation: 0x80,
} as const;

/** A table, of whatever family. */
export interface NftTable {
  /** NFPROTO_: 1 inet, 2 ip, 3 arp, 5 netdev, 7 bridge, 10 ip6. */
  readonly family: number;
  readonly name: string;
}

/** Kinds of objects; 'object' is a counter or the like. */
export const NFT_KINDS = [
  'table',
  'chain',
  'rule',
  'set',
  'element',
  'object',
  'flowtable',
  'generation',
] as const;
export type NftKind = (typeof NFT_KINDS)[number];

/** What a notification tells of a change. */
export interface NftNotification {
  /** Of the table, as in NftTable; 0 for a generation. */
  readonly family: number;
  /** undefined for a generation. */
  readonly table: string | undefined;
  /** A transaction ends with its generation. */
  readonly kind: NftKind;
  /** Whether it was made or changed; otherwise it was deleted. */
  readonly isNew: boolean;
  /** The port of the socket from which it was changed. */
  readonly portId: number;
}
