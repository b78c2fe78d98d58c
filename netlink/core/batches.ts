import { TimeSlice } from '../../sync/time-slice.ts';
import { align } from './attribute.ts';
import { MESSAGE_HEADER, type Request } from './message.ts';
import type { NetlinkSocket, Refusal } from './socket.ts';

/**
 * Bounds of one send. Beyond 128 KiB some kernels have no buffer in one piece (user-mode-linux:
 * EMSGSIZE); and all messages of one may be refused without overrunning the socket.
 */
const BYTES = 64 * 1024;
const MESSAGES = 500;

/** A message, and how much work it is for the kernel in messages of the ordinary kind. */
export interface Weighted {
  readonly request: Request;
  readonly weight: number;
}

/**
 * Sends any number of messages in order, in as many sends as it takes. They are taken as they are
 * needed; the event loop goes round between two sends, each of which runs in the thread pool, and
 * to make the messages of one may not hold it for long.
 * @param work The kernel's work for one send, in the unit of the weights.
 * @returns those that were refused, in order; the others are done all the same.
 * @throws NetlinkError when the fate of a send is not known; what follows it is not sent.
 */
export async function sendAll(
  socket: Pick<NetlinkSocket, 'batch'>,
  messages: Iterable<Weighted>,
  work = MESSAGES,
): Promise<Refusal[]> {
  const refusals: Refusal[] = [];
  let start = 0;
  for (const batch of batches(messages, work)) {
    for (const { index, error } of await socket.batch(batch)) {
      refusals.push({ index: start + index, error });
    }
    start += batch.length;
  }
  return refusals;
}

function* batches(messages: Iterable<Weighted>, work: number): Generator<Request[]> {
  let batch: Request[] = [];
  let bytes = 0;
  let weight = 0;
  const slice = new TimeSlice();
  for (const { request, weight: own } of messages) {
    const length = MESSAGE_HEADER + align(request.payload.length);
    const isFull = bytes + length > BYTES || weight + own > work || batch.length === MESSAGES;
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
