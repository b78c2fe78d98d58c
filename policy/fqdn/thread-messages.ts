/** What the thread that looks into packets and the one that learns say to each other. */
import type { ObservationBatch } from './packet-handler.ts';

/** What the thread is told when it starts. */
export interface ThreadOptions {
  readonly queue: number;
  /** See COUNTS. Shared, so that whoever wants the numbers need not ask and wait. */
  readonly counts: Float64Array<SharedArrayBuffer>;
  /** One place: the descriptor of the queue while it is open, or NONE. Shared, for a thread may end without a word. */
  readonly descriptor: Int32Array<SharedArrayBuffer>;
}

export const NO_DESCRIPTOR = -1;

/** What is counted, in the order of its place. */
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
  /** Patterns of names that matter, and addresses of resolvers. */
  | {
      readonly kind: 'settings';
      readonly patterns: readonly string[];
      readonly resolvers: readonly string[];
    }
  /** What came under these numbers is learned, or cannot be. */
  | { readonly kind: 'learned'; readonly first: number; readonly last: number }
  | { readonly kind: 'stop' };

export type FromThread =
  /** The queue is bound. */
  | { readonly kind: 'ready' }
  | ({ readonly kind: 'observations' } & ObservationBatch)
  /** A packet could not be looked into; it went on. */
  | { readonly kind: 'failed'; readonly error: string };
