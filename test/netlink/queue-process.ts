/** Runs inside a namespace of a test and has a queue there. */
import { readFileSync } from 'node:fs';
import { PacketQueue, parseQueueStates, queueState } from '../../netlink/nfqueue/queue.ts';
import { serveCalls } from '../child.ts';

let queue: PacketQueue | undefined;
const packets: { readonly id: number; readonly link: number; readonly hex: string }[] = [];

const functions = {
  /** @param accepts Whether packets go on at once. */
  listen(number: number, maxLength: number, accepts: boolean): void {
    const opened = new PacketQueue(number);
    try {
      opened.bind(maxLength, ({ id, ifindex: link, bytes }) => {
        packets.push({ id, link, hex: bytes.toString('hex') });
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

  /** Reads nothing until so many packets wait, and closes the queue then. */
  listenAndClose(number: number, waiting: number): void {
    functions.listen(number, 8, true);
    const text = () => readFileSync('/proc/net/netfilter/nfnetlink_queue', 'utf8');
    const deadline = performance.now() + 10_000;
    while (parseQueueStates(text()).get(number)?.waiting !== waiting) {
      if (performance.now() > deadline) throw new Error('waited in vain');
    }
    queue?.close();
  },
};

export type QueueProcessFunctions = typeof functions;

serveCalls(functions);
