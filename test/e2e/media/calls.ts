/** Calls with media through TURN relays behind a VIP; see calls-thread.ts for the packets. */
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { LabError } from '../../lab/errors.ts';

/** Start data of the thread. */
export interface CallsIdentity {
  readonly namespace: string;
  /** Addresses of the client. */
  readonly addresses: Readonly<Record<4 | 6, string>>;
  /** The VIP of the relays. */
  readonly vips: Readonly<Record<4 | 6, string>>;
  readonly turnPort: number;
  readonly user: string;
  readonly password: string;
}

export type CallRequest =
  | { readonly kind: 'place'; readonly families: readonly (4 | 6)[] }
  | { readonly kind: 'count' }
  | { readonly kind: 'hangUp'; readonly ids: readonly number[]; readonly drain: boolean };

export interface CallsReply {
  readonly id: number;
  readonly value?: readonly CallCounts[];
  readonly error?: string;
}

/** Packets of one direction of a call. */
export interface DirectionCounts {
  readonly sent: number;
  readonly received: number;
  /** Highest sequence number received, plus one. */
  readonly next: number;
  readonly duplicates: number;
}

export interface CallCounts {
  readonly id: number;
  readonly family: 4 | 6;
  /** The port of the VIP that the relay announced. */
  readonly port: number;
  /** From the caller through the relay to the far end. */
  readonly out: DirectionCounts;
  readonly back: DirectionCounts;
  /** Errors of the sockets, such as ICMP errors. */
  readonly errors: number;
}

/** Calls in progress. All promises reject with LabError `THREAD_FAILED`. */
export interface Calls {
  /** Places calls in these families, and starts their media. */
  place(families: readonly (4 | 6)[]): Promise<readonly CallCounts[]>;
  /** All calls in progress. */
  count(): Promise<readonly CallCounts[]>;
  /**
   * Ends calls. @returns their last counts; with `drain` once all packets arrived, or after 3 s
   */
  hangUp(ids: readonly number[], drain: boolean): Promise<readonly CallCounts[]>;
  stop(): Promise<void>;
}

/** Starts the thread. */
export async function startCalls(identity: CallsIdentity): Promise<Calls> {
  const worker = new Worker(new URL('./calls-thread.ts', import.meta.url), {
    workerData: identity,
    execArgv: [],
  });
  const pending = new Map<number, PromiseWithResolvers<readonly CallCounts[]>>();
  let lastId = 0;
  worker.on('message', ({ id, value, error }: CallsReply) => {
    const { resolve, reject } = pending.get(id) ?? {};
    pending.delete(id);
    if (value) resolve?.(value);
    else reject?.(new LabError('THREAD_FAILED', error ?? 'no answer'));
  });
  worker.on('error', (cause) => {
    for (const { reject } of pending.values()) {
      reject(new LabError('THREAD_FAILED', 'the calls ended', cause));
    }
    pending.clear();
  });
  await once(worker, 'online');
  const ask = (request: CallRequest) => {
    lastId += 1;
    const reply = Promise.withResolvers<readonly CallCounts[]>();
    pending.set(lastId, reply);
    worker.postMessage({ id: lastId, request });
    return reply.promise;
  };
  return {
    place: (families) => ask({ kind: 'place', families }),
    count: () => ask({ kind: 'count' }),
    hangUp: (ids, drain) => ask({ kind: 'hangUp', ids, drain }),
    stop: async () => {
      await worker.terminate();
    },
  };
}

/** Packets that a later one overtook or followed: lost, unless the network reorders. */
export function lostSoFar({ out, back }: CallCounts): number {
  return out.next - out.received + (back.next - back.received);
}

/** Packets of a call that has ended and did not arrive. */
export function lost({ out, back }: CallCounts): number {
  return out.sent - out.received + (back.sent - back.received);
}
