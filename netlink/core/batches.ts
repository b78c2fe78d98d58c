/** Many requests in bounded sends. */
import { TimeSlice } from '../../sync/time-slice.ts';
import { align } from './attribute.ts';
import type { NetlinkError } from './error.ts';
import { type NetlinkRequest, NLMSG_HDRLEN } from './message.ts';
import type { NetlinkSocket } from './socket.ts';

/**
 * Bounds of one send. Beyond 128 KiB some kernels have no buffer in one piece (user-mode-linux:
 * EMSGSIZE); and all messages of one may be refused without overrunning the socket.
 */
const BYTES = 64 * 1024;
const MESSAGES = 500;

/** An item whose message the kernel refused. */
export interface RefusedItem<T> {
  readonly item: T;
  readonly error: NetlinkError;
}

/**
 * Sends a message for each item in order, in as many sends as it takes. They are encoded as they are
 * needed; the event loop goes round between two sends, each of which runs in the thread pool, and
 * to make the messages of one may not hold it for long (500 of IPVS took 5 ms in user-mode-linux, 230 ms when cold).
 * @param weigh How much work the message of an item is for the kernel, and how much one send may be.
 * @param slice ends a send, too; for tests.
 * @returns those that were refused, in order; the others are done all the same.
 * @throws NetlinkError when the fate of a send is not known; what follows it is not sent.
 */
export async function sendAll<T>(
  socket: Pick<NetlinkSocket, 'batch'>,
  items: readonly T[],
  encode: (item: T) => NetlinkRequest,
  weigh: { of: (item: T) => number; most: number } = { of: () => 1, most: MESSAGES },
  slice: Pick<TimeSlice, 'isOver' | 'restart'> = new TimeSlice(),
): Promise<RefusedItem<T>[]> {
  const refused: RefusedItem<T>[] = [];
  let start = 0;
  for (const batch of batches(items, encode, weigh, slice)) {
    for (const { index, error } of await socket.batch(batch)) {
      const item = items[start + index];
      if (item !== undefined) refused.push({ item, error });
    }
    start += batch.length;
  }
  return refused;
}

function* batches<T>(
  items: readonly T[],
  encode: (item: T) => NetlinkRequest,
  weigh: { of: (item: T) => number; most: number },
  slice: Pick<TimeSlice, 'isOver' | 'restart'>,
): Generator<NetlinkRequest[]> {
  let batch: NetlinkRequest[] = [];
  let bytes = 0;
  let weight = 0;
  for (const item of items) {
    const request = encode(item);
    const own = weigh.of(item);
    const length = NLMSG_HDRLEN + align(request.payload.length);
    const isFull = bytes + length > BYTES || weight + own > weigh.most || batch.length === MESSAGES;
    if ((isFull || slice.isOver()) && batch.length > 0) {
      yield batch;
      batch = [];
      bytes = 0;
      weight = 0;
      slice.restart();
    }
    batch.push(request);
    bytes += length;
    weight += own;
  }
  if (batch.length > 0) yield batch;
}
