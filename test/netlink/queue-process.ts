/**
 * A process in the network namespace of a test. It binds an NFQUEUE and accepts packets on request.
 */
import { readFileSync } from 'node:fs';
import { PacketQueue, parseQueueStates, queueState } from '../../netlink/nfqueue/queue.ts';
import { serveCalls } from '../child.ts';

let queue: PacketQueue | undefined;
const packets: { readonly id: number; readonly ifindex: number; readonly hex: string }[] = [];

const functions = {
  /** @param accepts Whether to accept packets immediately. */
  listen(number: number, maxLength: number, accepts: boolean): void {
    const opened = new PacketQueue(number);
    try {
      opened.bind(maxLength, ({ id, ifindex, bytes }) => {
        packets.push({ id, ifindex, hex: bytes.toString('hex') });
        if (accepts) opened.accept(id);
      });
      queue = opened;
    } catch (error) {
      opened.close();
      throw error;
    }
  },
  packets: () => packets,
  accept: (ids: readonly number[]): void => {
    for (const id of ids) queue?.accept(id);
  },
  resize: (maxLength: number): void => queue?.setMaxLength(maxLength),
  state: (number: number) => queueState(number),
  close: (): void => queue?.close(),

  /** Reads nothing until `waiting` packets are queued, then closes the queue. */
  listenAndClose(number: number, waiting: number): void {
    functions.listen(number, 8, true);
    const text = () => readFileSync('/proc/net/netfilter/nfnetlink_queue', 'utf8');
    const deadline = performance.now() + 10_000;
    while (parseQueueStates(text()).get(number)?.waiting !== waiting) {
      if (performance.now() > deadline) throw new Error('timed out');
    }
    queue?.close();
  },
};

export type QueueProcessFunctions = typeof functions;

serveCalls(functions);
