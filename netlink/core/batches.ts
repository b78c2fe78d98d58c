/** Sends many requests in batches of bounded size. */
import { TimeSlice } from '../../sync/time-slice.ts';
import { align } from './attribute.ts';
import type { NetlinkError } from './error.ts';
import { type NetlinkRequest, NLMSG_HDRLEN } from './message.ts';
import type { NetlinkSocket } from './socket.ts';

/**
 * Limits of one batch. Beyond 128 KiB some kernels cannot allocate a contiguous buffer
 * (user-mode-linux: EMSGSIZE). If the kernel refuses all messages of a batch, the error replies
 * still fit into the receive buffer.
 */
const MAX_BYTES = 64 * 1024;
const MAX_MESSAGES = 500;

/** An item whose message the kernel refused. */
export interface RefusedItem<T> {
  readonly item: T;
  readonly error: NetlinkError;
}

/**
 * Sends one message per item, in order, in batches. The thread pool sends each batch, so the event
 * loop gets a turn between batches. Messages are encoded just before they are sent. A batch ends
 * early when its time slice is over: encoding 500 IPVS messages took 5 ms in user-mode-linux, and
 * 230 ms with cold code.
 * @param weigh The work that an item causes in the kernel, and the maximum work per batch.
 * @param slice Tests replace it.
 * @returns the refused items, in order. All other items were applied.
 * @throws NetlinkError if the outcome of a batch is unknown. Later batches are not sent.
 */
export async function sendAll<T>(
  socket: Pick<NetlinkSocket, 'batch'>,
  items: readonly T[],
  encode: (item: T) => NetlinkRequest,
  weigh: { of: (item: T) => number; max: number } = { of: () => 1, max: MAX_MESSAGES },
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
  weigh: { of: (item: T) => number; max: number },
  slice: Pick<TimeSlice, 'isOver' | 'restart'>,
): Generator<NetlinkRequest[]> {
  let batch: NetlinkRequest[] = [];
  let bytes = 0;
  let weight = 0;
  for (const item of items) {
    const request = encode(item);
    const itemWeight = weigh.of(item);
    const length = NLMSG_HDRLEN + align(request.payload.length);
    const isFull =
      bytes + length > MAX_BYTES ||
      weight + itemWeight > weigh.max ||
      batch.length === MAX_MESSAGES;
    if ((isFull || slice.isOver()) && batch.length > 0) {
      yield batch;
      batch = [];
      bytes = 0;
      weight = 0;
      slice.restart();
    }
    batch.push(request);
    bytes += length;
    weight += itemWeight;
  }
  if (batch.length > 0) yield batch;
}
