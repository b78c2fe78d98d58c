/** What is measured of the nftables mode in a network namespace, each in a process of its own. */
import type { Storm } from './portwide.ts';
import type { Timing } from './subject.ts';

/**
 * `portwide`: the agent without its source. `netlink`: the kernel alone, given bytes that are ready;
 * writes the same state as text to `script`. `nft`: the kernel and nft, given that text.
 */
export type NftablesJob =
  | {
      readonly kind: 'portwide';
      readonly services: number;
      /** How often each kind of change is made after the start; 0 for none. */
      readonly changes: number;
    }
  | {
      readonly kind: 'storm';
      readonly services: number;
      readonly changes: number;
      /** Milliseconds. */
      readonly minSyncPeriod: number;
    }
  | {
      readonly kind: 'netlink';
      readonly services: number;
      readonly changes: number;
      readonly script: string;
    }
  | { readonly kind: 'nft'; readonly script: string };

/** The kinds of change. */
export const CHANGE_KINDS = ['replace', 'add', 'addAllPorts', 'remove'] as const;
export type ChangeKind = (typeof CHANGE_KINDS)[number];

export interface NftablesReport {
  readonly start: Timing;
  /** Longest time in which the event loop did not turn during the start, in milliseconds. */
  readonly stall: number;
  /** Elements in the kernel after the start. */
  readonly elements: number;
  readonly changes: Readonly<Record<ChangeKind, readonly Timing[]>>;
}

export interface StormReport extends Storm {
  /** As in `NftablesReport`, from the first change until the kernel has all. */
  readonly stall: number;
  /** CPU time of the process from the first change until the kernel has all, in milliseconds. */
  readonly cpu: number;
}

/** Milliseconds. */
export interface KernelReport {
  readonly load: number;
  readonly elements: number;
  readonly changes: Readonly<Record<ChangeKind, readonly number[]>>;
}

export interface NftReport {
  /** Milliseconds. */
  readonly load: number;
  readonly elements: number;
}
