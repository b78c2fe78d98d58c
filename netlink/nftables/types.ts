/** The nf_tables objects that the agent uses, and the operations on them. */

import type { NftDeclaration } from './declaration.ts';

/** A verdict, as the data of a verdict map or in a rule. */
export type NftVerdict =
  | { readonly kind: 'accept' | 'drop' | 'return' }
  | { readonly kind: 'goto' | 'jump'; readonly chain: string };

/**
 * An element of a set or map, with bytes as in the kernel. Fields of a concatenation follow each
 * other, each padded with zeros to a multiple of 4 bytes. Addresses and ports are in network order,
 * results of `numgen` in host order.
 */
export interface NftElement {
  readonly key: Buffer;
  /**
   * Inclusive upper end of an interval. In a set of concatenated intervals it applies field by field, and every element
   * needs it; a field with a single value has that value in both. In an ordered set (`NftElementChange.isOrdered`) the
   * key as a whole is one number.
   */
  readonly keyEnd?: Buffer;
  /**
   * In an ordered set: the kernel has only this half of the interval, because another program deleted or added the other
   * one. The key of an end is the last key inside.
   */
  readonly bound?: NftBound;
  /** Map data; undefined in a set. */
  readonly data?: Buffer | NftVerdict;
  /**
   * Timeout in milliseconds, in a set with timeouts. In an element read from the kernel: the
   * time left.
   */
  readonly timeoutMs?: number;
  /** Opaque user data, at most 254 bytes; see `encodeComment`. */
  readonly userdata?: Buffer;
}

/** Half of an interval in an ordered set, where each half is an element in the kernel. */
export type NftBound = 'start' | 'end';

/** Elements to add to or delete from a set or map. */
export interface NftElementChange {
  readonly action: 'add' | 'delete';
  readonly set: string;
  /**
   * Whether the set has intervals without concatenation. There the kernel keeps the end of an interval as an element of
   * its own: the first key that is not part of the interval.
   */
  readonly isOrdered?: boolean;
  readonly elements: readonly NftElement[];
}

/** A rule: encoded expressions and user data (see `encodeComment`). */
export interface NftRule {
  readonly expressions: Buffer;
  readonly userdata?: Buffer | undefined;
}

/** A rule that the kernel has. */
export interface NftExistingRule {
  readonly chain: string;
  /** Encoded; see `encodedRuleText`. */
  readonly expressions: Buffer;
}

/** A chain that the kernel has. */
export interface NftExistingChain {
  readonly name: string;
  /** undefined for a chain that is only jumped to. */
  readonly base: NftBaseChain | undefined;
}

/** Where a base chain is attached. */
export interface NftBaseChain {
  /** `filter`, `nat` or `route`. */
  readonly type: string;
  /** NF_INET_ number of the hook: 0 is prerouting. */
  readonly hook: number;
  readonly priority: number;
  /** Verdict of a packet that leaves the chain: 0 is drop, 1 is accept. */
  readonly policy: number;
}

/** A chain with its rules. */
export interface NftChainRules {
  readonly name: string;
  /** Iterated once, while the transaction is built. */
  readonly rules: Iterable<NftRule>;
}

/** An operation of a transaction. */
export type NftOperation =
  | NftElementChange
  /**
   * Creates the table and objects if they do not exist, before all other operations of the transaction. Something must be
   * new, or a base chain: the kernel counts no transaction that changes nothing (see `countOwnTransaction`).
   */
  | {
      readonly action: 'declare';
      /** Deletes an existing table with its content first. */
      readonly replacesTable?: boolean;
      readonly declarations: readonly NftDeclaration[];
    }
  /** Replaces the rules of a chain, and creates the chain if needed. */
  | { readonly action: 'fill'; readonly chain: NftChainRules }
  /** Deletes chains with their rules. Only chains in `chains` may refer to them. */
  | { readonly action: 'remove'; readonly chains: readonly string[] }
  /** Adds network interfaces to a flowtable, or removes them; flows stay. Adding one that it has is not an error. */
  | {
      readonly action: 'attach' | 'detach';
      readonly flowtable: string;
      readonly devices: readonly string[];
    }
  /** Deletes a flowtable; its flows return to the rules. No rule may refer to it after the transaction. */
  | { readonly action: 'delete-flowtable'; readonly flowtable: string }
  /** Deletes another table of the family with its content. */
  | { readonly action: 'delete-table'; readonly table: string };

/** An existing set or map. */
export interface NftSet {
  readonly name: string;
  /** NFT_SET_ bits of linux/netfilter/nf_tables.h: see `NFT_SET_FLAGS`. */
  readonly flags: number;
}

/** An existing flowtable. */
export interface NftFlowtable {
  readonly name: string;
  /** Names of the network interfaces whose packets it handles. */
  readonly devices: readonly string[];
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

/** A table of any family. */
export interface NftTable {
  /** NFPROTO_: 1 inet, 2 ip, 3 arp, 5 netdev, 7 bridge, 10 ip6. */
  readonly family: number;
  readonly name: string;
}

/** Families of tables with packets of IP (linux/netfilter.h). */
export const NFPROTO = { inet: 1, ipv4: 2, ipv6: 10 } as const;

/** Names of families by NFPROTO_ number (linux/netfilter.h). */
export const FAMILY_NAMES: Readonly<Record<number, string>> = {
  ...{ 1: 'inet', 2: 'ip', 3: 'arp', 5: 'netdev', 7: 'bridge', 10: 'ip6' },
};

/** The bit of NFTA_TABLE_FLAGS that detaches all chains of a table. */
export const NFT_TABLE_DORMANT = 1;

/** Kinds of objects. 'object' is a stateful object such as a named counter. */
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

/** A change reported by a notification. */
export interface NftNotification {
  /** Family of the table, as in NftTable; 0 for a generation. */
  readonly family: number;
  /** undefined for a generation. */
  readonly table: string | undefined;
  /** Name of a chain or set; the chain of a rule; the set or map of an element. Otherwise undefined. */
  readonly name: string | undefined;
  /** The generation notification is the last of a transaction. */
  readonly kind: NftKind;
  /** Whether the object was created or changed; false: it was deleted. */
  readonly isNew: boolean;
  /** Port ID of the socket whose request caused the change. */
  readonly portId: number;
}
