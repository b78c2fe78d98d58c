/** What is measured of network policy in a network namespace, each in a process of its own. */
import type { ClusterSize } from './policy-cluster.ts';

export type PolicyJob =
  | {
      readonly kind: 'start';
      readonly size: ClusterSize;
      /** How often each kind of change is made after the start; 0 for none. */
      readonly changes: number;
    }
  /** Enforces for the client's pod, and leaves the rules. */
  | { readonly kind: 'load'; readonly size: ClusterSize; readonly address: string }
  /** Has conntrack follow connections, as every mode of serving does, and nothing else. */
  | { readonly kind: 'conntrack' };

export const POLICY_CHANGES = {
  added: 'one pod added on the node',
  relabelled: 'one pod of the node relabelled',
  gone: 'one pod of the node gone',
  elsewhere: 'one pod added elsewhere',
  policy: 'one policy changed',
} as const;
export type PolicyChangeKind = keyof typeof POLICY_CHANGES;

/** Of both families together. */
export interface PolicyReport {
  /** Seconds, from the first object until the kernel enforces all. */
  readonly start: number;
  /** The part of it until the model had said what is wanted. */
  readonly compile: number;
  /** Longest time in which the event loop did not turn during the start, in milliseconds. */
  readonly stall: number;
  readonly elements: number;
  readonly chains: number;
  /** MiB of the heap after a collection. */
  readonly heap: number;
  /** Milliseconds of each. */
  readonly changes: Readonly<Record<PolicyChangeKind, readonly number[]>>;
}
