/** What a rule does, as it is read from its expressions (`decode-rule.ts`); of any program. */
import type { NftVerdict } from './types.ts';

/** What the bytes of a value mean. */
export type ValueKind =
  | 'address'
  | 'ether'
  | 'port'
  /** Protocol number (IANA). */
  | 'protocol'
  /** NFPROTO_ */
  | 'family'
  | 'ethertype'
  /** Name of an interface; without a NUL, a prefix. */
  | 'name'
  /** Index of an interface. */
  | 'index'
  | 'mark'
  | 'state'
  | 'status'
  | 'direction'
  | 'tcpFlags'
  | 'icmp'
  | 'icmpv6'
  | 'addressType'
  | 'packetType'
  /** Whether something exists. */
  | 'present'
  /** A number in host order. */
  | 'host'
  /** A number in network order. */
  | 'network'
  | 'bytes';

/** A value that a rule loads: a field of the packet, metadata, a constant. */
export interface Term {
  /** As nft words it, such as `ip saddr`, `tcp dport` or `meta mark`. */
  readonly name: string;
  readonly kind: ValueKind;
  /** Bytes that are loaded: of an address maybe only the first ones. */
  readonly length: number;
  /** The value is `(field & mask) ^ xor`. */
  readonly bits?: { readonly mask: Buffer; readonly xor: Buffer };
  /** Not a field, but these bytes. */
  readonly constant?: Buffer;
  /** The data that a map has for the key `name`. */
  readonly map?: SetContent;
}

/** A set or map that a rule looks into. */
export interface SetContent {
  readonly name: string;
  /** Bytes of a key; fields of a concatenation are padded to 4 bytes. */
  readonly keyLength: number;
  /** See `DATATYPE`; undefined if the set is not known. */
  readonly dataType?: number | undefined;
  /** Elements of an anonymous set; undefined for a named set, whose content changes, and if there are too many. */
  readonly elements?: readonly SetElement[] | undefined;
}

export interface SetElement {
  /** First and last key of an interval; the same for one key. undefined: all other keys. */
  readonly keys: KeyRange | undefined;
  /** undefined in a set, and for the verdict `continue`. */
  readonly data?: Buffer | NftVerdict | undefined;
}

export interface KeyRange {
  readonly first: Buffer;
  readonly last: Buffer;
}

export type Comparison = '==' | '!=' | '<' | '<=' | '>' | '>=';

/** A part of a rule. Conditions come before what they guard. */
export type Statement =
  | {
      readonly kind: 'compare';
      readonly term: Term;
      readonly op: Comparison;
      readonly value: Buffer;
    }
  | ({ readonly kind: 'range'; readonly term: Term; readonly negated: boolean } & KeyRange)
  | {
      readonly kind: 'lookup';
      readonly terms: readonly Term[];
      readonly set: SetContent;
      readonly negated: boolean;
    }
  | { readonly kind: 'verdictMap'; readonly terms: readonly Term[]; readonly set: SetContent }
  | { readonly kind: 'verdict'; readonly verdict: NftVerdict | { readonly kind: 'continue' } }
  /** Drops the packet, and sends an error to its source. */
  | { readonly kind: 'reject'; readonly words: string }
  /** Translates an address of the connection. */
  | {
      readonly kind: 'translate';
      readonly what: 'source' | 'destination';
      readonly words: string;
    }
  | { readonly kind: 'setMark'; readonly words: string }
  /** The rule may end here, which depends on what is not in the rule, such as a limit. */
  | { readonly kind: 'condition'; readonly words: string }
  /** Neither ends the rule nor decides about the packet. */
  | { readonly kind: 'action'; readonly words: string }
  /** It is not known what this does. */
  | { readonly kind: 'unknown'; readonly words: string };
