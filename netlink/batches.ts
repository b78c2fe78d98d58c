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
 * Sends any number of messages in order, in as many sends as it takes; the event loop goes round
 * between two of them, since each runs in the thread pool.
 * @param work The kernel's work for one send, in the unit of the weights.
 * @returns those that were refused, in order; the others are done all the same.
 * @throws NetlinkError when the fate of a send is not known; what follows it is not sent.
 */
export async function sendAll(
  socket: Pick<NetlinkSocket, 'batch'>,
  messages: readonly Weighted[],
  work = MESSAGES,
): Promise<Refusal[]> {
  const refusals: Refusal[] = [];
  for (let start = 0; start < messages.length; ) {
    const end = batchEnd(messages, start, work);
    const batch = messages.slice(start, end).map(({ request }) => request);
    for (const { index, error } of await socket.batch(batch)) {
      refusals.push({ index: start + index, error });
    }
    start = end;
  }
  return refusals;
}

/** Where the batch from `start` on ends; it holds at least one message. */
function batchEnd(messages: readonly Weighted[], start: number, work: number): number {
  let bytes = 0;
  let weight = 0;
  let end = start;
  for (let next = messages[start]; next !== undefined; next = messages[++end]) {
    bytes += MESSAGE_HEADER + align(next.request.payload.length);
    weight += next.weight;
    if (end > start && (bytes > BYTES || weight > work || end - start >= MESSAGES)) break;
  }
  return end;
}
