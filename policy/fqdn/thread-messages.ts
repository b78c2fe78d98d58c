/** Messages between the inspection thread and the main thread. */
import type { ObservationBatch } from './packet-handler.ts';

/** Start options of the thread. */
export interface ThreadOptions {
  /** NFQUEUE number. */
  readonly queue: number;
  /**
   * Counters in the order of `COUNTER_NAMES`. Shared memory, so that reading them needs no message.
   */
  readonly counts: Float64Array<SharedArrayBuffer>;
  /**
   * One element: the descriptor of the open queue, or `NO_DESCRIPTOR`. Shared memory, so that the
   * main thread can close the queue of a thread that ended abruptly.
   */
  readonly descriptor: Int32Array<SharedArrayBuffer>;
}

export const NO_DESCRIPTOR = -1;

/** Names of the counters in the order of their index. */
export const COUNTER_NAMES = [
  'queries',
  'answers',
  'unasked',
  'unreadable',
  'givenUp',
  'overdue',
] as const;

export type CounterName = (typeof COUNTER_NAMES)[number];

export type ToThread =
  /** Domain name patterns of policy rules, and addresses of resolvers. */
  | {
      readonly kind: 'settings';
      readonly patterns: readonly string[];
      readonly resolvers: readonly string[];
    }
  /** The observations of the deferrals with these numbers were stored or could not be stored. */
  | { readonly kind: 'stored'; readonly first: number; readonly last: number }
  | { readonly kind: 'stop' };

export type FromThread =
  /** The queue is bound. */
  | { readonly kind: 'ready' }
  /** The thread reads the queue; sent regularly while it has domain names. */
  | { readonly kind: 'alive' }
  | ({ readonly kind: 'observations' } & ObservationBatch)
  /** Inspecting a packet failed; the packet was accepted. */
  | { readonly kind: 'failed'; readonly error: string };
